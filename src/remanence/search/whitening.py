"""Whitened comparison of layers, so that a search finds many records at once (ours).

The update of a layer is a sum over records, and a few directions, those of the mean image and of the classes, make up
most of it: whitened, those that distinguish one record from another count too.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.errors import check_min


@final
@dataclass(frozen=True, kw_only=True)
class Whitening:
    """The singular values of a layer's update are divided by this power of themselves where updates are compared."""

    power: float = 0.5  # 1: all directions count alike; 0: as they are

    def __post_init__(self) -> None:
        check_min(self, power=0)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class WhitenedLayer:
    """With the matrix  U S V'  of a layer, others are compared with it as  S^(-p/2) U' matrix V S^(-p/2).  Singular
    values beyond the first so many, which are those of drift and rounding, count as the last of them."""

    left: Tensor
    right: Tensor
    target: Tensor  # the layer's own matrix, whitened

    @classmethod
    def from_matrix(cls, matrix: Tensor, *, power: float, rank: int, min_ratio: float | None = None) -> "WhitenedLayer":
        """Singular values after the first `rank`, or below `min_ratio` of the largest, are raised to that floor; None
        stands for the rounding of the matrix's dtype."""
        left, values, right = torch.linalg.svd(matrix.double())
        ratio = torch.finfo(matrix.dtype).eps if min_ratio is None else min_ratio
        floor = values[max(1, min(rank, len(values))) - 1].clamp_min(ratio * values[0])

        def scales(side: int) -> Tensor:
            return torch.cat([values, values.new_zeros(side - len(values))]).clamp_min(floor) ** (-power / 2)

        rows, columns = matrix.shape
        left, right = scales(rows)[:, None] * left.T, right.T * scales(columns)
        return cls(left=left.to(matrix), right=right.to(matrix), target=(left @ matrix.double() @ right).to(matrix))

    def __call__(self, matrix: Tensor) -> Tensor:
        return self.left @ matrix @ self.right
