"""Distances between an update that was released and the update that candidates would have caused.

The update of a layer is a sum over records, and a few directions, those of the mean image and of the classes, make up
most of it. Whitened (ours), those that distinguish one record from another count too: a search finds many at once.
"""

from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from remanence.engine.decompositions import svd
from remanence.engine.unroll import Comparison, Products, Vectors
from remanence.errors import check_min


class Distance(Protocol):
    """A function of two flat vectors: the released update and that of the candidates."""

    def __call__(self, target: Tensor, update: Tensor) -> Tensor: ...


@runtime_checkable
class ByProducts(Distance, Protocol):
    """A distance that follows from inner products alone: <target, target>, <target, update> and <update, update>.

    An engine may know these products without ever forming the update itself.
    """

    def by_products(self, target: Tensor, product: Tensor, update: Tensor) -> Tensor: ...


@final
@dataclass(frozen=True, kw_only=True)
class Cosine:
    """1 - cos of the angle between the vectors: only the direction counts (Geiping et al. 2020)."""

    def __call__(self, target: Tensor, update: Tensor) -> Tensor:
        return 1 - cosine_similarity(target, update, dim=0)

    def by_products(self, target: Tensor, product: Tensor, update: Tensor) -> Tensor:
        return 1 - product * (target * update).clamp_min(torch.finfo(update.dtype).tiny).rsqrt()


@final
@dataclass(frozen=True, kw_only=True)
class L2:
    """Squared Euclidean distance over the target's squared norm (Zhu et al. 2019; relative, so that one rate suits
    all)."""

    def __call__(self, target: Tensor, update: Tensor) -> Tensor:
        return (target - update).square().sum() / target.square().sum()

    def by_products(self, target: Tensor, product: Tensor, update: Tensor) -> Tensor:
        return (target - 2 * product + update) / target


def between(distance: Distance, compared: Comparison) -> Tensor:
    """The distance of a simulated update from the victim's."""
    match compared:
        case Vectors():
            return distance(compared.target, compared.update)
        case Products():
            assert isinstance(distance, ByProducts)
            return distance.by_products(compared.target, compared.product, compared.update)


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
        left, values, right = svd(matrix.double(), full_matrices=True)
        ratio = torch.finfo(matrix.dtype).eps if min_ratio is None else min_ratio
        floor = values[max(1, min(rank, len(values))) - 1].clamp_min(ratio * values[0])

        def scales(side: int) -> Tensor:
            return torch.cat([values, values.new_zeros(side - len(values))]).clamp_min(floor) ** (-power / 2)

        rows, columns = matrix.shape
        left, right = scales(rows)[:, None] * left.T, right.T * scales(columns)
        return cls(left=left.to(matrix), right=right.to(matrix), target=(left @ matrix.double() @ right).to(matrix))

    def __call__(self, matrix: Tensor) -> Tensor:
        return self.left @ matrix @ self.right
