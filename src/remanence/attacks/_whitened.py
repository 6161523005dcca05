"""What the simulated training of an MLP is read through, so that a search finds many records at once. Ours.

The way of a layer is a sum over records, and a few directions, those of the mean image and of the classes, make up most
of it: whitened, those that tell one record from another count too. And the slope of ReLU is a step, which tells a
search nothing about the neurons that a record should open: a sigmoid does, and grows into the step.
"""

from dataclasses import dataclass
from math import exp, log
from typing import final

import torch
from torch import Tensor

_STEEP_AT = 0.8  # of a search, from where on gates are as steep as they get


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Whitening:
    """With the way  U S V'  of a layer, others are compared with it as  S^(-p/2) U' way V S^(-p/2).  Singular values
    beyond the first so many, which are those of drift and rounding, count as the last of them."""

    left: Tensor
    right: Tensor
    target: Tensor  # the way itself, so compared

    @classmethod
    def of(cls, way: Tensor, *, power: float, first: int, least: float | None = None) -> "Whitening":
        """None counts as less than `least` of the largest, which is rounding unless given."""
        left, values, right = torch.linalg.svd(way.double())
        share = torch.finfo(way.dtype).eps if least is None else least
        floor = values[max(1, min(first, len(values))) - 1].clamp_min(share * values[0])

        def scales(side: int) -> Tensor:
            return torch.cat([values, values.new_zeros(side - len(values))]).clamp_min(floor) ** (-power / 2)

        rows, columns = way.shape
        left, right = scales(rows)[:, None] * left.T, right.T * scales(columns)
        return cls(left=left.to(way), right=right.to(way), target=(left @ way.double() @ right).to(way))

    def __call__(self, way: Tensor) -> Tensor:
        return self.left @ way @ self.right


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Gates:
    """The slope of ReLU as a sigmoid of what enters it, in units of its root mean square over records and neurons."""

    sharpness: tuple[float, float]  # at first and at the end
    now: Tensor  # filled in place: a captured step reads it there

    @classmethod
    def of(cls, sharpness: tuple[float, float], like: Tensor) -> "Gates":
        return cls(sharpness=sharpness, now=like.new_full((), sharpness[0]))

    def __call__(self, out: Tensor) -> Tensor:
        typical = out.square().mean().clamp_min(torch.finfo(out.dtype).tiny)
        return (self.now * typical.rsqrt() * out).sigmoid()

    def sharpen(self, done: float) -> None:
        self.now.fill_(steepness(self.sharpness, done))


def steepness(sharpness: tuple[float, float], done: float) -> float:
    """Of gates when this share of a search is done: from the first to the last in equal ratios."""
    first, last = map(log, sharpness)
    return exp(first + (last - first) * min(1.0, done / _STEEP_AT))
