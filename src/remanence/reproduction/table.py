"""The table of all claims: printed, ours, chance, seeds, budget and a status that follows from results alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

from remanence.experiments import Budget
from remanence.experiments.summary import number
from remanence.reproduction.criteria import Printed
from remanence.reproduction.paper import Paper, PaperClaim
from remanence.reproduction.pooling import Archive, Pooled

Status: TypeAlias = Literal["beaten", "reproduced", "smaller", "open", "contradicted", "not run"]
STATUSES: tuple[Status, ...] = get_args(Status)
EFFORT = frozenset({"iterations", "restarts", "shadows"})  # what the attacker spends; the others make the problem


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One claim as it is printed: `ours` is the quantity that decides it, of comparisons the smallest ratio.

    `tolerance` is the fraction of a printed number by which ours may be worse, or where neither side is better, differ.
    `budget` has our fraction of each resource of the paper's of which we spent another amount, `seeds` those over which
    ours is a mean, and `minutes` the time of one run of the deciding experiments on one H200.
    """

    paper: str
    where: str
    claim: str
    printed: float | None
    tolerance: float | None
    ours: float | None
    low: float | None
    high: float | None
    chance: float | None
    seeds: tuple[int, ...]
    budget: dict[str, float]
    status: Status
    recipe: str | None
    minutes: float


@final
@dataclass(frozen=True, kw_only=True)
class Decided:
    """A claim with its row."""

    claim: PaperClaim
    row: Row


def decide(papers: Sequence[Paper], archive: Archive) -> list[Decided]:
    """Every claim of the papers with what the results say about it."""
    return [Decided(claim=claim, row=_row(paper, claim, archive)) for paper in papers for claim in paper.claims]


def _row(paper: Paper, claim: PaperClaim, archive: Archive) -> Row:
    criterion = claim.criterion
    found = archive.pooled_together(claim.quantities)
    budget = _budget(found, archive) if found else {}
    ours = criterion.ours([each.estimate for each in found]) if criterion and found else None
    return Row(
        paper=paper.name,
        where=claim.where,
        claim=_text(claim),
        printed=number(criterion.printed if criterion else claim.printed),
        tolerance=criterion.claim.rtol if isinstance(criterion, Printed) else None,
        ours=number(ours.value) if ours else None,
        low=number(ours.low) if ours else None,
        high=number(ours.high) if ours else None,
        chance=number(ours.chance) if ours else None,
        seeds=tuple(sorted({seed for each in found or () for seed in each.seeds})),
        budget=budget,
        status=_status(claim, found, budget) if found else "not run",
        recipe=next(iter(claim.recipes), None),
        minutes=round(_minutes(claim, archive), 1),
    )


def _text(claim: PaperClaim) -> str:
    """What the paper says, with how our setting differs, and how what it leaves open was read."""
    notes = {"Here": claim.differs, "Left open, and read as": claim.assumes}
    return " ".join((claim.text, *(f"{name}: {note}." for name, note in notes.items() if note)))


def _status(claim: PaperClaim, found: Sequence[Pooled], budget: dict[str, float]) -> Status:
    """A claim is decided at the paper's scale alone, but one that is met with less effort than the paper's is met. What
    rests on a reading of ours of the paper is neither beaten nor contradicted by it."""
    assert claim.criterion is not None
    verdict, less = claim.criterion.verdict([each.estimate for each in found]), claim.lacking(budget)
    met = verdict in ("met", "beaten")
    if met and claim.criterion.less_effort_suffices:
        less -= EFFORT
    if less or claim.differs or not all(each.full_scale for each in found):
        return "smaller"
    if verdict == "open" or (verdict == "missed" and claim.assumes):
        return "open"
    return "contradicted" if not met else "beaten" if verdict == "beaten" and not claim.assumes else "reproduced"


def _budget(found: Sequence[Pooled], archive: Archive) -> dict[str, float]:
    """The smallest fraction of each resource over the results, of those that are not the paper's; repetitions that have
    no result yet are victims that are missing."""
    spent = [budget for each in found for result in each.results if (budget := archive.budget(result))]
    spent += [Budget(victims=each.repeated) for each in found]
    fractions: dict[str, float] = {}
    for budget in spent:
        for name, fraction in budget.fractions().items():
            fractions[name] = min(fraction, fractions.get(name, fraction))
    return {name: float(f"{fraction:.3g}") for name, fraction in fractions.items() if fraction != 1.0}


def _minutes(claim: PaperClaim, archive: Archive) -> float:
    """What the deciding experiments took, by their results; the estimate of the claim where some of them have none and
    it is longer than what the others took."""
    experiments = {(each.recipe, label) for each in claim.quantities for label in each.experiments}
    taken = [minutes_of(archive, recipe, label, estimate=claim.minutes) for recipe, label in experiments]
    known = [each for each in taken if each is not None]
    return sum(known) if known and len(known) == len(taken) else max(claim.minutes, sum(known))


def minutes_of(archive: Archive, recipe: str, experiment: str, *, estimate: float) -> float | None:
    """The mean minutes of an experiment over its results of full scale on a GPU; None where there are none.

    Those on a CPU count where there is no `estimate`: they are more.
    """
    results = archive.results(recipe, experiment)
    on_gpu = [result for result in results if "CPU" not in result.hardware.device]
    counted = on_gpu or ([] if estimate else results)
    return sum(result.seconds for result in counted) / len(counted) / 60 if counted else None
