"""Criteria: which measured quantities decide a claim of a paper, and how.

What is not met is missed only where its interval excludes the claim too; else it is open. So is every number without an
interval, on either side of the claim, but for one that has no sampling error. An ordering is met only where the
interval of the difference agrees.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from math import hypot, sqrt
from statistics import fmean, stdev
from typing import Literal, Protocol, TypeAlias, final

from remanence.errors import BadInput
from remanence.experiments.claim import Claim

BETTER = 0.1  # by more than this fraction of the printed number, ours beats it
Verdict: TypeAlias = Literal["beaten", "met", "missed", "open"]


@final
@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number in the results of a recipe: the name of a measure or of a score (`mean mse`, `share found`).

    Several `experiments` are repetitions of one, such as victims, over which it is averaged.
    """

    recipe: str
    experiments: tuple[str, ...]  # labels
    name: str


@final
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A measured number with its 95 % interval and the level that chance reaches; `by_seed` has the number of each
    seed, where it is their mean."""

    value: float
    low: float | None = None
    high: float | None = None
    chance: float | None = None
    by_seed: Mapping[int, float] = field(default_factory=dict)

    @property
    def is_point(self) -> bool:
        """Whether it has no interval."""
        return self.low is None and self.high is None

    @classmethod
    def mean(cls, found: Sequence["Estimate"]) -> "Estimate":
        """The mean of several estimates, with Student's 95 % interval over their values.

        To either side it reaches at least as far as their own intervals say of a mean, so that values which happen to
        be equal are no surer than each of them; equal values without intervals remain without one.
        """
        from scipy.stats import t

        values, n = [each.value for each in found], len(found)
        mean, reach = fmean(values), float(t.ppf(0.975, n - 1)) * stdev(values) / sqrt(n)
        chances = [each.chance for each in found if each.chance is not None]
        chance = fmean(chances) if chances else None
        if not reach and all(each.is_point for each in found):
            return cls(value=mean, chance=chance)
        below, above = (sqrt(fmean((each.value - end(each)) ** 2 for each in found) / n) for end in (_lower, _upper))
        return cls(value=mean, low=mean - max(reach, below), high=mean + max(reach, above), chance=chance)


class Criterion(Protocol):
    """A test of measured quantities."""

    @property
    def quantities(self) -> tuple[Quantity, ...]: ...

    @property
    def printed(self) -> float | None:
        """The number in the paper, where it prints one."""
        ...

    @property
    def less_effort_suffices(self) -> bool:
        """Whether an attack that meets it with less effort than the paper's meets it all the more."""
        ...

    def verdict(self, found: Sequence[Estimate], /) -> Verdict:
        """What the estimates, in the order of `quantities`, say."""
        ...

    def ours(self, found: Sequence[Estimate], /) -> Estimate:
        """The number that stands for them in the table: of a comparison, the ratio that decides."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class Printed:
    """Ours is no worse than a printed number by more than the claim's tolerance; and it beats it by more than a tenth,
    and with all of its interval."""

    quantity: Quantity
    claim: Claim

    def __post_init__(self) -> None:
        if self.claim.printed is None:
            message = f"the claim about `{self.claim.quantity}` prints no number: use LowerBound or UpperBound"
            raise BadInput(message, code="empty", argument="claim")

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (self.quantity,)

    @property
    def printed(self) -> float | None:
        return self.claim.printed

    @property
    def less_effort_suffices(self) -> bool:
        return self.claim.higher_is_better is not None

    def verdict(self, found: Sequence[Estimate]) -> Verdict:
        value, printed, up = found[0].value, self.claim.printed or 0.0, self.claim.higher_is_better
        if found[0].is_point:
            return "open"
        if not self.claim.holds(value):
            nearest = min(max(printed, _lower(found[0])), _upper(found[0]))  # of the interval to print
            return "open" if self.claim.holds(nearest) else "missed"
        worst = found[0].low if up else found[0].high
        if up is None or worst is None:
            return "met"
        gain, surely = (value - printed, worst > printed) if up else (printed - value, worst < printed)
        return "beaten" if surely and gain > BETTER * abs(printed) else "met"

    def ours(self, found: Sequence[Estimate]) -> Estimate:
        return found[0]

    def within(self, rtol: float) -> "Printed":
        """The criterion with another relative tolerance."""
        return replace(self, claim=replace(self.claim, rtol=rtol))


@final
@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """Every quantity is at least `bound`; `printed` where the paper prints it.

    With `exact` they have no sampling error, as a rank or the outcome of a test: without an interval they decide."""

    quantities: tuple[Quantity, ...]
    bound: float
    printed: float | None = None
    less_effort_suffices: bool = False
    exact: bool = False

    def verdict(self, found: Sequence[Estimate]) -> Verdict:
        if not self.exact and any(each.is_point for each in found):
            return "open"
        wrong = [each for each in found if each.value < self.bound]
        return "met" if not wrong else "missed" if any(_upper(each) < self.bound for each in wrong) else "open"

    def ours(self, found: Sequence[Estimate]) -> Estimate:
        return min(found, key=lambda each: each.value)


@final
@dataclass(frozen=True, kw_only=True)
class UpperBound:
    """Every quantity is at most `bound`; `printed` where the paper prints it.

    With `surely` all of its interval is, as there must be where the bound is what chance reaches. `exact` as in
    `LowerBound`."""

    quantities: tuple[Quantity, ...]
    bound: float
    printed: float | None = None
    less_effort_suffices: bool = False
    surely: bool = False
    exact: bool = False

    def verdict(self, found: Sequence[Estimate]) -> Verdict:
        if not self.exact and any(each.is_point for each in found):
            return "open"
        wrong = [each for each in found if (_upper(each) if self.surely else each.value) > self.bound]
        return "met" if not wrong else "missed" if any(_lower(each) > self.bound for each in wrong) else "open"

    def ours(self, found: Sequence[Estimate]) -> Estimate:
        return max(found, key=lambda each: each.value)


@final
@dataclass(frozen=True, kw_only=True)
class AboveChance:
    """The interval of a quantity lies above what chance reaches; open where it includes that."""

    quantity: Quantity
    printed: None = None
    less_effort_suffices: bool = False

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (self.quantity,)

    def verdict(self, found: Sequence[Estimate]) -> Verdict:
        (each,) = found
        chance = each.chance or 0.0
        if each.is_point:
            return "open"
        return "met" if _lower(each) > chance else "open" if _upper(each) > chance else "missed"

    def ours(self, found: Sequence[Estimate]) -> Estimate:
        return found[0]


@final
@dataclass(frozen=True, kw_only=True)
class Exceeds:
    """Each of the larger quantities exceeds `factor` times each of the smaller ones.

    With `beyond_chance` the larger ones must lie above what chance reaches: below it an order says nothing."""

    larger: tuple[Quantity, ...]
    smaller: tuple[Quantity, ...]
    factor: float = 1.0
    beyond_chance: bool = False
    printed: None = None
    less_effort_suffices: bool = False

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (*self.larger, *self.smaller)

    def verdict(self, found: Sequence[Estimate]) -> Verdict:
        larger = found[: len(self.larger)]
        if self.beyond_chance and any(_lower(each) <= (each.chance or 0.0) for each in larger):
            return "open"
        return _ordered(self._pairs(found), self.factor)

    def ours(self, found: Sequence[Estimate]) -> Estimate:
        return _smallest_ratio(self._pairs(found))

    def _pairs(self, found: Sequence[Estimate]) -> list[tuple[Estimate, Estimate]]:
        return list(product(found[: len(self.larger)], found[len(self.larger) :]))


@final
@dataclass(frozen=True, kw_only=True)
class Increasing:
    """The quantities grow in their order."""

    quantities: tuple[Quantity, ...]
    printed: None = None
    less_effort_suffices: bool = False

    def verdict(self, found: Sequence[Estimate]) -> Verdict:
        return _ordered(_neighbours(found))

    def ours(self, found: Sequence[Estimate]) -> Estimate:
        return _smallest_ratio(_neighbours(found))


def _neighbours(found: Sequence[Estimate]) -> list[tuple[Estimate, Estimate]]:
    return [(after, before) for before, after in pairwise(found)]


def _ordered(pairs: Sequence[tuple[Estimate, Estimate]], factor: float = 1.0) -> Verdict:
    """Whether the first of each pair exceeds `factor` times the second by more than chance: the 95 % interval of their
    difference lies above zero. One below zero misses, any other leaves it open.
    Numbers without an interval, such as the count of one victim, decide nothing."""
    if any(each.is_point for pair in pairs for each in pair):
        return "open"
    differences = [_difference(one, other, factor) for one, other in pairs]
    if any(_upper(each) < 0 for each in differences):
        return "missed"
    return "met" if all(_lower(each) > 0 for each in differences) else "open"


def _difference(one: Estimate, other: Estimate, factor: float) -> Estimate:
    """The difference seed by seed, where both have the same ones; else from their intervals (Zou and Donner 2008)."""
    if one.by_seed.keys() == other.by_seed.keys() and len(one.by_seed) > 1:
        paired = [Estimate(value=value - factor * other.by_seed[seed]) for seed, value in one.by_seed.items()]
        if not (found := Estimate.mean(paired)).is_point:  # equal differences are no surer than the numbers themselves
            return found
    value = one.value - factor * other.value
    below = hypot(one.value - _lower(one), factor * (_upper(other) - other.value))
    above = hypot(_upper(one) - one.value, factor * (other.value - _lower(other)))
    return Estimate(value=value, low=value - below, high=value + above)


def _lower(each: Estimate) -> float:
    return each.value if each.low is None else each.low


def _upper(each: Estimate) -> float:
    return each.value if each.high is None else each.high


def _smallest_ratio(pairs: Sequence[tuple[Estimate, Estimate]]) -> Estimate:
    """The ratio of the pair that is nearest to failing, 1 by chance; the first number where one is not positive."""
    if any(other.value <= 0 for _, other in pairs):
        return pairs[0][0]
    return Estimate(value=min(one.value / other.value for one, other in pairs), chance=1.0)
