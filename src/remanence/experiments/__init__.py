"""A recipe is a function from a scale to cells and studies."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from remanence.experiments.cell import Cell, CellResult, Point, Stage, prepare, run_cell
from remanence.experiments.claim import Claim
from remanence.experiments.refusal import Refusal
from remanence.experiments.study import Figure, Measure, Outcome, Series, Study, StudyResult, run_study

Scale: TypeAlias = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")
Recipe: TypeAlias = Callable[[Scale], Sequence[Cell | Study]]

__all__ = [
    "SCALES",
    "Cell",
    "CellResult",
    "Claim",
    "Figure",
    "Measure",
    "Outcome",
    "Point",
    "Recipe",
    "Refusal",
    "Scale",
    "Series",
    "Stage",
    "Study",
    "StudyResult",
    "prepare",
    "run_cell",
    "run_study",
]
