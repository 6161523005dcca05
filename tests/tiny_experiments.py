"""Experiments that run in a tenth of a second: a real victim, a real release, and an attack that guesses."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch

from remanence import SGD, Data, Reconstruction, Split, Training, split
from remanence.attacks import Fitting, RecoNN
from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Reconstructed, Series, Victims
from remanence.metrics import MSE, identity
from remanence.models import mlp
from remanence.releases import KnowsFinal, all_but_one, weights_only

PARTS = {"private": 20, "fixed": 10, "public": 5, "test": 40}  # with fewer private records the nulls take longer


@final
@dataclass(frozen=True, kw_only=True)
class Guess:
    """The same grey record for each of `records` withheld ones."""

    grey: float = 0.5
    records: int = 20

    def run(self, release: KnowsFinal, *, seed: int) -> Reconstruction:
        return Reconstruction(x=torch.full((self.records, *release.shape), self.grey))


def made_data(n: int = 80, *, shape: tuple[int, ...] = (1, 4, 4)) -> Data:
    """Two classes, the second brighter, so that a victim can learn to tell them."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 2
    x = torch.rand(n, *shape, generator=generator) / 2 + y.reshape(-1, *[1] * len(shape)) / 2
    return Data(x=x, y=y, num_classes=2, name="made")


def cut(source: Callable[[], Data], seed: int, **counts: int) -> Split:
    return split(source(), **(PARTS | counts), seed=seed)


def tiny_victims(**changes: Any) -> Victims:
    fields: dict[str, Any] = {
        "split": partial(cut, made_data),
        "model": lambda data: mlp(data.shape, data.num_classes, hidden=(3,)),
        "training": Training(optimizer=SGD(lr=0.5), epochs=8),
        "reveal": weights_only,
    }
    return Victims(**(fields | changes))


def tiny_experiment(label: str = "tiny", **changes: Any) -> Experiment:
    """`changes` are fields of the experiment, of its victims or of its evaluation."""
    of_victims, of_scores = (
        {name: changes.pop(name) for name in [*changes] if name in kind.__dataclass_fields__}
        for kind in (Victims, Reconstructed)
    )
    scores: dict[str, Any] = {"matching": identity, "metrics": (MSE,)} | of_scores
    fields: dict[str, Any] = {
        "label": label,
        "victims": tiny_victims(**of_victims),
        "attack": Guess(),
        "evaluations": (Reconstructed(**scores),),
    }
    return Experiment(**(fields | changes))


def tiny_shadow_experiment(label: str, **changes: Any) -> Experiment:
    """One whose attack learns from shadow models."""
    attack = RecoNN(hidden=(8,), fitting=Fitting(epochs=1))
    return tiny_experiment(label, **({"reveal": all_but_one, "per_victim": 1, "attack": attack} | changes))


def tiny_outcome(seed: int, device: torch.device) -> Outcome:
    """A measure that follows the seed, a curve, and a point and a picture for each of four records."""
    pictures = torch.rand(4, 1, 3, 3, generator=torch.Generator().manual_seed(seed))
    value = float(pictures.mean())
    four = tuple(float(picture.mean()) for picture in pictures)
    return Outcome(
        measures=(Measure(name="mean grey", value=value, low=0.0, high=1.0, chance=0.5, meaning="Of four pictures."),),
        figures=(
            Figure(
                title="A curve", x_label="step", y_label="grey", series=(Series(name="a", x=(0, 1), y=(0.5, value)),)
            ),
            Figure(
                title="Each", x_label="i", y_label="grey", kind="points", series=(Series(name="b", x=four, y=four),)
            ),
        ),
        pictures={"greys": pictures},
    )


def tiny_measurement(
    label: str = "a measurement", *, run: Callable[[int, torch.device], Outcome] = tiny_outcome, **changes: Any
) -> Experiment:
    """An experiment that measures without an attack."""
    fields = {"label": label, "about": "How grey pictures are.", "evaluations": (Measurement(measure=run),)}
    return Experiment(**(fields | changes))
