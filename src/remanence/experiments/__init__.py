"""Experiments: victims, attacks on them and evaluations, and the results of a run. A recipe is a function from a scale
to experiments."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from remanence.experiments.claim import Budget, Claim
from remanence.experiments.experiment import (
    Completed,
    Evaluation,
    Experiment,
    Measurement,
    Point,
    Reconstructed,
    Trial,
    prepare,
    run_experiment,
    sweep,
)
from remanence.experiments.finding import Finding, attack_cases
from remanence.experiments.outcome import Figure, Measure, Outcome, Series
from remanence.experiments.victims import Prepared, Victims

Scale: TypeAlias = Literal["smoke", "small", "full"]  # seconds; minutes on a laptop; one GPU
SCALES: tuple[Scale, ...] = ("smoke", "small", "full")
Recipe: TypeAlias = Callable[[Scale], Sequence[Experiment]]

__all__ = [
    "SCALES",
    "Budget",
    "Claim",
    "Completed",
    "Evaluation",
    "Experiment",
    "Figure",
    "Finding",
    "Measure",
    "Measurement",
    "Outcome",
    "Point",
    "Prepared",
    "Recipe",
    "Reconstructed",
    "Scale",
    "Series",
    "Trial",
    "Victims",
    "attack_cases",
    "prepare",
    "run_experiment",
    "sweep",
]
