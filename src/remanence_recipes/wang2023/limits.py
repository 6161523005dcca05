"""How large a batch can be: from one record to 32, and how far from dependent the records of such batches are."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from remanence.attacks import Stein
from remanence.data import Split
from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Point, Scale, Series
from remanence.metrics import Interval
from remanence.metrics.statistics import bootstrap_mean
from remanence.seeds import derive_seed
from remanence_recipes.wang2023.images import batches_of, image_cell

SIZES: dict[Scale, tuple[int, ...]] = {"smoke": (1, 4), "small": (1, 2, 4, 8), "full": (1, 2, 4, 8, 16, 32)}
PAIRS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "MNIST, tanh": ("mnist", nn.Tanh),
    "MNIST, ReLU": ("mnist", nn.ReLU),
    "CIFAR-10, tanh": ("cifar10", nn.Tanh),
}


def limits(scale: Scale) -> Sequence[Experiment]:
    """Batches of 1 to 32 images from one gradient of 5,000 rows, beside the condition number of the batches."""
    pairs = {"digits, tanh": ("digits", nn.Tanh)} if scale == "smoke" else PAIRS
    cells = [
        image_cell(
            f"{name}, batches of {size}",
            partial(_cut, scale, data, size),
            per_victim=size,
            activation=activation,
            rows=2000 if scale == "smoke" else 5000,
            norm=None,
            attack=Stein(restarts=1),  # one, so that the time does not grow with what cannot be had
            point=Point(axis="records in the batch", value=size, series=name, log=True),
            tuned_on_truth=data == "cifar10",
        )
        for name, (data, activation) in pairs.items()
        for size in SIZES[scale]
        if not (activation is nn.ReLU and size > 16)
    ]
    about = "The largest over the smallest singular value of the records of a batch: 1 where they are at right angles."
    sources = tuple(dict.fromkeys(data for data, _ in pairs.values()))
    return [
        *cells,
        Experiment(
            label="condition of the batches",
            about=about,
            evaluations=(Measurement(measure=partial(_conditions, scale, sources)),),
        ),
    ]


def _cut(scale: Scale, data: str, size: int, seed: int) -> Split:
    """As many records at every size: 32 in all."""
    return batches_of(data, size, max(1, (4 if scale == "smoke" else 32) // size), seed)


def _conditions(scale: Scale, sources: Sequence[str], seed: int, _device: torch.device) -> Outcome:
    sizes = SIZES[scale]
    found = {data: [_condition(scale, data, size, seed) for size in sizes] for data in sources}
    meaning = "mean over the batches that are attacked; the error of the paper's theorem grows with its square"
    x = tuple(map(float, sizes))
    return Outcome(
        measures=tuple(
            Measure.from_interval(f"{data}, batches of {size}", each, meaning=meaning)
            for data, conditions in found.items()
            for size, each in zip(sizes, conditions, strict=True)
        ),
        figures=(
            Figure(
                title="Condition of the batches",
                x_label="records in the batch",
                y_label="condition number",
                series=tuple(Series.from_intervals(data, x, conditions) for data, conditions in found.items()),
                log_x=True,
                log_y=True,
            ),
        ),
    )


def _condition(scale: Scale, data: str, size: int, seed: int) -> Interval:
    stacked = _cut(scale, data, size, seed).private.x.flatten(1).unflatten(0, (-1, size))
    return bootstrap_mean(torch.linalg.cond(stacked), seed=derive_seed(seed, "interval", size))
