"""The committed results as rows of tables: what a paper prints, what was measured here, and what chance reaches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from remanence.experiments.results import ClaimCheck, Result, parse_results

RESULTS = Path(__file__).parents[1] / "results"
UNCLAIMED = 3  # measures of an experiment without claims that a table shows; the JSON holds all


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity of one experiment."""

    file: str
    experiment: str
    attack: str
    quantity: str
    where: str
    printed: float | None
    ours: str
    interval: str
    chance: str
    status: str
    budget: str
    seconds: float
    device: str
    seed: int
    commit: str

    @property
    def printed_text(self) -> str:
        return number(self.printed)

    @property
    def page(self) -> str:
        """The page of its attack in docs/methods."""
        return {"GradientMatching": "gradient-matching", "FirstLayer": "first-layer"}.get(
            self.attack, self.attack.lower()
        )


@final
@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number of an experiment with its interval and the level of chance; texts stand in place of numbers."""

    name: str
    ours: str
    low: float | None
    high: float | None
    chance: float | None = None
    chance_text: str = ""


def read_results() -> Iterator[tuple[str, list[Result]]]:
    """Every committed file, `paper/recipe`, with its results."""
    for path in sorted(RESULTS.glob("*/*.json")):
        yield f"{path.parent.name}/{path.stem}", parse_results(path.read_text(encoding="utf-8"), where=str(path))


def read_rows(*, all_measures: bool = False) -> Iterator[Row]:
    for file, results in read_results():
        for result in results:
            yield from _rows(file, result, all_measures)


def _rows(file: str, result: Result, all_measures: bool) -> Iterator[Row]:
    measured = {each.name: each for each in _quantities(result)}
    claims = {each.quantity: each for each in result.claims}
    call = result.attack.call if result.attack else ""
    for name in measured if all_measures else _shown(result, list(claims), list(measured)):
        value, claim = measured.get(name), claims.get(name)
        yield Row(
            file=file,
            experiment=result.label,
            attack=call.partition("(")[0] or ("KKT" if name.endswith("KKT") else "Stationarity"),
            quantity=name,
            where=claim.where if claim else "",
            printed=claim.printed if claim else None,
            ours=value.ours if value else number(claim.measured if claim else None),
            interval=_interval(value.low, value.high) if value else "",
            chance=(value.chance_text or number(value.chance)) if value else "",
            status=_status(claim, value.chance if value else None),
            budget=_budget(result),
            seconds=result.seconds,
            device=result.hardware.device.removeprefix("NVIDIA ").removesuffix(" CPU"),
            seed=result.seed,
            commit=result.commit or "",
        )


def _shown(result: Result, claims: list[str], measured: list[str]) -> list[str]:
    """Of an attack the number of records found, and its claims, or the mean of the primary metric in the same row; of
    other experiments their claims, or the first few measures."""
    if result.attack:
        return ["found", *claims] if claims else [f"found; mean {result.attack.scores.primary}"]
    return claims or measured[:UNCLAIMED]


def _quantities(result: Result) -> Iterator[Quantity]:
    """All that one experiment measured."""
    if attack := result.attack:
        scores, unrelated = attack.scores, attack.nulls.unrelated.metrics
        fraction, text = scores.found.fraction, f"{scores.found.count:,} of {scores.records:,}"
        found = Quantity(name="found", ours=text, chance=scores.fpr, low=fraction.low, high=fraction.high)
        yield found
        for name, metric in scores.metrics.items():
            mean, level = number(metric.mean), unrelated[name].mean
            yield Quantity(name=f"mean {name}", ours=mean, chance=level, low=metric.low, high=metric.high)
            both = f"{scores.fpr}; {number(level)}"
            yield replace(found, name=f"found; mean {name}", ours=f"{text}; {mean}", chance=None, chance_text=both)
    for measure in result.measures:
        ours, low, high = number(measure.value), measure.low, measure.high
        yield Quantity(name=measure.name, ours=ours, chance=measure.chance, low=low, high=high)


def _budget(result: Result) -> str:
    """Our amount of each resource as a fraction of the paper's."""
    fractions = result.budget.fractions() if result.budget else {}
    return ", ".join(f"{fraction:.2g} of the {name}" for name, fraction in fractions.items())


def _status(claim: ClaimCheck | None, chance: float | None) -> str:
    """`beaten`: better than print by more than a tenth; `reproduced`: no worse than print by more than the claim's
    tolerance; `missed`: worse; `smaller`: measured at a smaller scale, not compared; `no claim`: nothing is printed."""
    if claim is None or claim.printed is None:
        target = claim.reached if claim else None
        return "no claim" if target is None else f"no claim; our target {'reached' if target else 'missed'}"
    if claim.holds is None or claim.measured is None:
        return "smaller"
    if not claim.holds:
        return "missed"
    higher = chance is not None and chance < claim.printed
    gain = (claim.measured - claim.printed if higher else claim.printed - claim.measured) / abs(claim.printed)
    return "beaten" if chance is not None and gain > 0.1 else "reproduced"


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{number(low)} to {number(high)}"
