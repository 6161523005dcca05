"""A surrogate for the derivative of ReLU in attacks: a sigmoid that sharpens into the step (ours for SimuDy).

The step tells a search nothing about neurons that a record should activate and does not; a sigmoid does.
"""

from dataclasses import dataclass
from math import exp, inf, log
from typing import final

import torch
from torch import Tensor

from remanence.errors import check_between

_SHARP_AT = 0.8  # fraction of a search from which on the surrogate is as sharp as it gets


@final
@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """sigmoid(beta a) in place of 1[a > 0], with the pre-activation `a` over its typical size."""

    beta: tuple[float, float] = (2.0, 40.0)  # initial and final inverse temperature

    def __post_init__(self) -> None:
        check_between(self, "beta", 0, inf, count=2)

    def beta_at(self, progress: float) -> float:
        """beta when this fraction of a search is done: from the first to the last in equal ratios."""
        first, last = map(log, self.beta)
        return exp(first + (last - first) * min(1.0, progress / _SHARP_AT))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SurrogateState:
    """The current beta of a surrogate over the `scale` of pre-activations: a scalar, or one for each ReLU of a net."""

    surrogate: Surrogate
    scale: Tensor
    beta: Tensor  # filled in place: a captured step reads it there

    @classmethod
    def initial(cls, surrogate: Surrogate, scale: Tensor) -> "SurrogateState":
        return cls(surrogate=surrogate, scale=scale, beta=surrogate.beta[0] / scale)

    def set_progress(self, progress: float) -> None:
        torch.div(self.surrogate.beta_at(progress), self.scale, out=self.beta)

    def derivative(self, a: Tensor) -> Tensor:
        """At pre-activations of an MLP's layer, in units of their root mean square over records and neurons."""
        typical = a.square().mean().clamp_min(torch.finfo(a.dtype).tiny)
        return (self.beta * typical.rsqrt() * a).sigmoid()
