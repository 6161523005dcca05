"""Priors on candidate records: what images look like, added to an objective."""

from dataclasses import dataclass
from typing import Protocol, final

from torch import Tensor

from remanence.errors import check_min


class Prior(Protocol):
    """A penalty on candidates (n, ...)."""

    def __call__(self, x: Tensor) -> Tensor: ...


@final
@dataclass(frozen=True, kw_only=True)
class TotalVariation:
    """`weight` times the total variation of images (Geiping et al. 2020)."""

    weight: float  # of the variation next to the distance

    def __post_init__(self) -> None:
        check_min(self, weight=0)

    def __call__(self, x: Tensor) -> Tensor:
        return self.weight * total_variation(x)


@final
@dataclass(frozen=True, kw_only=True)
class ImagePrior:
    """Weights of two penalties: squared distances of pixels from [0, 1], and the total variation."""

    box: float = 0.0
    total_variation: float = 0.0

    def __post_init__(self) -> None:
        check_min(self, box=0, total_variation=0)


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels of images (n, c, h, w); zero for table rows (n, d)."""
    if x.ndim < 4:
        return x.new_zeros(())
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()
