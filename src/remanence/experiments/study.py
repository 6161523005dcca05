"""A study measures something that is no reconstruction, and draws it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from time import perf_counter
from typing import Literal, TypeAlias, final, get_args

import torch
from torch import Tensor

from remanence.errors import BadInput, unknown_name
from remanence.experiments.claim import Claim, check_claims
from remanence.experiments.device import device_of
from remanence.metrics import Interval
from remanence.types import Caveat

Role: TypeAlias = Literal["ours", "chance", "printed", "limit"]
Kind: TypeAlias = Literal["lines", "bars", "points"]


@final
@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number with its 95 % interval and the level that chance reaches (None only where that means nothing)."""

    name: str
    value: float
    meaning: str
    low: float | None = None
    high: float | None = None
    chance: float | None = None

    @classmethod
    def of(cls, name: str, found: Interval, *, meaning: str, chance: float | None = None) -> "Measure":
        return cls(name=name, value=found.value, low=found.low, high=found.high, chance=chance, meaning=meaning)


@final
@dataclass(frozen=True, kw_only=True)
class Series:
    """Values over numbers, or over texts in a figure of bars; `low` and `high` bound them."""

    name: str
    x: tuple[float, ...] | tuple[str, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    role: Role = "ours"

    @classmethod
    def of(cls, name: str, x: tuple[float, ...] | tuple[str, ...], found: Sequence[Interval]) -> "Series":
        low, high = tuple(each.low for each in found), tuple(each.high for each in found)
        return cls(name=name, x=x, y=tuple(each.value for each in found), low=low, high=high)

    def __post_init__(self) -> None:
        lengths = {name: len(v) for name in ("x", "y", "low", "high") if (v := getattr(self, name)) is not None}
        if len(set(lengths.values())) > 1 or (self.low is None) != (self.high is None):
            raise BadInput(f"`x`, `y`, `low` and `high` of series `{self.name}` must be equally long, got {lengths}")
        texts = [x for x in self.x if isinstance(x, str)]
        if len(texts) not in (0, len(self.x)) or not all(isinstance(x, str) or isfinite(x) for x in self.x):
            raise BadInput(f"`x` of series `{self.name}` must hold finite numbers, or texts only, got {self.x}")
        if self.role not in get_args(Role):
            raise unknown_name("role of a series", self.role, get_args(Role))


@final
@dataclass(frozen=True, kw_only=True)
class Figure:
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    kind: Kind = "lines"
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise unknown_name("kind of figure", self.kind, get_args(Kind))
        if self.kind != "bars" and any(isinstance(x, str) for series in self.series for x in series.x):
            raise BadInput(f"figure `{self.title}` has texts for `x`, and {self.kind} need numbers: make it bars")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What a study gave. `pictures` are rows of images in [0, 1], by what they show; a redacted run leaves them out,
    and figures of points with them. `verdict` is a sentence in the place of the list of measures."""

    measures: tuple[Measure, ...]
    figures: tuple[Figure, ...] = ()
    pictures: Mapping[str, Tensor] = field(default_factory=dict)
    caveats: tuple[Caveat, ...] = ()
    verdict: str | None = None

    def __post_init__(self) -> None:
        for name, x in self.pictures.items():
            if x.ndim != 4:
                raise BadInput(f"picture `{name}` must be (n, channels, height, width), got {tuple(x.shape)}")


@final
@dataclass(frozen=True, kw_only=True)
class Study:
    """Something measured that is no reconstruction; `about` says in one plain sentence what."""

    label: str
    about: str
    run: Callable[[int, torch.device], Outcome]  # from a seed and a device
    claims: tuple[Claim, ...] = ()


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class StudyResult:
    study: Study
    outcome: Outcome
    seconds: float
    device: torch.device

    @property
    def label(self) -> str:
        return self.study.label


def run_study(study: Study, *, seed: int = 0, device: torch.device | str = "cpu") -> StudyResult:
    """Run the study once on `device` and return its result with the seconds it took."""
    start, device = perf_counter(), device_of(device)
    outcome = study.run(seed, device)
    check_claims(study.claims, {measure.name: None for measure in outcome.measures})
    return StudyResult(study=study, outcome=outcome, seconds=perf_counter() - start, device=device)
