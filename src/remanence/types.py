"""The common types: `Data` goes in, `Params` are trained, a `Reconstruction` comes out."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite, isnan
from typing import TypeAlias, final

import torch
from torch import Tensor

from remanence.bounds import UNIT, Bounds, check_bounds, described, hull
from remanence.columns import Columns
from remanence.errors import BadInput

Params: TypeAlias = dict[str, Tensor]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Data:
    """Records `x` with labels `y`: images are (n, channels, height, width), table rows (n, features).

    Values lie in the box `bounds`: [0, 1] unless another is given, such as (-inf, inf) for standardised columns and
    embeddings, or (0, inf) for features after a ReLU.
    """

    x: Tensor
    y: Tensor
    num_classes: int
    name: str = "data"
    columns: Columns | None = None  # of a table: what its features mean
    groups: Tensor | None = None  # (n,) int64: the subject of each record, where several are of one person or scene
    bounds: Bounds = UNIT  # the smallest and the largest value that a record can have

    def __post_init__(self) -> None:
        check_bounds(self.bounds, self.name)
        if not self.x.is_floating_point():
            raise BadInput(
                f"`x` of {self.name} must hold floats in {described(self.bounds)}, got {self.x.dtype}: divide 8-bit "
                "pixels by 255 first",
                code="wrong-type",
                argument="x",
            )
        if self.x.ndim not in (2, 4):
            raise BadInput(
                f"`x` of {self.name} must be (n, features) or (n, channels, height, width), got {tuple(self.x.shape)}",
                code="shape-mismatch",
                argument="x",
            )
        if self.y.dtype != torch.int64 or self.y.shape != self.x.shape[:1]:
            raise BadInput(
                f"`y` of {self.name} must hold one int64 label for each of the {len(self.x)} records, "
                f"got {self.y.dtype} of shape {tuple(self.y.shape)}",
                code="wrong-type" if self.y.dtype != torch.int64 else "shape-mismatch",
                argument="y",
            )
        if self.groups is not None and (self.groups.dtype != torch.int64 or self.groups.shape != self.y.shape):
            raise BadInput(
                f"`groups` of {self.name} must hold one int64 number for each of the {len(self.x)} records, "
                f"got {self.groups.dtype} of shape {tuple(self.groups.shape)}",
                code="wrong-type" if self.groups.dtype != torch.int64 else "shape-mismatch",
                argument="groups",
            )
        if 0 in self.x.shape[1:]:
            message = f"records of {self.name} must have one value each or more, got the shape {self.shape}"
            raise BadInput(message, code="shape-mismatch", argument="x")
        if len(self.x):
            self._check_values()

    def _check_values(self) -> None:
        box, (low, high) = described(self.bounds), (float(v) for v in torch.aminmax(self.x))
        if isnan(low):
            message = f"`x` of {self.name} must lie in {box}, got nan among its values: correct or drop them"
            raise BadInput(message, code="not-finite", argument="x")
        smallest, largest = self.x.new_tensor(self.bounds).tolist()  # rounded as the values are
        if not (low >= smallest and high <= largest):
            message = (
                f"`x` of {self.name} must lie in {box}, got values from {low:g} to {high:g}: rescale it first, or say "
                "what values can be with `bounds`, such as (-inf, inf) for standardised columns and embeddings (in an "
                ".npz file an array of these two numbers)"
            )
            raise BadInput(message, code="out-of-range", argument="x")
        if not (isfinite(low) and isfinite(high)):
            message = f"`x` of {self.name} must be finite, got an infinity among its values: correct or drop them"
            raise BadInput(message, code="not-finite", argument="x")
        first, last = int(self.y.min()), int(self.y.max())
        if first < 0 or last >= self.num_classes:
            raise BadInput(
                f"labels of {self.name} must lie in 0..{self.num_classes - 1}, got {first}..{last}: "
                "correct the labels or `num_classes`",
                code="out-of-range",
                argument="y",
            )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        return tuple(self.x.shape[1:])

    @property
    def is_image(self) -> bool:
        """Whether the records are images rather than table rows."""
        return self.x.ndim == 4

    @property
    def is_unit(self) -> bool:
        """Whether values lie in [0, 1], as pixels do, so that errors in units of their range mean something."""
        return self.bounds == UNIT

    def take(self, index: Tensor | slice | list[int]) -> "Data":
        """The records at `index` with their labels."""
        groups = None if self.groups is None else self.groups[index]
        return replace(self, x=self.x[index], y=self.y[index], groups=groups)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Data":
        """The same records on `device`, as `dtype` if one is given."""
        return replace(self, x=self.x.to(device=device, dtype=dtype or self.x.dtype), y=self.y.to(device))


def concat(parts: Iterable[Data]) -> Data:
    """Concatenate several `Data` of records of one shape; names and classes are the first's, the box holds all."""
    parts = list(parts)
    shapes = {part.shape for part in parts}
    if len(shapes) != 1:
        raise BadInput(
            f"`parts` must hold records of one shape, got {sorted(shapes)}", code="shape-mismatch", argument="parts"
        )
    groups = [p.groups for p in parts if p.groups is not None]
    return replace(
        parts[0],
        x=torch.cat([p.x for p in parts]),
        y=torch.cat([p.y for p in parts]),
        groups=torch.cat(groups) if len(groups) == len(parts) else None,
        bounds=hull(p.bounds for p in parts),
    )


def float_like(params: Params) -> Tensor:
    """The first floating-point tensor of `params`, by whose device and dtype records go; counters are passed over."""
    return next(p for p in params.values() if p.is_floating_point())


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Reconstruction:
    """What an attack returns: candidates `x` in the box of the release, their labels `y` where they are inferred, and
    its objective."""

    x: Tensor
    y: Tensor | None = None
    objective: float | None = None  # the attack's own criterion at the end, lower is better


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TokenReconstruction:
    """What an attack on text returns: sequences of token ids, the most certain first, the set of tokens that it found
    anywhere in the batch, and its objective."""

    ids: Tensor  # (n, length) int64, padded with zeros; n is 0 where sequences cannot be found
    scores: Tensor  # (n,), the least certain step of each sequence, one being certain
    tokens: Tensor  # (k,) int64, distinct, the most certain first
    token_scores: Tensor  # (k,)
    objective: float | None = None  # the attack's own criterion at the end, lower is better


@final
@dataclass(frozen=True, kw_only=True)
class Caveat:
    """A caveat of a result: a code for machines, and a plain sentence."""

    code: str
    text: str
