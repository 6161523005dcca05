"""How large a batch can be: Stein on batches of 1 to 32 images, with the condition numbers of the batches."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from remanence.attacks import Stein
from remanence.data import Split
from remanence.experiments import Experiment, Outcome, Point, Scale
from remanence.metrics.statistics import bootstrap_mean
from remanence.seeds import derive_seed
from remanence_recipes.curves import figure_along, measured, measures_along
from remanence_recipes.wang2023.images import SCORED, image_batches, server_victims

SIZES: dict[Scale, tuple[int, ...]] = {"smoke": (1, 4), "small": (1, 2, 4, 8), "full": (1, 2, 4, 8, 16, 32)}
SETTINGS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "MNIST, tanh": ("mnist", nn.Tanh),
    "MNIST, ReLU": ("mnist", nn.ReLU),
    "CIFAR-10, tanh": ("cifar10", nn.Tanh),
}


def stein_batch_size(scale: Scale) -> Sequence[Experiment]:
    """Stein on batches of 1 to 32 images from one gradient of 5,000 rows, with the condition number of the batches."""
    settings = {"digits, tanh": ("digits", nn.Tanh)} if scale == "smoke" else SETTINGS
    attacked = [
        Experiment(
            label=f"{name}, batches of {size}",
            victims=server_victims(
                partial(_batches, scale, data, size),
                activation,
                rows=2000 if scale == "smoke" else 5000,
                per_victim=size,
            ),
            attack=Stein(restarts=1),  # one, so that the time does not grow where nothing is found
            point=Point(axis="records in the batch", value=size, series=name, log=True),
            tuned_on_truth=data == "cifar10",
            evaluations=SCORED,
        )
        for name, (data, activation) in settings.items()
        for size in SIZES[scale]
        if not (activation is nn.ReLU and size > 16)
    ]
    sources = tuple(dict.fromkeys(data for data, _ in settings.values()))
    about = "The largest over the smallest singular value of the records of a batch: 1 where they are orthonormal."
    return [*attacked, measured("condition of the batches", about, partial(_conditions, scale, sources))]


def _batches(scale: Scale, data: str, size: int, seed: int) -> Split:
    """As many records at every size: 32 in all."""
    return image_batches(data, size, max(1, (4 if scale == "smoke" else 32) // size), seed)


def _conditions(scale: Scale, sources: Sequence[str], seed: int, _device: torch.device) -> Outcome:
    sizes, found = SIZES[scale], {}
    for data in sources:
        batches = [_batches(scale, data, size, seed).private.x.flatten(1).unflatten(0, (-1, size)) for size in sizes]
        found[data] = [
            bootstrap_mean(torch.linalg.cond(x), seed=derive_seed(seed, "interval", size))
            for size, x in zip(sizes, batches, strict=True)
        ]
    labels = ("records in the batch", "condition number")
    figure = figure_along("Condition of the batches", labels, found, sizes, log_x=True, log_y=True)
    meaning = "mean over the batches that are attacked; the error of the paper's theorem grows with its square"
    points = [f"batches of {size}" for size in sizes]
    return Outcome(
        measures=measures_along(found, points, meaning=meaning, chance=[None] * len(sizes)), figures=(figure,)
    )
