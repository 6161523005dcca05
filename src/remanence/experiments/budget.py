"""What an experiment spends of each resource, next to what the paper spent."""

from dataclasses import dataclass, fields
from typing import TypeAlias, final

from remanence.errors import BadInput

Spent: TypeAlias = tuple[float, float]  # ours, the paper's


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
