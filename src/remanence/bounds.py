"""The box that the values of records lie in: [0, 1] for pixels, all numbers for standardised columns and embeddings.

Attacks hold their candidates in the box of the release, and begin with what is usual in it. A side that is infinite
says nothing of how large values are; they are then taken to be of about the size of one, as standardised ones are.
"""

from collections.abc import Iterable
from math import isfinite, isnan
from typing import Any, TypeAlias

import torch
from torch import Tensor

from remanence.errors import BadInput

Bounds: TypeAlias = tuple[float, float]
UNIT: Bounds = (0.0, 1.0)


def check_bounds(bounds: Any, name: str) -> None:
    """Refuse what is not a smallest and a larger largest value."""
    pair = bounds if isinstance(bounds, tuple) and len(bounds) == 2 else ()
    if not pair or not all(isinstance(each, float | int) and not isnan(each) for each in pair) or pair[0] >= pair[1]:
        message = (
            f"`bounds` of {name} must be a pair of the smallest and the largest value that records can have, such as "
            f"(0.0, 1.0) or (-inf, inf), got {bounds!r}"
        )
        raise BadInput(message, code="out-of-range", argument="bounds")


def described(bounds: Bounds) -> str:
    """The box in words, such as [0, 1] or [-inf, inf]."""
    return f"[{bounds[0]:g}, {bounds[1]:g}]"


def hull(boxes: Iterable[Bounds]) -> Bounds:
    """The smallest box that holds all of `boxes`."""
    low, high = zip(*boxes, strict=True)
    return min(low), max(high)


def is_finite(bounds: Bounds) -> bool:
    """Whether the box has two sides."""
    return isfinite(bounds[0]) and isfinite(bounds[1])


def width(bounds: Bounds) -> float:
    """What a value can differ by: the width of a finite box, one where it has no width."""
    return bounds[1] - bounds[0] if is_finite(bounds) else 1.0


def centre(bounds: Bounds) -> float:
    """A value that says nothing: the middle of a finite box, otherwise zero, or what of the box is nearest to it."""
    return (bounds[0] + bounds[1]) / 2 if is_finite(bounds) else min(max(0.0, bounds[0]), bounds[1])


def clamp(x: Tensor, bounds: Bounds) -> Tensor:
    """The values in the box that are nearest to those of `x`."""
    return x.clamp(*bounds)


def within(x: Tensor, bounds: Bounds, *, tolerance: float) -> Tensor:
    """Which values lie in the box, or no further from it than this fraction of its width."""
    reach = tolerance * width(bounds)
    return (x > bounds[0] - reach) & (x < bounds[1] + reach)


def sample(*shape: int, bounds: Bounds, generator: torch.Generator) -> Tensor:
    """Random values all over the box: uniform in a finite one, standard normal ones where it has no side, and their
    distances from the side where it has one."""
    if is_finite(bounds):
        return bounds[0] + width(bounds) * torch.rand(*shape, generator=generator)
    normal = torch.randn(*shape, generator=generator)
    if isfinite(bounds[0]):
        return bounds[0] + normal.abs()
    return bounds[1] - normal.abs() if isfinite(bounds[1]) else normal


def sample_about_centre(*shape: int, bounds: Bounds, std: float, generator: torch.Generator) -> Tensor:
    """Normal values about the centre of the box, with this standard deviation in units of its width."""
    return clamp(centre(bounds) + std * width(bounds) * torch.randn(*shape, generator=generator), bounds)
