"""Gates in place of the steps that the slopes of ReLU are, which tell a search nothing about the neurons that a record
should open: a sigmoid does, and grows into the step. Ours."""

from dataclasses import dataclass
from math import exp, log
from typing import final

import torch
from torch import Tensor

_STEEP_AT = 0.8  # of a search, from where on gates are as steep as they get


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Gates:
    """As many as there are units."""

    sharpness: tuple[float, float]  # at first and at the end, in these units of what enters a gate
    unit: Tensor
    now: Tensor  # how steep, filled in place: a captured step reads it there

    @classmethod
    def of(cls, sharpness: tuple[float, float], unit: Tensor) -> "Gates":
        return cls(sharpness=sharpness, unit=unit, now=sharpness[0] / unit)

    def sharpen(self, done: float) -> None:
        torch.div(steepness(self.sharpness, done), self.unit, out=self.now)

    def __call__(self, out: Tensor) -> Tensor:
        """Of an MLP, whose unit is also what enters at every step: its root mean square over records and neurons."""
        typical = out.square().mean().clamp_min(torch.finfo(out.dtype).tiny)
        return (self.now * typical.rsqrt() * out).sigmoid()


def steepness(sharpness: tuple[float, float], done: float) -> float:
    """Of gates when this share of a search is done: from the first to the last in equal ratios."""
    first, last = map(log, sharpness)
    return exp(first + (last - first) * min(1.0, done / _STEEP_AT))
