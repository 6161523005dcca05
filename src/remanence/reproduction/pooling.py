"""The committed results, and one estimate of each quantity from all their seeds."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import final

from remanence.disk import read_text
from remanence.errors import BadInput
from remanence.experiments import Recipe, Scale
from remanence.experiments.claim import Budget, Spent
from remanence.experiments.codec import MAX_BYTES
from remanence.experiments.results import Result, parse_results
from remanence.reproduction.criteria import Estimate, Quantity

FULL: Scale = "full"


@final
@dataclass(frozen=True, kw_only=True)
class Pooled:
    """A quantity over the results that have it: all of full scale, or where there are none, of a smaller one."""

    estimate: Estimate
    results: tuple[Result, ...]
    made: frozenset[str] = frozenset()  # the experiments that repeat it, of those that its recipe makes

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({result.seed for result in self.results}))

    @property
    def full_scale(self) -> bool:
        return self.results[0].scale == FULL

    @property
    def repeated(self) -> Spent:
        """How many of the experiments that repeat it have a result, and how many there are."""
        found = {result.label for result in self.results}
        return len(found), len(found | self.made)


@final
@dataclass(frozen=True, kw_only=True)
class Archive:
    """Committed results by the name of their file, and the recipes that made them."""

    files: Mapping[str, tuple[Result, ...]]  # `paper/file`
    recipes: Mapping[str, Recipe]

    @cached_property
    def _by_experiment(self) -> dict[tuple[str, str], list[Result]]:
        found: dict[tuple[str, str], list[Result]] = {}
        for results in self.files.values():
            for result in results:
                if result.refusal is None:
                    found.setdefault((result.recipe, result.label), []).append(result)
        return found

    def results(self, recipe: str, experiment: str, *, scale: str = FULL) -> list[Result]:
        """The results of an experiment, one for each seed: where files repeat a seed, that of the first."""
        every = self._by_experiment.get((recipe, experiment), [])
        by_seed: dict[int, Result] = {}
        for result in every:
            if result.scale == scale:
                by_seed.setdefault(result.seed, result)
        return list(by_seed.values())

    def pooled_together(self, quantities: Sequence[Quantity]) -> list[Pooled] | None:
        """The estimates of quantities that are compared: over the seeds that all have, where there are any; None where
        one has no result."""
        found = [pooled for each in quantities if (pooled := self.pooled(each)) is not None]
        if not found or len(found) < len(quantities):
            return None
        common = set.intersection(*(set(each.seeds) for each in found))
        if not common or not all(each.full_scale == found[0].full_scale for each in found):
            return found
        return [pooled for each in quantities if (pooled := self.pooled(each, seeds=common)) is not None]

    def pooled(self, quantity: Quantity, *, seeds: Collection[int] | None = None) -> Pooled | None:
        """The estimate of a quantity over seeds, all or these, and repetitions; None where no result has it."""
        for scale in (FULL, "small"):
            found = [
                (result, estimate)
                for label in quantity.experiments
                for result in self.results(quantity.recipe, label, scale=scale)
                if seeds is None or result.seed in seeds
                if (estimate := estimates(result).get(quantity.name.casefold())) is not None
            ]
            if found:
                results, values = zip(*found, strict=True)
                made = self._made(quantity.recipe).keys() & set(quantity.experiments)
                return Pooled(estimate=mean_of(results, values), results=results, made=frozenset(made))
        return None

    def budget(self, result: Result) -> Budget | None:
        """The budget that a result states; of one that states none, that of its recipe."""
        return result.budget or self._made(result.recipe).get(result.label)

    def _made(self, recipe: str) -> dict[str, Budget | None]:
        """The budget of each experiment of a recipe."""
        if recipe not in self._budgets:
            made = self.recipes[recipe](FULL) if recipe in self.recipes else ()
            self._budgets[recipe] = {each.label: each.budget for each in made}
        return self._budgets[recipe]

    @cached_property
    def _budgets(self) -> dict[str, dict[str, Budget | None]]:
        return {}


def read_archive(folder: Path, recipes: Mapping[str, Recipe]) -> Archive:
    """All results in `folder`, which has a folder for each paper; a folder without any is refused."""
    paths = sorted(folder.glob("*/*.json"))
    if not paths:
        raise BadInput(
            f"`{folder}` holds no results (PAPER/RECIPE.json): run this in a clone of the repository, which has them "
            "in `results`, or name the folder with `--results`",
            code="missing-file",
            argument="--results",
        )
    return Archive(files={f"{path.parent.name}/{path.stem}": tuple(read_file(path)) for path in paths}, recipes=recipes)


def read_file(path: Path) -> list[Result]:
    """The results in a file; none where there is no such file."""
    if not path.exists():
        return []
    try:
        text = read_text(path, max_bytes=MAX_BYTES)
    except ValueError as error:
        message = f"`{path}` is damaged ({error}): make the run again"
        raise BadInput(message, code="damaged-file", argument="--results") from None
    return parse_results(text, where=str(path))


def estimates(result: Result) -> dict[str, Estimate]:
    """Every number of a result that a claim may be about, by its name in small letters."""
    return {name.casefold(): estimate for name, estimate in _estimates(result)}


def _estimates(result: Result) -> Iterator[tuple[str, Estimate]]:
    if (attack := result.attack) is not None:
        scores, test = attack.scores, attack.scores.test
        for name, metric in scores.metrics.items():
            if metric.mean is not None:
                null = attack.nulls.unrelated.metrics.get(name)
                chance = null.mean if null else None
                yield f"mean {name}", Estimate(value=metric.mean, low=metric.low, high=metric.high, chance=chance)
        found = scores.found.fraction
        by_chance = None if test is None else test.false / (test.subjects or scores.records)
        yield "share found", Estimate(value=found.value, low=found.low, high=found.high, chance=by_chance)
        if scores.closer is not None:
            closer = scores.closer.fraction
            yield (
                "share closer than the nearest neighbour",
                Estimate(value=closer.value, low=closer.low, high=closer.high, chance=scores.closer.chance),
            )
        if scores.labels is not None:
            right = scores.labels.accuracy
            yield (
                "accuracy of labels",
                Estimate(value=right.value, low=right.low, high=right.high, chance=scores.labels.chance),
            )
    for measure in result.measures:
        if measure.value is not None:
            bounded = Estimate(value=measure.value, low=measure.low, high=measure.high)
            yield measure.name, replace(bounded, chance=measure.chance)


def mean_of(results: Sequence[Result], found: Sequence[Estimate]) -> Estimate:
    """One estimate as it is; the mean of several, and where each is of another seed, their values by seed."""
    if len(found) == 1:
        return found[0]
    mean = Estimate.mean(found)
    by_seed = {result.seed: each.value for result, each in zip(results, found, strict=True)}
    return replace(mean, by_seed=by_seed) if len(by_seed) == len(found) else mean
