"""The committed results as rows of tables: what a paper prints, what was measured here, and what chance reaches."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import final

from remanence.experiments.results import AttackSummary, ClaimCheck, Result, parse_results
from remanence.metrics.exchangeability import FDR

RESULTS = Path(__file__).parents[1] / "results"
UNCLAIMED = 3  # measures of an experiment without claims that a table shows; the JSON holds all
POOLED = 0.01  # what chance finds in results from before the rank test
DAGGER = "†"  # of what was counted before it


@final
@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A measured quantity as a table shows it."""

    name: str
    ours: str
    low: float | None = None
    high: float | None = None
    chance: float | None = None
    chance_text: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity of one experiment, with the claim about it where there is one."""

    file: str
    result: Result
    quantity: Quantity
    claim: ClaimCheck | None

    @property
    def attack(self) -> str:
        """The attack's name; of a measurement over several attacks, the one that the quantity names."""
        if self.result.attack is not None:
            return self.result.attack.call.partition("(")[0].partition(".")[0]
        return self.quantity.name.rpartition(", ")[2]

    @property
    def page(self) -> str:
        """The page of its attack in docs/methods."""
        names = {"GradientMatching": "gradient-matching", "FirstLayer": "first-layer", "NewtonStep": "newton-step"}
        return names.get(self.attack, self.attack.lower())

    @property
    def printed(self) -> str:
        return "" if self.claim is None else number(self.claim.printed)

    @property
    def interval(self) -> str:
        low, high = self.quantity.low, self.quantity.high
        return "" if low is None or high is None else f"{number(low)} to {number(high)}"

    @property
    def chance(self) -> str:
        return self.quantity.chance_text or number(self.quantity.chance)

    @property
    def budget(self) -> str:
        """Fractions of the paper's budget, where the result states them."""
        budget = self.result.budget
        return "" if budget is None else ", ".join(f"{x:.2g} of the {name}" for name, x in budget.fractions().items())

    @property
    def status(self) -> str:
        """This one number against print: `better` by more than a tenth; `as printed`, no worse by more than the claim's
        tolerance; `worse`; `another scale`, not compared; `no claim`: nothing is printed. It decides no claim."""
        claim, chance = self.claim, self.quantity.chance
        if claim is None or claim.printed is None:
            reached = None if claim is None else claim.reached
            return "no claim" if reached is None else f"no claim; our target {'reached' if reached else 'missed'}"
        if claim.holds is None or claim.measured is None:
            return "another scale"
        if not claim.holds:
            return "worse"
        gain = (claim.measured - claim.printed) / abs(claim.printed)
        better = chance is not None and (gain if chance < claim.printed else -gain) > 0.1
        return "better" if better else "as printed"


def read_results() -> Iterator[tuple[str, list[Result]]]:
    """Every committed file, `paper/recipe`, with its results."""
    for path in sorted(RESULTS.glob("*/*.json")):
        yield f"{path.parent.name}/{path.stem}", parse_results(path.read_text(encoding="utf-8"), where=str(path))


def read_rows() -> Iterator[Row]:
    """The rows of the tables: of an attack the number of records found, and its claims, or the mean of the primary
    metric in the same row; of other experiments their claims, or the first few measures."""
    for file, results in read_results():
        for result in results:
            claims = [claim.quantity for claim in result.claims]
            shown = claims or [measure.name for measure in result.measures[:UNCLAIMED]]
            if result.attack is not None:
                primary = result.attack.scores.primary
                shown = ["found", *claims] if claims else [f"found; mean {primary}", *shown]
            yield from (row(file, result, name) for name in shown)


def row(file: str, result: Result, name: str) -> Row:
    quantities = {quantity.name: quantity for quantity in _quantities(result)}
    claim = {each.quantity: each for each in result.claims}.get(name)
    known = quantities.get(name) or Quantity(name=name, ours=number(claim.measured if claim else None))
    return Row(file=file, result=result, quantity=known, claim=claim)


def _quantities(result: Result) -> Iterator[Quantity]:
    """All that one experiment measured."""
    pooled = _is_pooled(result)
    for each in result.measures:
        ours = number(each.value) + (DAGGER if pooled and "found" in each.name else "")
        yield Quantity(name=each.name, ours=ours, low=each.low, high=each.high, chance=each.chance)
    if result.attack is not None:
        yield from _scores(result.attack)


def _is_pooled(result: Result) -> bool:
    """Whether records were counted as found before the rank test; of measurements only their measures say so."""
    if result.attack is not None:
        return result.attack.scores.test is None
    return any(
        "both nulls" in each.meaning
        or (
            each.name.startswith("share found")
            and each.chance == POOLED
            and not isclose(POOLED, FDR * (each.value or 0.0))  # as the rank test has it
        )
        for each in result.measures
    )


def _scores(attack: AttackSummary) -> Iterator[Quantity]:
    scores, found, test = attack.scores, attack.scores.found, attack.scores.test
    low, high = found.fraction.low, found.fraction.high
    units = scores.records if test is None or test.subjects is None else test.subjects
    text = f"{found.count:,} of {units:,}" + (DAGGER if test is None else "")
    by_chance = POOLED if test is None else test.false / units
    yield Quantity(name="found", ours=text, low=low, high=high, chance=by_chance)
    for name, metric in scores.metrics.items():
        mean, chance = number(metric.mean), attack.nulls.unrelated.metrics[name].mean
        yield Quantity(name=f"mean {name}", ours=mean, low=metric.low, high=metric.high, chance=chance)
        levels = f"{number(by_chance)}; {number(chance)}"
        yield Quantity(name=f"found; mean {name}", ours=f"{text}; {mean}", low=low, high=high, chance_text=levels)


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"
