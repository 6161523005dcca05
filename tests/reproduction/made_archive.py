"""Results made by hand, and an archive of them."""

from collections.abc import Sequence
from typing import Any

from remanence.experiments import Budget, Experiment, Measure, Recipe, Scale
from remanence.experiments.provenance import Hardware
from remanence.experiments.results import SCHEMA, Result
from remanence.reproduction import Archive, Paper, PaperClaim, Quantity

HARDWARE = Hardware(device="H200", threads=1, platform="Linux", python="3", torch="2", remanence="1")


def made_result(
    value: float | None, *, label: str = "one", name: str = "error", chance: float | None = None, **changes: Any
) -> Result:
    """A result with one measure, as sure as `low` and `high` say, or without them, quite; other `changes` are fields of
    the result."""
    bounds = {end: changes.pop(end, value) for end in ("low", "high")}
    measure = Measure(name=name, value=value, meaning="made", chance=chance, **bounds)
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "recipe": "made2020.table",
        "label": label,
        "about": "",
        "scale": "full",
        "seed": 3,
        "command": "made",
        "commit": None,
        "hardware": HARDWARE,
        "seconds": 60.0,
        "repeats": 1,
        "budget": None,
        "point": None,
        "refusal": None,
        "attack": None,
        "verdict": None,
        "measures": (measure,),
        "figures": (),
        "claims": (),
        "caveats": (),
    }
    return Result(**(fields | changes))


def made_recipe(*labels: str, budget: Budget | None = None) -> Recipe:
    def recipe(scale: Scale) -> Sequence[Experiment]:
        return [Experiment(label=label, budget=budget) for label in labels]

    return recipe


def made_archive(*results: Result, recipes: dict[str, Recipe] | None = None) -> Archive:
    known = {"made2020.table": made_recipe("one", "two")} | (recipes or {})
    return Archive(files={f"made2020/{i}": (result,) for i, result in enumerate(results)}, recipes=known)


def quantity(label: str = "one", *, recipe: str = "made2020.table", name: str = "error") -> Quantity:
    return Quantity(recipe=recipe, experiments=(label,), name=name)


def paper(*claims: PaperClaim) -> Paper:
    return Paper(name="made2020", title="Made: A Paper (2020)", claims=claims)
