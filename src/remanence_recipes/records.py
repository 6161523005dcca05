"""Records of recipes: as many of each class, and images of another size."""

from dataclasses import replace

import torch
from torch.nn.functional import interpolate

from remanence.types import Data


def shuffled(data: Data, seed: int) -> Data:
    """The records in the order of a seed."""
    return data.take(torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)))


def first_of_each_class(data: Data, per_class: int) -> tuple[Data, Data]:
    """The first `per_class` records of each class, in the order of the classes, and the other records."""
    first = torch.cat([(data.y == label).nonzero()[:per_class, 0] for label in range(data.num_classes)])
    others = torch.ones(len(data), dtype=torch.bool, device=first.device).scatter(0, first, value=False)
    return data.take(first), data.take(others)


def resized(data: Data, side: int) -> Data:
    """The images at another size."""
    return replace(data, x=interpolate(data.x, size=(side, side), mode="bilinear", antialias=True).clamp(0, 1))


def repeated(data: Data, side: int) -> Data:
    """The images with pixels repeated, so that small ones are large enough for two convolutions."""
    return replace(data, x=interpolate(data.x, size=(side, side)))
