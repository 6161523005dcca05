"""Images from one gradient: figure 3 on MNIST, and batches of CIFAR-10."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from remanence.attacks import Stein
from remanence.data import Split, load, split
from remanence.experiments import Claim, Experiment, Point, Reconstructed, Scale, Victims
from remanence.metrics import MSE, PSNR, SSIM, hungarian
from remanence.models import mlp, server_params
from remanence.releases import gradient_at_initial
from remanence.training import SquaredError, Training
from remanence.types import Data, Params
from remanence_recipes.wang2023.setting import SquareAndCube

NORM = {"digits": 2.0, "mnist": 4.0}  # of every record after scaling: below what the faintest has
CLASSES = SquaredError(values=tuple(k / 4.5 - 1 for k in range(10)))  # from -1 to 1


def figure3_mnist(scale: Scale) -> Sequence[Experiment]:
    """Figure 3: pairs of MNIST images with equal and with different labels, from nets of more and more rows."""
    widths = (1000,) if scale == "smoke" else (1000, 3000, 5000)
    name = "digits" if scale == "smoke" else "mnist"
    ways = {
        "the paper's estimator": replace(Stein.paper(), norm=NORM[name]),
        "exact span": Stein(refine=False, norm=NORM[name], clamp=False),
        "refined": Stein(),
    }
    return [
        image_cell(
            f"{kind}, {rows:,} rows, {way}",
            partial(_pairs, scale, name, digits),
            per_victim=2,
            activation=SquareAndCube,
            rows=rows,
            norm=NORM[name],
            attack=attack,
            point=Point(axis="rows", value=rows, series=f"{kind}, {way}", log=True),
        )
        for kind, digits in (("equal labels", (4, 4)), ("different labels", (3, 9)))
        for rows in widths
        for way, attack in ways.items()
    ]


def cifar10(scale: Scale) -> Sequence[Experiment]:
    """CIFAR-10: batches of eight images from one gradient of a wide net of two layers; of four with ReLU."""
    claim = Claim(quantity="mean psnr", higher_is_better=True, target=30.0, where="ours")
    most = 4 if scale == "smoke" else 8
    return [
        image_cell(
            f"{name}, batches of {records}",
            partial(_batches, scale, records),
            per_victim=records,
            activation=activation,
            rows=2000 if scale == "smoke" else 5000,
            norm=None,
            attack=Stein(),
            claims=(claim,) if activation is nn.Tanh else (),
            tuned_on_truth=scale != "smoke",  # the reseeding: after a look at CIFAR-10 targets of seed 0
        )
        for name, activation, records in (
            ("tanh", nn.Tanh, most),
            ("x²+x³", SquareAndCube, most),
            ("ReLU", nn.ReLU, 4),
        )
    ]


def image_cell(
    label: str,
    cut: Callable[[int], Split],
    *,
    per_victim: int,
    activation: Callable[[], nn.Module],
    rows: int,
    norm: float | None,
    attack: Stein,
    point: Point | None = None,
    claims: tuple[Claim, ...] = (),
    tuned_on_truth: bool = False,
) -> Experiment:
    """Nothing is trained: the first weights are the server's."""
    return Experiment(
        label=label,
        victims=Victims(
            split=cut,
            model=lambda data: mlp(data.shape, 1, hidden=(rows,), activation=activation),
            training=Training(epochs=0, loss=CLASSES),
            reveal=gradient_at_initial,
            per_victim=per_victim,
            initial=partial(sent_by_server, norm),
        ),
        attack=attack,
        claims=claims,
        point=point,
        tuned_on_truth=tuned_on_truth,
        evaluations=(Reconstructed(matching=hungarian, metrics=(MSE, PSNR, SSIM)),),
    )


def sent_by_server(norm: float | None, model: nn.Module, seed: int) -> Params:
    """Rows for pre-activations of order one: the server does not see the images, but knows how bright images are."""
    width = next(layer.in_features for layer in model.modules() if isinstance(layer, nn.Linear))
    return server_params(model, seed=seed, row_std=1 / (norm or 0.5 * width**0.5))


def _pairs(scale: Scale, name: str, digits: tuple[int, int], seed: int) -> Split:
    """Pairs of these digits, every record scaled to the same norm."""
    data, count = _double(load(name)), {"smoke": 2, "small": 10, "full": 25}[scale]
    norms = data.x.flatten(1).norm(dim=1)
    data = data.take(norms >= NORM[name])
    scaled = replace(data, x=data.x * (NORM[name] / data.x.flatten(1).norm(dim=1))[:, None, None, None])
    whole = split(scaled, private=600, fixed=0, public=0, test=min(2000, len(scaled) - 600), seed=seed)
    places = [(whole.private.y == digit).nonzero().flatten() for digit in digits]
    if digits[0] == digits[1]:
        places = [places[0][::2], places[0][1::2]]
    shortest = min(count, *map(len, places))
    order = torch.stack([place[:shortest] for place in places], dim=1).flatten()
    return replace(whole, private=whole.private.take(order))


def _batches(scale: Scale, records: int, seed: int) -> Split:
    return batches_of(
        "digits" if scale == "smoke" else "cifar10", records, {"smoke": 1, "small": 2, "full": 10}[scale], seed
    )


def batches_of(name: str, records: int, count: int, seed: int) -> Split:
    """`count` batches, and the records that the nulls are made of."""
    data = _double(load(name, part="test") if name == "cifar10" else load(name))
    return split(data, private=count * records, fixed=0, public=0, test=500 if name == "digits" else 2000, seed=seed)


def _double(data: Data) -> Data:
    return replace(data, x=data.x.double())
