"""One set of records is cut into the four roles of an audit, and no record plays two of them.

A target that is also public would be "reconstructed" by looking it up; a split that shares records proves nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from itertools import accumulate, combinations
from typing import final

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.types import Data

_MAY_BE_EMPTY = ("fixed", "public")
_ROWS = 4096  # copied to the CPU at a time


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """`private` is attacked, `fixed` is trained on and known, `public` trains shadows, `test` measures the victim."""

    private: Data
    fixed: Data
    public: Data
    test: Data

    def __post_init__(self) -> None:
        parts = {"private": self.private, "fixed": self.fixed, "public": self.public, "test": self.test}
        for name, part in parts.items():
            if not len(part) and name not in _MAY_BE_EMPTY:
                raise BadInput(f"`{name}` must hold at least one record, got an empty set: ask for more")
        _check_alike(parts)
        check_disjoint(parts)


def _check_alike(parts: dict[str, Data]) -> None:
    kinds = {name: (part.shape, part.num_classes) for name, part in parts.items()}
    for name, kind in kinds.items():
        if kind != kinds["private"]:
            raise BadInput(
                f"`{name}` must hold records of the shape and number of classes of `private`, {kinds['private']}, "
                f"got {kind}: cut all parts from one data set"
            )


def check_disjoint(parts: dict[str, Data]) -> None:
    """Refuse parts that share a record."""
    dtype = reduce(torch.promote_types, (part.x.dtype for part in parts.values()))
    keys = {name: set(_keys(part.x, dtype)) for name, part in parts.items()}
    for one, other in combinations(keys, 2):
        shared = len(keys[one] & keys[other])
        if shared:
            raise BadInput(
                f"`{one}` and `{other}` must share no record, got {shared} in both (a record of `{one}` that is also "
                f"in the {other} set makes the audit meaningless): make them with `split`, which drops exact copies"
            )


def split(data: Data, *, private: int, fixed: int, public: int, test: int, seed: int) -> Split:
    """Cut distinct records of `data`, drawn by `seed`, into the four parts; a copy under another label is a copy."""
    # public comes last, so that the size of the public set changes nothing in the other parts
    counts = {"private": private, "test": test, "fixed": fixed, "public": public}
    for name, count in counts.items():
        if count < 0:
            raise BadInput(f"`{name}` must be a number of records, got {count}: give 0 or more")
    different = distinct(data)
    if sum(counts.values()) > len(different):
        asked = " + ".join(f"{count} {name}" for name, count in counts.items())
        raise BadInput(
            f"{data.name} must hold {sum(counts.values())} different records ({asked}), got {len(different)} "
            f"({len(data) - len(different)} exact copies were dropped): ask for fewer"
        )
    order = torch.randperm(len(different), generator=torch.Generator().manual_seed(seed))
    ends = accumulate(counts.values())
    cut = {name: order[end - counts[name] : end] for name, end in zip(counts, ends, strict=True)}
    return Split(**{name: different.take(index) for name, index in cut.items()})


def distinct(data: Data) -> Data:
    """The first of each set of equal records, in their order."""
    first: dict[bytes, int] = {}
    for i, key in enumerate(_keys(data.x, data.x.dtype)):
        first.setdefault(key, i)
    return data.take(torch.tensor(list(first.values()), dtype=torch.int64))


def _keys(x: Tensor, dtype: torch.dtype) -> Sequence[bytes]:
    """A digest of each record, the same for equal numbers: adding 0 turns -0.0 into 0.0, which has other bytes."""
    keys: list[bytes] = []
    for start in range(0, len(x), _ROWS):
        rows = x[start : start + _ROWS].detach().flatten(1).to("cpu", dtype) + 0.0
        block = rows.contiguous().view(torch.uint8).numpy()
        keys += [blake2b(row, digest_size=16).digest() for row in block]
    return keys
