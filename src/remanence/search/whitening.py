"""How layers are compared so that a search finds many records at once. Ours.

What moved a layer is a sum over records, and a few directions, those of the mean image and of the classes, make up most
of it: whitened, those that tell one record from another count too.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


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
