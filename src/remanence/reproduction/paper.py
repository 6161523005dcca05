"""A paper and its claims, as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from remanence.reproduction.criteria import Criterion, Quantity

AS_MUCH = 0.95  # of the paper's budget: 58,000 of 59,000 shadow models are as many


@final
@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """Where our results contradict a paper: what it says, what we saw, and the experiment that decides.

    In `saw`, `{ours}` stands for our number with its interval and `{seeds}` for the seeds.
    """

    says: str
    saw: str
    decides: str


@final
@dataclass(frozen=True, kw_only=True)
class PaperClaim:
    """One claim of a paper and the test that decides it; its status is computed from results.

    `criterion` is None where no recipe measures it yet. `minutes` estimates the deciding run on one H200, where no
    result says how long it took. `differs` says how our setting is easier, smaller or another than the paper's, where a
    budget cannot; `assumes` how we read what the paper leaves open, where a miss may be due to that and a gain too;
    `unaffected_by` names resources of the budget that do not matter to this claim. Runs are planned by `weight`: how
    much of the paper hangs on the claim, 1 for a detail.
    """

    where: str
    text: str
    criterion: Criterion | None = None
    recipe: str | None = None  # of one without a criterion: where it would be measured
    printed: float | None = None  # of one without a criterion
    minutes: float = 0.0
    weight: float = 1.0
    differs: str = ""
    assumes: str = ""
    unaffected_by: tuple[str, ...] = ()
    contradiction: Contradiction | None = None

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """Those that decide it; none where nothing measures it yet."""
        return self.criterion.quantities if self.criterion else ()

    def lacking(self, budget: Mapping[str, float]) -> set[str]:
        """The resources that matter to this claim of which less than the paper's was spent."""
        return {name for name, fraction in budget.items() if fraction < AS_MUCH} - set(self.unaffected_by)

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes that decide it, or would."""
        deciding = dict.fromkeys(quantity.recipe for quantity in self.quantities)
        return tuple(deciding) or ((self.recipe,) if self.recipe else ())


@final
@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper, by the name that its recipes carry, with all its claims in their order."""

    name: str
    title: str
    claims: tuple[PaperClaim, ...]
