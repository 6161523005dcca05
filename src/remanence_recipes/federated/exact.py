"""Batches read to the last digit: from the first layer, and from a tensor's estimate that matching sharpens."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from remanence.attacks import L2, LBFGS, Attack, FirstLayer, GradientMatching, Search, Stein
from remanence.data import Split, load, split
from remanence.engine import loss_gradient
from remanence.experiments import Claim, Experiment, Measure, Measurement, Outcome, Point, Reconstructed, Scale, Victims
from remanence.metrics import MSE, PSNR, SSIM, hungarian
from remanence.metrics.statistics import bootstrap_mean
from remanence.models import mlp, server_params
from remanence.progress import track
from remanence.releases import Gradient, gradient_at_final
from remanence.seeds import derive_seed
from remanence.training import SGD, SquaredError, Training
from remanence.types import Data
from remanence_recipes.wang2023.setting import SquareAndCube

ROWS = {"smoke": 4000, "small": 5000, "full": 5000}
MEASURED = {2: 0.015, 4: 0.051, 8: 0.212}  # rms with the exact span alone, before this code was written


def first_layer(scale: Scale) -> Sequence[Experiment]:
    """Whole batches from the first layer of an ordinary net with ReLU: larger and larger ones, fresh and trained."""
    sizes = {"smoke": (4, 16), "small": (8, 64, 128), "full": (8, 32, 64, 128, 256)}[scale]
    width = {"smoke": 256, "small": 500, "full": 2000}[scale]
    return [
        Experiment(
            label=f"{name}, batches of {records}",
            victims=Victims(
                split=partial(_batches, scale, records),
                model=lambda data: mlp(data.shape, data.num_classes, hidden=(width,), activation=nn.ReLU),
                training=Training(epochs=epochs, optimizer=SGD(lr=0.1, momentum=0.9)),
                reveal=gradient_at_final,
                per_victim=records,
            ),
            attack=FirstLayer(),
            point=Point(axis="records of a batch", value=records, series=name, log=True),
            evaluations=(Reconstructed(metrics=(SSIM, MSE, PSNR)),),
        )
        for name, epochs in (("fresh weights", 0), ("trained weights", 5 if scale == "smoke" else 10))
        for records in sizes
    ]


def _batches(scale: Scale, records: int, seed: int) -> Split:
    data = load("digits") if scale == "smoke" else load("cifar10", part="test")
    private = max(records, {"smoke": 16, "small": 64, "full": 512}[scale])
    return split(data, private=private, fixed=500, public=0, test=1000, seed=seed)


def from_the_tensor(scale: Scale) -> Sequence[Experiment]:
    """Gradient matching that begins with the estimate of Stein's tensor: MNIST images, weights of the server."""
    about = "Images of norm one from one gradient of a wide net; the estimate alone, and sharpened."
    return [
        Experiment(
            label=f"{records} images",
            about=about,
            evaluations=(Measurement(measure=partial(_from_the_tensor, scale, records)),),
            claims=() if scale == "smoke" else _claims(records),
        )
        for records in ((8,) if scale == "smoke" else MEASURED)
    ]


def _claims(records: int) -> tuple[Claim, ...]:
    targets = {"estimate": MEASURED[records], "sharpened": min(0.05, MEASURED[records])}
    return tuple(
        Claim(quantity=_named(way), higher_is_better=False, target=target, where="ours")
        for way, target in targets.items()
    )


def _from_the_tensor(scale: Scale, records: int, seed: int, device: torch.device) -> Outcome:
    estimate = Stein(refine=False, norm=1.0)
    matching = GradientMatching(distance=L2(), prior=None, search=Search(optimizer=LBFGS(), steps=100), start=estimate)
    ways: dict[str, Attack[Gradient]] = {"estimate": estimate, "sharpened": matching}
    batches = {"smoke": 1, "small": 2, "full": 10}[scale]
    data = load("digits" if scale == "smoke" else "mnist")
    images = split(data, private=batches * records, fixed=0, public=0, test=batches * records, seed=seed)
    errors: dict[str, list[float]] = {name: [] for name in (*ways, "chance")}
    pictures: dict[str, Tensor] = {}
    for i in track(range(batches), total=batches, label="batches"):
        place = slice(i * records, (i + 1) * records)
        batch, others = (_unit(part.take(place)) for part in (images.private, images.test))
        release = _sent(batch.to(device), rows=ROWS[scale], seed=derive_seed(seed, "weights", i))
        found = {name: way.run(release, seed=derive_seed(seed, "attack", i)).x.cpu() for name, way in ways.items()}
        for name, x in {**found, "chance": others.x}.items():
            errors[name].append(_rms(x, batch.x))
        pictures = pictures or {"truth": _bright(batch.x), **{name: _bright(x) for name, x in found.items()}}
    chance = sum(errors["chance"]) / batches
    measures = tuple(
        Measure.from_interval(
            _named(name),
            bootstrap_mean(torch.tensor(errors[name]), seed=derive_seed(seed, "interval", name)),
            meaning="root of the mean squared distance; chance is that of other images",
            chance=chance,
        )
        for name in ways
    )
    return Outcome(measures=measures, pictures=pictures)


def _named(way: str) -> str:
    return f"rms error, {way}"


def _unit(data: Data) -> Data:
    norms = data.x.double().flatten(1).norm(dim=1)[:, None, None, None]
    return Data(x=data.x.double() / norms, y=data.y % 2, num_classes=2)


def _sent(batch: Data, *, rows: int, seed: int) -> Gradient:
    """Wang et al.'s net, with their labels of -1 and 1."""
    model, loss = mlp(batch.shape, 1, hidden=(rows,), activation=SquareAndCube), SquaredError()
    at = {name: p.to(batch.x) for name, p in server_params(model, seed=seed).items()}
    return Gradient(
        model=model,
        at=at,
        gradient=loss_gradient(model, at, batch.x, batch.y, loss=loss),
        labels=None,
        batch_size=len(batch),
        shape=batch.shape,
        loss=loss,
    )


def _rms(found: Tensor, truth: Tensor) -> float:
    matched = found[hungarian(found, truth)]
    return float((matched - truth).flatten(1).square().sum(1).mean().sqrt())


def _bright(x: Tensor) -> Tensor:
    return x / x.amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-9)
