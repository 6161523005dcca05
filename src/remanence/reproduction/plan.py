"""Which runs close gaps in the table within so many minutes, and the runs themselves, which go on after a cut."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import final

from remanence.disk import one_process, replace_file
from remanence.experiments import Recipe
from remanence.experiments.folder import Run
from remanence.experiments.results import Result, dump_results
from remanence.experiments.run import Job, run_job
from remanence.reproduction.pooling import FULL, Archive, read_file
from remanence.reproduction.table import Decided, Status, minutes_of

GAPS: tuple[Status, ...] = ("not run", "smaller")
SLACK = 1.0  # minutes by which earlier runs may be late before the next one is left


@final
@dataclass(frozen=True, kw_only=True)
class Work:
    """The experiments of one recipe that claims wait for, at full scale and one seed."""

    recipe: str
    experiments: tuple[str, ...]  # labels
    seed: int
    minutes: float  # on one H200
    claims: int  # that wait for it


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """What fits into the minutes, the longest first, and what does not.

    No run closes the gap of claims that no recipe measures yet (`unmeasured`), nor of those whose recipe spends less
    than the paper or is of another setting (`short`).
    """

    chosen: tuple[Work, ...]
    left: tuple[Work, ...]
    unmeasured: int
    short: int

    @property
    def minutes(self) -> float:
        return sum(work.minutes for work in self.chosen)


def plan_runs(
    decided: Sequence[Decided], archive: Archive, *, minutes: float, statuses: Collection[Status] = GAPS, seed: int
) -> Plan:
    """The runs for the claims of these statuses whose results at `seed` are missing."""
    waiting = [each for each in decided if each.row.status in statuses]
    measured = [each for each in waiting if each.claim.criterion is not None]
    closable = [each for each in measured if not _is_short(each, archive)]
    works = sorted(_works(closable, archive, seed), key=lambda work: -work.minutes)
    chosen, left, remaining = list[Work](), list[Work](), minutes
    for work in works:
        fits = work.minutes <= remaining
        (chosen if fits else left).append(work)
        remaining -= work.minutes if fits else 0.0
    return Plan(
        chosen=tuple(chosen),
        left=tuple(left),
        unmeasured=len(waiting) - len(measured),
        short=len(measured) - len(closable),
    )


def total_minutes(decided: Sequence[Decided], archive: Archive) -> float:
    """One run of everything that the claims rest on, or would, on one H200."""
    unmeasured: dict[str | None, float] = {}
    for each in decided:
        if each.claim.criterion is None:
            unmeasured[each.claim.recipe] = max(each.claim.minutes, unmeasured.get(each.claim.recipe, 0.0))
    return sum(work.minutes for work in _works(decided, archive, seed=None)) + sum(unmeasured.values())


def _works(decided: Sequence[Decided], archive: Archive, seed: int | None) -> Iterator[Work]:
    """The experiments that the claims rest on, by recipe; with a seed, those that have no result of it."""
    missing: dict[str, dict[str, list[Decided]]] = {}  # recipe, label, claims
    for each in decided:
        for quantity in each.claim.quantities:
            made = {experiment.label for experiment in archive.recipes[quantity.recipe](FULL)}
            for label in made.intersection(quantity.experiments):
                if seed is None or seed not in (one.seed for one in archive.results(quantity.recipe, label)):
                    missing.setdefault(quantity.recipe, {}).setdefault(label, []).append(each)
    return (_work(recipe, labels, archive, seed or 0) for recipe, labels in missing.items())


def _is_short(each: Decided, archive: Archive) -> bool:
    """Whether a claim has results of full scale and would stay `smaller` with more of them."""
    found = archive.pooled_together(each.claim.quantities)
    if each.row.status != "smaller" or not found or not all(pooled.full_scale for pooled in found):
        return False
    budgets = [
        made.budget.fractions()
        for quantity in each.claim.quantities
        for made in archive.recipes[quantity.recipe](FULL)
        if made.label in quantity.experiments and made.budget is not None
    ]
    return bool(each.claim.differs) or any(each.claim.lacking(budget) for budget in budgets)


def _work(recipe: str, labels: Mapping[str, Sequence[Decided]], archive: Archive, seed: int) -> Work:
    """The experiments of a recipe: each takes as long as in its results, and what has none as its claims estimate."""
    taken = {label: minutes_of(archive, recipe, label) for label in labels}
    estimates = [each.claim.minutes for label in labels if taken[label] is None for each in labels[label]]
    made = [each.label for each in archive.recipes[recipe](FULL)]
    return Work(
        recipe=recipe,
        experiments=tuple(label for label in made if label in labels),
        seed=seed,
        minutes=sum(each or 0.0 for each in taken.values()) + max(estimates, default=0.0),
        claims=len({id(each) for waiting in labels.values() for each in waiting}),
    )


def run_plan(
    planned: Plan,
    recipes: Mapping[str, Recipe],
    *,
    minutes: float,
    results: Path,
    runs: Path,
    device: str,
    command: str,
) -> Iterator[tuple[Path, Run, Result]]:
    """The folder, the run so far and each result, as soon as it is committed to `results`.

    Work that no longer fits into what remains of the minutes is left. A run that was cut goes on with the experiments
    it had not finished, from the shadow models and searches in `runs/store`.
    """
    start = perf_counter()
    for work in planned.chosen:
        if (perf_counter() - start) / 60 + work.minutes > minutes + SLACK:
            continue
        folder = _new_folder(runs, f"{work.recipe}-seed-{work.seed}")
        job = Job(
            recipe=work.recipe,
            scale=FULL,
            seed=work.seed,
            device=device,
            folder=folder,
            command=command,
            store=runs / "store",
        )
        experiments = [each for each in recipes[work.recipe](FULL) if each.label in work.experiments]
        with one_process(folder):
            for run, result in run_job(experiments, job):
                write_result(results, result)
                yield folder, run, result


def write_result(folder: Path, result: Result) -> Path:
    """Write a result to the file of its recipe and seed, in place of an earlier one of that experiment."""
    paper, _, name = result.recipe.partition(".")
    path = folder / paper / f"{name}.json"
    if any(each.seed != result.seed for each in read_file(path)):
        path = path.with_stem(f"{name}-seed-{result.seed}")
    others = [each for each in read_file(path) if each.label != result.label]
    text = dump_results([*others, result])
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return path


def _new_folder(runs: Path, name: str) -> Path:
    names = (name if i == 1 else f"{name}-{i}" for i in count(1))
    return next(folder for each in names if not (folder := runs / each).exists())
