"""Weights as a reconstructor sees them: standardised over the shadows and, where asked, reduced to their main axes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, final

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.shadow import Rows

_BLOCK = 1024  # rows or columns at a time: a bank fills a good part of the memory, and one copy of it is enough
FLOOR = 1e-4
_SPARE, _ROUNDS = 32, 4  # axes beyond those asked for, and passes over the bank


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Scaler:
    """Each coordinate to zero mean and unit spread over the shadows, clipped, then projected on `axes` if it has any.

    A coordinate that never receives a gradient has no spread but rounding: divided by it, noise would become signal.
    Coordinates with less than the share `floor` of the widest spread are therefore set to zero. Behind them come the
    `rows` of the first layer if asked for, not clipped, with one unit for each row, so that within a row they stand to
    each other as a record's features do.
    """

    mean: Tensor
    spread: Tensor
    clip: float | None
    axes: Tensor | None = None  # (coordinates, axes)
    rows: Rows | None = None

    @classmethod
    def fit(cls, weights: Tensor, *, clip: float | None, rows: Tensor | None = None, floor: float = FLOOR) -> "Scaler":
        """Mean and spread over `rows` of `weights`, or over all."""
        rows = torch.arange(len(weights), device=weights.device) if rows is None else rows
        parts = [torch.std_mean(columns[rows], dim=0) for columns in weights.split(_BLOCK, dim=1)]
        spread, mean = (torch.cat(part) for part in zip(*parts, strict=True))
        alive = spread > floor * spread.max()
        return cls(mean=mean, spread=torch.where(alive, spread, torch.inf), clip=clip)

    def reduced(self, weights: Tensor, count: int, *, rows: Tensor, seed: int) -> "Scaler":
        """The same, projected on the `count` axes along which `rows` of `weights` vary most."""
        most = min(len(rows), weights.shape[1])
        if not 1 <= count <= most:
            raise BadInput(f"`pca` must lie in 1..{most}, the rank of the bank, got {count}: use fewer axes")
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(weights.shape[1], min(most, count + _SPARE), generator=generator).to(weights)
        axes, variance = principal(partial(self._blocks, weights, rows), start, count)
        # One factor for all axes: divided each by its own spread, those that hold rounding would count as much as the
        # others (digits, 1,000 shadows, 300 axes: MSE 0.024 instead of 0.015).
        return replace(self, axes=axes * (len(rows) / variance.mean()).sqrt())

    def centred(self, mean: Tensor, *, clip: float | None) -> "Scaler":
        return replace(self, mean=mean, clip=clip)

    @property
    def alive(self) -> Tensor:
        """One for each input that carries anything, zero for the others."""
        return self.spread.isfinite().to(self.mean) if self.axes is None else torch.ones_like(self.axes[0])

    def __call__(self, weights: Tensor) -> Tensor:
        self.require(weights)
        count = len(self.alive)
        made = weights.new_empty(len(weights), count + (self.rows.count * self.rows.features if self.rows else 0))
        for block, part in zip(made.split(_BLOCK), weights.split(_BLOCK), strict=True):
            standard = self.standardised(part)
            block[:, :count] = standard if self.axes is None else standard @ self.axes
            if self.rows:
                block[:, count:] = self.moved(part, self.rows).flatten(1)
        return made

    def require(self, weights: Tensor) -> None:
        if weights.shape[1] != len(self.mean):
            raise BadInput(
                f"the reconstructor reads models of {len(self.mean)} parameters, got {weights.shape[1]}: "
                "fit it on shadows of this model"
            )

    def moved(self, weights: Tensor, rows: Rows) -> Tensor:
        """(models, rows, features): how far each row lies from its mean, in units of its widest spread."""
        spread = torch.where(self.spread.isfinite(), self.spread, 0.0)
        unit = rows.of(spread[None]).amax(2).clamp_min(1e-4 * spread.max())
        return rows.of(weights - self.mean) / unit[:, :, None]

    def _blocks(self, weights: Tensor, rows: Tensor) -> Iterator[Tensor]:
        return (self.standardised(weights[some]) for some in rows.split(_BLOCK))

    def standardised(self, weights: Tensor) -> Tensor:
        standard = (weights - self.mean).div_(self.spread)
        return standard if self.clip is None else standard.clamp_(-self.clip, self.clip)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Digest:
    """A few hundred numbers to read the gates off, and behind them the rows that the gates multiply.

    A gate depends on how far the record has pushed each row. The inner products of the rows' movements tell that up to
    the sign, biases and later layers tell the rest. All is divided by how far the rows have moved at all: what a
    record looks like does not depend on how much was left to learn from it.
    """

    whole: Scaler  # of the weights
    rows: Rows
    scaler: Scaler  # of what is read off them

    @classmethod
    def fit(cls, weights: Tensor, layer: Rows, *, clip: float | None, rows: Tensor, floor: float = FLOOR) -> "Digest":
        """Means and spreads over `rows` of `weights`."""
        layer = replace(layer, beside=layer.beside.to(weights.device))
        whole = Scaler.fit(weights, clip=None, rows=rows, floor=floor)
        bare = cls(whole=whole, rows=layer, scaler=whole)
        read = torch.cat([bare._read(some)[0] for some in weights.split(_BLOCK)])
        return replace(bare, scaler=Scaler.fit(read, clip=clip, rows=rows))

    def centred(self, mean: Tensor, *, clip: float | None) -> "Digest":
        return replace(self, whole=replace(self.whole, mean=mean), scaler=replace(self.scaler, clip=clip))

    @property
    def alive(self) -> Tensor:
        return self.scaler.alive

    def __call__(self, weights: Tensor) -> Tensor:
        self.whole.require(weights)
        count = len(self.alive)
        made = weights.new_empty(len(weights), count + self.rows.count * self.rows.features)
        for block, part in zip(made.split(_BLOCK), weights.split(_BLOCK), strict=True):
            read, rows = self._read(part)
            block[:, :count], block[:, count:] = self.scaler(read), rows.flatten(1)
        return made

    def _read(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The digest, and the rows in units of their root mean square."""
        rows = self.whole.moved(weights, self.rows)
        size = rows.square().mean((1, 2)).sqrt().clamp_min(torch.finfo(rows.dtype).eps)
        rows = rows / size[:, None, None]
        above = torch.triu_indices(self.rows.count, self.rows.count, device=rows.device)
        products = (rows @ rows.mT / self.rows.features)[:, above[0], above[1]]
        beside = self.whole.standardised(weights)[:, self.rows.beside]
        return torch.cat([beside / size[:, None], products, size.log()[:, None]], dim=1), rows


Inputs: TypeAlias = Scaler | Digest


def principal(blocks: Callable[[], Iterator[Tensor]], start: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first `count` right singular vectors of the rows in `blocks`, and their squared singular values.

    Subspace iteration from random directions (Halko, Martinsson, Tropp 2011): the matrix is only ever multiplied.
    """
    basis = torch.linalg.qr(start).Q
    for _ in range(_ROUNDS):
        image = torch.zeros_like(basis)
        for block in blocks():
            image += block.T @ (block @ basis)
        basis = torch.linalg.qr(image).Q
    gram = basis.new_zeros(basis.shape[1], basis.shape[1])
    for block in blocks():
        projected = block @ basis
        gram += projected.T @ projected
    values, turn = torch.linalg.eigh(gram)
    return basis @ turn[:, -count:].flip(1), values[-count:].flip(0)
