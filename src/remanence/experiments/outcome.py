"""What evaluations give: measures with intervals and chance levels, figures, pictures, caveats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite, nan
from typing import Literal, TypeAlias, final, get_args

from torch import Tensor

from remanence.errors import BadInput, unknown_name
from remanence.experiments.finding import Finding
from remanence.metrics import Interval, Scores
from remanence.types import Caveat

Role: TypeAlias = Literal["ours", "chance", "printed", "limit", "flagged"]
Kind: TypeAlias = Literal["lines", "bars", "points"]


@final
@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number with its 95 % interval and the level that chance reaches (None only where chance means nothing)."""

    name: str
    value: float | None  # None: it could not be measured
    meaning: str
    low: float | None = None
    high: float | None = None
    chance: float | None = None

    @classmethod
    def from_interval(cls, name: str, found: Interval, *, meaning: str, chance: float | None = None) -> "Measure":
        return cls(name=name, value=found.value, low=found.low, high=found.high, chance=chance, meaning=meaning)


@final
@dataclass(frozen=True, kw_only=True)
class Series:
    """Values over numbers, or over texts in a figure of bars; `low` and `high` bound them."""

    name: str
    x: tuple[float, ...] | tuple[str, ...]
    y: tuple[float | None, ...]  # None: a gap
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None
    role: Role = "ours"

    @classmethod
    def from_intervals(
        cls, name: str, x: tuple[float, ...] | tuple[str, ...], found: Sequence[Interval | Measure]
    ) -> "Series":
        low, high = tuple(each.low for each in found), tuple(each.high for each in found)
        return cls(name=name, x=x, y=tuple(each.value for each in found), low=low, high=high)

    def __post_init__(self) -> None:
        lengths = {name: len(v) for name in ("x", "y", "low", "high") if (v := getattr(self, name)) is not None}
        if len(set(lengths.values())) > 1 or (self.low is None) != (self.high is None):
            message = f"`x`, `y`, `low` and `high` of series `{self.name}` must be equally long, got {lengths}"
            raise BadInput(message, code="shape-mismatch", argument="x")
        texts = [x for x in self.x if isinstance(x, str)]
        if len(texts) not in (0, len(self.x)) or not all(isinstance(x, str) or isfinite(x) for x in self.x):
            message = f"`x` of series `{self.name}` must hold finite numbers, or texts only, got {self.x}"
            raise BadInput(message, code="wrong-type", argument="x")
        if self.role not in get_args(Role):
            raise unknown_name("role of a series", self.role, get_args(Role))


@final
@dataclass(frozen=True, kw_only=True)
class Figure:
    """Series over one axis: lines or points over numbers, bars over texts."""

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
            message = f"figure `{self.title}` has texts for `x`, and {self.kind} need numbers: make it bars"
            raise BadInput(message, code="wrong-type", argument="kind")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What an evaluation gives: the finding of an attack, measures, figures, rows of pictures, caveats.

    `pictures` are rows of images in [0, 1] by what they show; a redacted run leaves them out, and figures of points
    with them. `verdict` is a sentence that stands in place of the list of measures. `arrays` are small ones that tests
    can be computed from again.
    """

    finding: Finding | None = None
    measures: tuple[Measure, ...] = ()
    figures: tuple[Figure, ...] = ()
    pictures: Mapping[str, Tensor] = field(default_factory=dict)
    caveats: tuple[Caveat, ...] = ()
    verdict: str | None = None
    arrays: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, x in self.pictures.items():
            if x.ndim != 4:
                message = f"picture `{name}` must be (n, channels, height, width), got {tuple(x.shape)}"
                raise BadInput(message, code="shape-mismatch", argument="pictures")


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """What several evaluations of one trial give together; at most one of them may have a finding."""
    findings = [outcome.finding for outcome in outcomes if outcome.finding is not None]
    if len(findings) > 1:
        message = (
            f"one evaluation of an experiment may attack the releases, got {len(findings)}: make several experiments "
            "that hold the same `victims`"
        )
        raise BadInput(message, code="conflict", argument="evaluations")
    verdicts = [outcome.verdict for outcome in outcomes if outcome.verdict]
    return Outcome(
        finding=findings[0] if findings else None,
        measures=tuple(chain.from_iterable(outcome.measures for outcome in outcomes)),
        figures=tuple(chain.from_iterable(outcome.figures for outcome in outcomes)),
        pictures={name: x for outcome in outcomes for name, x in outcome.pictures.items()},
        caveats=tuple(chain.from_iterable(outcome.caveats for outcome in outcomes)),
        verdict=" ".join(verdicts) or None,
        arrays={name: x for outcome in outcomes for name, x in outcome.arrays.items()},
    )


def quantities_of(outcome: Outcome) -> dict[str, float]:
    """Every number a claim may be about, by name: of the scores, then of the measures."""
    measured = {measure.name: nan if measure.value is None else measure.value for measure in outcome.measures}
    return (_of_scores(outcome.finding.scores) if outcome.finding else {}) | measured


def _of_scores(scores: Scores) -> dict[str, float]:
    """The values of `metrics.evaluation.quantities`."""
    finite = {metric.name: v[v.isfinite()].double() for metric in scores.metrics for v in [scores.values[metric.name]]}
    medians = {f"median {name}": float(v.quantile(0.5)) if len(v) else nan for name, v in finite.items()}
    return (
        {f"mean {name}": mean.value for name, mean in scores.means.items()}
        | medians
        | {
            "share found": scores.fraction_found.value,
            "share closer than the nearest neighbour": scores.fraction_closer.value,
        }
    )
