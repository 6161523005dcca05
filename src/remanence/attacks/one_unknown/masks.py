"""Reconstructions from models in which some rows of the first layer are reset, for many masks of rows at once.

Each coordinate of a masked model is its trained or its reset value, and so is each standardised, clipped coordinate:
the features are a sum over the rows, and so is the output of the reconstructor's first layer. One partial product for
each row, and one for all that no mask touches, therefore give the first layer's output for every masked model.
"""

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks.one_unknown.losses import mse_plus_mae
from remanence.attacks.one_unknown.network import Reconstructor
from remanence.progress import track
from remanence.shadow import Rows
from remanence.shadow.features import Scaler

_BLOCK = 64  # models at a time


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Superparameters:
    """The groups of parameters that masks select: the weights and the bias of each neuron of one or several layers."""

    coordinates: tuple[Tensor, ...]  # of each row: indices into a flat parameter vector

    @classmethod
    def from_layer(cls, layer: Rows, device: torch.device) -> "Superparameters":
        """One group for each row of `layer`."""
        return cls(coordinates=tuple(layer.coordinates().to(device)))

    def __len__(self) -> int:
        return len(self.coordinates)

    def reset(self, weights: Tensor, values: Tensor) -> Tensor:
        """The models `weights` (models, parameters) with all rows at their `values` (parameters,)."""
        flat = torch.cat(self.coordinates)
        return weights.index_copy(1, flat, values[flat].expand(len(weights), -1))

    def select(self, rows: Tensor, size: int, *, later_layers: bool) -> Tensor:
        """The sorted coordinates, out of `size`, of these rows and, if asked for, of all that belongs to no row."""
        chosen = torch.full((size,), later_layers, device=rows.device)
        chosen[torch.cat(self.coordinates)] = False
        chosen[torch.cat([self.coordinates[row] for row in rows.tolist()])] = True
        return chosen.nonzero().flatten()


def sample_masks(rows: int, max_masks: int, *, seed: int) -> Tensor:
    """(masks, rows) of 0 and 1: every mask once where there are at most `max_masks`; else balanced ones; where even
    these are more, random ones."""
    if 2**rows <= max_masks:
        return torch.arange(2**rows)[:, None] >> torch.arange(rows) & 1
    generator, order = torch.Generator().manual_seed(seed), 1 << rows.bit_length()
    if max_masks < 2 * order:
        return torch.randint(2, (max_masks, rows), generator=generator)
    return torch.cat([_balanced(rows, order, generator) for _ in range(max_masks // (2 * order))])


def _balanced(rows: int, order: int, generator: torch.Generator) -> Tensor:
    """(2 * order, rows): columns of a Hadamard matrix and of its complement. Any three rows take all eight values
    equally often, so that interactions of two do not bias the coefficient of one (a design of resolution IV)."""
    from scipy.linalg import hadamard

    columns = 1 + torch.randperm(order - 1, generator=generator)[:rows]
    signs = 2 * torch.randint(2, (rows,), generator=generator) - 1
    chosen = torch.from_numpy(hadamard(order))[:, columns] * signs
    return (torch.cat([chosen, -chosen]) + 1) // 2


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedReconstructor:
    """A reconstructor that evaluates every mask of a model through the partial products of its first layer."""

    net: Reconstructor
    scaler: Scaler
    groups: Superparameters

    @torch.no_grad()
    def errors(self, weights: Tensor, reset: Tensor, targets: Tensor, masks: Tensor) -> Tensor:
        """(models, masks): MSE + MAE of the reconstruction from each model with the rows that a mask rejects at their
        values in `reset` (parameters,)."""
        masks, errors = masks.to(weights), []
        blocks = zip(weights.split(_BLOCK), targets.split(_BLOCK), strict=True)
        for some, truth in track(blocks, total=-(-len(weights) // _BLOCK), label="masks"):
            without = self.groups.reset(some, reset)
            base, parts = self._partial_products(some, without)
            gated = self._gated_rows(some, without)
            for k, target in enumerate(truth):
                hidden = self.net.trunk[2:](torch.addmm(base[k], masks, parts[k]))
                if gated is not None:
                    hidden = self._add_rows(hidden, masks, gated[k])
                errors.append(mse_plus_mae(self.net.decode(hidden), target))
        return torch.stack(errors)

    def _partial_products(self, weights: Tensor, without: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer's outputs (models, width) for the models with all rows reset, and what each row adds to them
        (models, rows, width)."""
        linear = self.net.trunk[1]
        assert isinstance(linear, nn.Linear)
        standardise = replace(self.scaler, axes=None, rows=None)
        product = linear.weight if self.scaler.axes is None else linear.weight @ self.scaler.axes.T
        base = standardise(without)
        delta = standardise(weights).sub_(base)
        parts = [delta[:, group] @ product[:, group].T for group in self.groups.coordinates]
        return torch.addmm(linear.bias, base, product.T), torch.stack(parts, dim=1)

    def _gated_rows(self, weights: Tensor, without: Tensor) -> Tensor | None:
        """(models, 2 * rows, features): the rows that a gated head adds up, trained and then reset."""
        if not self.net.rows:
            return None
        count = len(self.scaler.active)
        pair = [self.scaler(some)[:, count:].unflatten(1, (self.net.rows, -1)) for some in (weights, without)]
        return torch.cat(pair, dim=1)

    def _add_rows(self, hidden: Tensor, masks: Tensor, pair: Tensor) -> Tensor:
        """Add each row of one model by its gate: the trained one where the mask keeps it, else the reset one."""
        hidden, gates = hidden[:, : -self.net.rows], hidden[:, -self.net.rows :]
        return torch.addmm(hidden, torch.cat([gates * masks, gates * (1 - masks)], dim=1), pair)
