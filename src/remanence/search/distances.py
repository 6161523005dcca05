"""Distances between an update that was released and the update that candidates would have caused."""

from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from remanence.engine.unroll import Comparison, Products, Vectors


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
