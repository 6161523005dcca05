"""Claims and budgets: what a paper printed or the target we set, and whether a measured number meets it; what an
experiment spends of each resource, next to what the paper spent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias, final

from remanence.errors import BadInput, unknown_name
from remanence.metrics import Metric

Spent: TypeAlias = tuple[float, float]  # ours, the paper's


@final
@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper prints for a quantity, and the target we set ourselves; either may be missing, not both.

    `Claim.mean(MSE, printed=0.0089, where="table III")` is the commonest; others name a measure of the experiment.
    """

    quantity: str
    higher_is_better: bool | None  # None: neither; ours holds if it is near the printed number
    where: str
    printed: float | None = None
    target: float | None = None
    rtol: float = 0.1

    def __post_init__(self) -> None:
        if self.printed is None and self.target is None:
            message = f"the claim about `{self.quantity}` needs `printed` or `target`, got neither"
            raise BadInput(message, code="empty", argument="printed")
        if self.target is not None and self.higher_is_better is None:
            message = f"the claim about `{self.quantity}` has a `target`, so `higher_is_better` must be set, got None"
            raise BadInput(message, code="conflict", argument="higher_is_better")

    @staticmethod
    def mean(metric: Metric, *, where: str, printed: float | None = None, target: float | None = None) -> "Claim":
        name, up = f"mean {metric.name}", metric.higher_is_better
        return Claim(quantity=name, higher_is_better=up, where=where, printed=printed, target=target)

    def holds(self, measured: float) -> bool | None:
        """Whether ours is no worse than the printed number by more than `rtol`, or no farther from it where neither
        direction is better; None where nothing is printed."""
        return None if self.printed is None else self._meets(measured, self.printed, self.rtol * abs(self.printed))

    def reached(self, measured: float) -> bool | None:
        """Whether ours meets the target; None without one."""
        return None if self.target is None else self._meets(measured, self.target, 0.0)

    def _meets(self, measured: float, bar: float, slack: float) -> bool:
        if self.higher_is_better is None:
            return abs(measured - bar) <= slack
        return measured >= bar - slack if self.higher_is_better else measured <= bar + slack


def check_claims(claims: Sequence[Claim], known: Mapping[str, bool | None]) -> None:
    """Refuse a claim about a quantity that is not measured, or whose better direction is another."""
    directions = {name.casefold(): up for name, up in known.items()}  # papers write `MSE`, our metric is `mse`
    for claim in claims:
        if (name := claim.quantity.casefold()) not in directions:
            raise unknown_name("quantity of a claim", claim.quantity, known)
        if None not in (directions[name], claim.higher_is_better) and directions[name] != claim.higher_is_better:
            message = (
                f"`higher_is_better` of the claim about `{claim.quantity}` must be {directions[name]}, "
                f"got {claim.higher_is_better}"
            )
            raise BadInput(message, code="conflict", argument="higher_is_better")


@final
@dataclass(frozen=True, kw_only=True)
class Budget:
    """Pairs of our amount and the paper's: `Budget(epochs=(20_000, 1_000_000), iterations=(3000, 50_000))`.

    Resources on which ours equals the paper's, or that it does not have, are left out.
    """

    epochs: Spent | None = None  # of the victims' training
    iterations: Spent | None = None  # of the attack's search
    restarts: Spent | None = None
    shadows: Spent | None = None
    records: Spent | None = None
    victims: Spent | None = None  # or repetitions

    def __post_init__(self) -> None:
        for name, (ours, papers) in self.spent().items():
            if not (ours >= 0 and papers > 0):
                message = f"`{name}` of Budget must be a pair of our amount and the paper's, got ({ours}, {papers})"
                raise BadInput(message, code="out-of-range", argument=name)

    def spent(self) -> dict[str, Spent]:
        """The resources that are stated, each with our amount and the paper's."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    def fractions(self) -> dict[str, float]:
        """Our amount of each resource as a fraction of the paper's."""
        return {name: ours / papers for name, (ours, papers) in self.spent().items()}
