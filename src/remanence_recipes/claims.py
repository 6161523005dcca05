"""What the papers' `claims` modules are written with: the quantities of a recipe, and the printed numbers it states."""

from collections.abc import Sequence

from remanence.experiments import Claim
from remanence.reproduction import Printed, Quantity
from remanence_recipes import RECIPES


def quantity(recipe: str, experiments: str | tuple[str, ...], name: str) -> Quantity:
    """A number in the results of a recipe; several experiments are repetitions of one."""
    labels = (experiments,) if isinstance(experiments, str) else experiments
    return Quantity(recipe=recipe, experiments=labels, name=name)


def quantities(recipe: str, experiments: Sequence[str], name: str) -> tuple[Quantity, ...]:
    """The quantity `name` in the results of each of several experiments."""
    return tuple(quantity(recipe, label, name) for label in experiments)


def labels(recipe: str, beginning: str, end: str = "") -> tuple[str, ...]:
    """The experiments of a recipe at full scale whose labels begin and end so: repetitions of one."""
    made = (each.label for each in RECIPES[recipe]("full"))
    return tuple(label for label in made if label.startswith(beginning) and label.endswith(end))


def measures(recipe: str, experiment: str, names: Sequence[str]) -> tuple[Quantity, ...]:
    """Several numbers of one experiment."""
    return tuple(quantity(recipe, experiment, name) for name in names)


def printed(recipe: str, experiments: str | tuple[str, ...], name: str) -> Printed:
    """The printed number that a recipe states about a quantity of its (first) experiment, against ours."""
    found = quantity(recipe, experiments, name)
    return Printed(quantity=found, claim=stated(recipe, found.experiments[0], name))


def number(
    value: float, recipe: str, experiments: str | tuple[str, ...], name: str, *, up: bool | None, rtol: float = 0.1
) -> Printed:
    """A printed number that no recipe states, against ours."""
    claim = Claim(quantity=name, higher_is_better=up, printed=value, where="", rtol=rtol)
    return Printed(quantity=quantity(recipe, experiments, name), claim=claim)


def stated(recipe: str, experiment: str, name: str) -> Claim:
    """The claim that a recipe states about a quantity of an experiment at full scale."""
    (made,) = (each for each in RECIPES[recipe]("full") if each.label == experiment)
    (claim,) = (each for each in made.claims if each.quantity.casefold() == name.casefold())
    return claim


def target(recipe: str, experiment: str, name: str) -> float:
    """The bound by which a recipe tests what a paper says in words."""
    bound = stated(recipe, experiment, name).target
    assert bound is not None
    return bound
