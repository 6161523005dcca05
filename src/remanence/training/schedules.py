"""Learning-rate schedules that follow the training itself, in place of fixed epochs."""

from dataclasses import dataclass
from typing import TypeAlias, final

from remanence.errors import BadInput, check_above


@final
@dataclass(frozen=True, kw_only=True)
class UntilStationary:
    """The learning rate goes through `factors`, to the next one where the update no longer shrinks, and then training
    ends.

    The update is the distance of the weights between two checks, divided by the learning rate: steps to and fro across
    a ReLU boundary cancel, as they do in the stationarity conditions, while the gradient of a single step stays large.
    """

    check_every: int = 1000  # epochs
    shrinks: float = 0.9  # at least to this fraction of its minimum so far
    factors: tuple[float, ...] = (1.0, 0.2, 0.04, 0.008)


@final
@dataclass(frozen=True, kw_only=True)
class ByLoss:
    """The learning rate rises as the loss falls (Lyu and Li 2020): without weight decay only the direction of the
    weights converges, at a constant rate with one over the log of the epochs. For a linear model it then converges with
    one over the epochs, and deep ones come far nearer too.

    Steps descend the log of the loss, each by at most `decrease` to first order, and with momentum by
    1 / (1 - momentum) times that.
    """

    decrease: float = 0.3
    factors: tuple[tuple[float, float], ...] = ((0.6, 0.3), (0.8, 0.1))  # (fraction of the epochs, factor of both)

    def __post_init__(self) -> None:
        check_above(self, decrease=0)
        if not all(0 < fraction < 1 and factor > 0 for fraction, factor in self.factors):
            message = (
                "`factors` of ByLoss must hold pairs of a fraction of the epochs and a factor above 0, got "
                f"{self.factors}"
            )
            raise BadInput(message, code="out-of-range", argument="factors")


Schedule: TypeAlias = tuple[tuple[int, float], ...] | UntilStationary | ByLoss
