"""Tensors as a file describes them: claims, which are checked before anything is allocated."""

from dataclasses import dataclass
from math import prod
from typing import final

import torch

from remanence.releases._refusals import shown, unsafe

_MAX_SIZE = 2**48  # of a shape or a stride: torch's own arithmetic stays far from overflow


@final
@dataclass(frozen=True, kw_only=True)
class Storage:
    """A contiguous storage of `numel` values that the file claims to hold under `key`."""

    key: str
    dtype: torch.dtype
    numel: int


@final
@dataclass(frozen=True, kw_only=True)
class View:
    """A tensor as a file describes it: nothing is allocated for it, and nothing is true before `check`."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def check(self, name: str) -> None:
        check_shape(name, self.shape)
        steps = (self.offset, *self.stride)
        if len(steps) != len(self.shape) + 1 or not all(type(s) is int and 0 <= s <= _MAX_SIZE for s in steps):
            raise unsafe(f"{shown(name)} has a negative or absurd offset or stride")
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        # With stride 0 a view may claim any size over a single value; a weight has no more values than its storage.
        count = prod(self.shape)
        if count and max(count, last + 1) > self.storage.numel:
            raise unsafe(
                f"{shown(name)} of shape {shown(self.shape)} does not fit its storage of {shown(self.storage.numel)} "
                "values"
            )


def check_shape(name: str, shape: tuple[int, ...]) -> None:
    if not name.isprintable():
        raise unsafe(f"the name {shown(name)} is not printable")
    if len(shape) > 32 or not all(type(n) is int for n in shape):  # not printed: nested tuples can be endless to print
        raise unsafe(f"{shown(name)} has a shape of {len(shape)} entries, expected up to 32 integers")
    # Zeros are left out of the product: torch multiplies the other sizes even where a tensor is empty.
    if min(shape, default=0) < 0 or prod(n for n in shape if n) > _MAX_SIZE:
        raise unsafe(f"{shown(name)} has the negative or absurd shape {shown(shape)}")
