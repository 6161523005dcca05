"""Which runs close gaps in the table within so many minutes, and the runs themselves, which go on after a cut."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TypeAlias, final

from remanence.disk import one_process, replace_file
from remanence.execution import Backend, Ray
from remanence.experiments import Experiment, Recipe
from remanence.experiments.distributed import run_jobs
from remanence.experiments.folder import Run
from remanence.experiments.results import Result, dump_results
from remanence.experiments.run import Job
from remanence.reproduction.pooling import FULL, Archive, read_file
from remanence.reproduction.table import Decided, Status, minutes_of

GAPS: tuple[Status, ...] = ("not run", "smaller", "open")
SLACK = 1.0  # minutes by which earlier runs may be late before the next one is left
NOT_RUN = 2.0  # times as much as a claim of another status weighs
Key: TypeAlias = tuple[str, str]  # a recipe and the label of one of its experiments


@final
@dataclass(frozen=True, kw_only=True)
class Work:
    """Experiments of one recipe that claims wait for, at full scale and one seed."""

    recipe: str
    experiments: tuple[str, ...]  # labels
    seed: int
    minutes: float  # on one H200
    decides: tuple[str, ...]  # the claims, by paper and place, for which nothing is missing once all runs are made


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """What fits into the minutes, what decides most claims in each minute first, and what does not.

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


@final
@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """A claim, and the experiments that it waits for."""

    name: str  # paper and place
    weight: float
    needs: frozenset[Key]
    repeats: frozenset[Key]  # with the other repetitions, which make it surer


def plan_runs(
    decided: Sequence[Decided], archive: Archive, *, minutes: float, statuses: Collection[Status] = GAPS, seed: int
) -> Plan:
    """The runs for the claims of these statuses whose results at `seed` are missing.

    Runs are chosen one by one, by the weight of the claims that each decides for every minute; what is left of the
    minutes is filled with repetitions, and with experiments of claims that take longer than one sitting.
    """
    open_claims = [each for each in decided if each.row.status in statuses]
    measured = [each for each in open_claims if each.claim.criterion is not None]
    closable = [each for each in measured if not _is_short(each, archive)]
    waiting = [found for each in closable if (found := _waiting(each, archive, seed)).needs]
    minutes_of_each = _minutes(decided, archive)
    chosen = _choose(waiting, minutes_of_each, minutes)
    every = dict.fromkeys(key for each in waiting for key in sorted(each.needs))
    left = [key for key in every if key not in chosen]
    return Plan(
        chosen=_works(chosen, waiting, minutes_of_each, archive, seed),
        left=_works(left, waiting, minutes_of_each, archive, seed),
        unmeasured=len(open_claims) - len(measured),
        short=len(measured) - len(closable),
    )


def total_minutes(decided: Sequence[Decided], archive: Archive) -> float:
    """One run of everything that the claims rest on, or would, on one H200."""
    unmeasured: dict[str | None, float] = {}
    for each in decided:
        if each.claim.criterion is None:
            unmeasured[each.claim.recipe] = max(each.claim.minutes, unmeasured.get(each.claim.recipe, 0.0))
    return sum(_minutes(decided, archive).values()) + sum(unmeasured.values())


def _choose(waiting: Sequence[_Waiting], minutes: Mapping[Key, float], limit: float) -> dict[Key, None]:
    """The experiments that fit into `limit`, in the order in which they are chosen."""
    chosen, pool, remaining = dict[Key, None](), list(waiting), limit

    def cost(keys: Iterable[Key]) -> float:
        return sum(minutes[key] for key in keys if key not in chosen)

    def density(each: _Waiting) -> float:
        """The weight that is decided for every minute, with that of claims that need no more than this one does."""
        has = each.needs | chosen.keys()
        return sum(other.weight for other in pool if other.needs <= has) / max(cost(each.needs), 0.1)

    while fitting := [each for each in pool if cost(each.needs) <= remaining]:
        best = max(fitting, key=density)
        remaining -= cost(best.needs)
        chosen |= dict.fromkeys(sorted(best.needs))
        pool = [each for each in pool if not each.needs <= chosen.keys()]
    by_density = sorted(pool, key=density, reverse=True)
    for key in (key for each in (*by_density, *waiting) for key in sorted(each.needs | each.repeats)):
        if key not in chosen and minutes[key] <= remaining:
            chosen[key] = None
            remaining -= minutes[key]
    return chosen


def _works(
    keys: Collection[Key], waiting: Sequence[_Waiting], minutes: Mapping[Key, float], archive: Archive, seed: int
) -> tuple[Work, ...]:
    """Experiments by recipe, in the order of the first of each."""
    by_recipe: dict[str, list[str]] = {}
    for recipe, label in keys:
        by_recipe.setdefault(recipe, []).append(label)
    return tuple(
        Work(
            recipe=recipe,
            experiments=tuple(each.label for each in archive.recipes[recipe](FULL) if each.label in labels),
            seed=seed,
            minutes=sum(minutes[recipe, label] for label in labels),
            decides=tuple(
                dict.fromkeys(
                    each.name
                    for each in waiting
                    if each.needs <= set(keys) and recipe in (needed for needed, _ in each.needs)
                )
            ),
        )
        for recipe, labels in by_recipe.items()
    )


def _waiting(each: Decided, archive: Archive, seed: int) -> _Waiting:
    """What a claim waits for at a seed: where it was never measured, the first of the repetitions of each quantity."""
    needs, repeats = set[Key](), set[Key]()
    for keys in _experiments(each, archive):
        missing = [key for key in keys if seed not in (one.seed for one in archive.results(*key))]
        if each.row.status != "not run":
            needs |= set(missing)
        elif len(missing) == len(keys):
            needs |= set(missing[:1])
        repeats |= set(missing)
    weight = each.claim.weight * (NOT_RUN if each.row.status == "not run" else 1.0)
    name = f"{each.row.paper}, {each.row.where}"
    return _Waiting(name=name, weight=weight, needs=frozenset(needs), repeats=frozenset(repeats))


def _experiments(each: Decided, archive: Archive) -> Iterator[list[Key]]:
    """For each quantity that decides a claim the experiments, repetitions of one, that its recipe makes."""
    for quantity in each.claim.quantities:
        made = {experiment.label for experiment in archive.recipes[quantity.recipe](FULL)}
        yield [(quantity.recipe, label) for label in quantity.experiments if label in made]


def _minutes(decided: Sequence[Decided], archive: Archive) -> dict[Key, float]:
    """The minutes of each experiment, as in its results; of one without, its share of what a claim estimates, or where
    the others take all of that, as long as they."""
    found, estimated, alike = dict[Key, float](), dict[Key, float](), dict[Key, float]()
    for each in decided:
        keys, estimate = {key for of_quantity in _experiments(each, archive) for key in of_quantity}, each.claim.minutes
        known = {key: taken for key in keys if (taken := minutes_of(archive, *key, estimate=estimate)) is not None}
        found |= known
        for key in keys - known.keys():
            each_takes = (estimate - sum(known.values())) / (len(keys) - len(known))
            alike[key] = sum(known.values()) / len(known) if known else 0.0
            estimated |= {key: max(each_takes, estimated.get(key, 0.0))} if each_takes > 0 else {}
    return alike | estimated | found


def _is_short(each: Decided, archive: Archive) -> bool:
    """Whether a claim has results of full scale and would stay `smaller` or `open` with more of them."""
    found = archive.pooled_together(each.claim.quantities)
    if each.row.status not in ("smaller", "open") or not found or not all(pooled.full_scale for pooled in found):
        return False
    budgets = [
        made.budget.fractions()
        for quantity in each.claim.quantities
        for made in archive.recipes[quantity.recipe](FULL)
        if made.label in quantity.experiments and made.budget is not None
    ]
    criterion = each.claim.criterion
    missed = criterion is not None and criterion.verdict([pooled.estimate for pooled in found]) == "missed"
    return bool(each.claim.differs or (each.claim.assumes and missed)) or any(
        each.claim.lacking(budget) for budget in budgets
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
    backend: Backend | None = None,
) -> Iterator[tuple[Path, Run, Result]]:
    """The folder, the run so far and each result, as soon as it is committed to `results`.

    Work that no longer fits into what remains of the minutes is left; on Ray all experiments are distributed at once. A
    run that was cut goes on with the experiments it had not finished, from the shadow models and searches in
    `runs/store`.
    """
    start = perf_counter()
    for works in [planned.chosen] if isinstance(backend, Ray) else [(work,) for work in planned.chosen]:
        if (perf_counter() - start) / 60 + sum(work.minutes for work in works) > minutes + SLACK:
            continue
        jobs = list[tuple[Sequence[Experiment], Job]]()
        with ExitStack() as held:
            for work in works:
                job = Job(
                    recipe=work.recipe,
                    scale=FULL,
                    seed=work.seed,
                    device=device,
                    folder=_new_folder(runs, f"{work.recipe}-seed-{work.seed}"),
                    command=command,
                    backend=backend,
                    store=runs / "store",
                )
                held.enter_context(one_process(job.folder))
                jobs.append(([each for each in recipes[work.recipe](FULL) if each.label in work.experiments], job))
            for job, run, result in run_jobs(jobs):
                write_result(results, result)
                yield job.folder, run, result


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
