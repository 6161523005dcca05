"""Splitting of one set of records into the four roles of an audit; no record has two of them.

A target that is also public would be "reconstructed" by looking it up, and the audit would prove nothing.
"""

from dataclasses import dataclass, fields
from functools import reduce
from itertools import combinations
from typing import final

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.types import Data

_MAY_BE_EMPTY = ("fixed", "public")
_VALUES = 2**18  # hashed at a time: more leave the processor's cache


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
                message = f"`{name}` must hold at least one record, got an empty set: ask for more"
                raise BadInput(message, code="empty", argument=name)
        _check_alike(parts)
        check_disjoint(parts)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Split":
        """The same records on another device, or in another dtype."""
        return Split(**{part.name: getattr(self, part.name).to(device, dtype) for part in fields(self)})


def _check_alike(parts: dict[str, Data]) -> None:
    kinds = {name: (part.shape, part.num_classes) for name, part in parts.items()}
    for name, kind in kinds.items():
        if kind != kinds["private"]:
            raise BadInput(
                f"`{name}` must hold records of the shape and number of classes of `private`, {kinds['private']}, "
                f"got {kind}: take all parts from one data set",
                code="shape-mismatch",
                argument=name,
            )


def check_disjoint(parts: dict[str, Data]) -> None:
    """Refuse parts that have a record in common."""
    dtype = reduce(torch.promote_types, (part.x.dtype for part in parts.values()))
    keys = {name: set(_keys(part.x, dtype)) for name, part in parts.items()}
    for one, other in combinations(keys, 2):
        common = len(keys[one] & keys[other])
        if common:
            raise BadInput(
                f"`{one}` and `{other}` must have no record in common, got {common} in both, which makes an audit "
                "meaningless: make them with `split`, which drops exact copies",
                code="conflict",
                argument=one,
            )


def split(data: Data, *, private: int, fixed: int, public: int, test: int, seed: int) -> Split:
    """Split distinct records of `data`, sampled by `seed`, into the four parts; a copy with another label is a copy."""
    # public comes last, so that the size of the public set changes nothing in the other parts
    counts = {"private": private, "test": test, "fixed": fixed, "public": public}
    for name, count in counts.items():
        if count < 0:
            raise BadInput(
                f"`{name}` must be a number of records, got {count}: give 0 or more", code="out-of-range", argument=name
            )
    different = distinct(data)
    if sum(counts.values()) > len(different):
        asked = " + ".join(f"{count} {name}" for name, count in counts.items())
        raise BadInput(
            f"{data.name} must hold {sum(counts.values())} different records ({asked}), got {len(different)} "
            f"({len(data) - len(different)} exact copies were dropped): ask for fewer",
            code="out-of-range",
            argument="data",
        )
    order = torch.randperm(len(different), generator=torch.Generator().manual_seed(seed))
    indices = dict(zip(counts, order[: sum(counts.values())].split(list(counts.values())), strict=True))
    return Split(**{name: different.take(index) for name, index in indices.items()})


def distinct(data: Data) -> Data:
    """The records without exact copies, in their order; the first of equal ones stays."""
    first: dict[bytes, int] = {}
    for i, key in enumerate(_keys(data.x, data.x.dtype)):
        first.setdefault(key, i)
    return data.take(torch.tensor(list(first.values()), dtype=torch.int64))


def _keys(x: Tensor, dtype: torch.dtype) -> list[bytes]:
    """A hash of each record, the same for equal numbers on every device: its words of 32 bits times random numbers of
    64, summed, twice. Two records that differ have the same with a probability of at most 2^-66, so that none are
    refused for nothing; equal ones always have. Adding 0 turns -0.0 into 0.0, which has other bits."""
    dtype = torch.promote_types(dtype, torch.float32)
    rows = x.detach().flatten(1)
    words = rows.shape[1] * dtype.itemsize // 4
    factors = torch.empty(2, words, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(0)).to(x.device)
    hashes = []
    for some in rows.split(max(1, _VALUES // words)):
        block = (some.to(dtype) + 0.0).contiguous().view(torch.int32).long()
        hashes.append(torch.stack([(block * factor).sum(1) for factor in factors], 1))
    keys: list[bytes] = torch.cat(hashes).cpu().numpy().view("V16")[:, 0].tolist()
    return keys
