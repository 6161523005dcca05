"""What a reconstructor makes of models in which some rows of the first layer are put back to where they started.

Each coordinate of a masked model is its own or its initial one, and so is each standardised, clipped coordinate: the
inputs of the reconstructor's first layer are a sum over the rows, and what the layer makes of them is as well. One
partial product for each row, and one for all that no mask touches, stand for the first layer of every masked model.
"""

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks.one_unknown.reconstructor import Reader
from remanence.progress import track
from remanence.shadow import Rows
from remanence.shadow.features import Scaler

_BLOCK = 64  # models at a time


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Superparameters:
    """The coordinates (rows, weights of a row and its bias) in a flat parameter vector, one group for each neuron."""

    coordinates: Tensor

    @classmethod
    def of(cls, model: nn.Sequential, layer: Rows, device: torch.device) -> "Superparameters":
        weights = torch.arange(layer.start, layer.start + layer.count * layer.features, device=device)
        groups = [weights.view(layer.count, layer.features)]
        name, linear = next((n, m) for n, m in model.named_children() if isinstance(m, nn.Linear))
        if linear.bias is not None:
            before = sum(p.numel() for other, p in model.named_parameters() if other < f"{name}.bias")
            groups.append(torch.arange(before, before + layer.count, device=device)[:, None])
        return cls(coordinates=torch.cat(groups, dim=1))

    def __len__(self) -> int:
        return len(self.coordinates)

    def reverted(self, weights: Tensor, initial: Tensor) -> Tensor:
        """The models with all rows at their initial values."""
        flat = self.coordinates.flatten()
        return weights.index_copy(1, flat, initial[flat].expand(len(weights), -1))

    def left(self, kept: Tensor, size: int, *, later: bool) -> Tensor:
        """The coordinates of the `kept` rows and, if asked for, of all that belongs to no row, in their order."""
        chosen = torch.full((size,), later, device=kept.device)
        chosen[self.coordinates.flatten()] = False
        chosen[self.coordinates[kept].flatten()] = True
        return chosen.nonzero().flatten()


def masks_of(rows: int, most: int, *, seed: int) -> Tensor:
    """(masks, rows): each of them once where there are at most so many, else balanced ones, and where these are more,
    drawn ones."""
    if 2**rows <= most:
        return torch.arange(2**rows)[:, None] >> torch.arange(rows) & 1
    generator, order = torch.Generator().manual_seed(seed), 1 << rows.bit_length()
    if most < 2 * order:
        return torch.randint(2, (most, rows), generator=generator)
    return torch.cat([_balanced(rows, order, generator) for _ in range(most // (2 * order))])


def _balanced(rows: int, order: int, generator: torch.Generator) -> Tensor:
    """A Hadamard matrix and its complement: any three rows are kept in all eight ways equally often, so that what two
    of them do together leaves the coefficient of each as it is over all masks (a design of resolution IV)."""
    from scipy.linalg import hadamard

    columns = 1 + torch.randperm(order - 1, generator=generator)[:rows]
    flips = 2 * torch.randint(2, (rows,), generator=generator) - 1
    chosen = torch.from_numpy(hadamard(order))[:, columns] * flips
    return (torch.cat([chosen, -chosen]) + 1) // 2


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedReader:
    """A reconstructor that reads every masked model at once; it reads nothing but its partial products."""

    net: Reader
    scaler: Scaler
    groups: Superparameters

    @torch.no_grad()
    def errors(self, weights: Tensor, initial: Tensor, targets: Tensor, masks: Tensor) -> Tensor:
        """(models, masks): the error of each masked model's reconstruction."""
        masks, found = masks.to(weights), []
        blocks = zip(weights.split(_BLOCK), targets.split(_BLOCK), strict=True)
        for some, truth in track(blocks, total=-(-len(weights) // _BLOCK), label="masks"):
            reverted = self.groups.reverted(some, initial)
            base, parts = self._partial_products(some, reverted)
            pairs = self._rows(some, reverted)
            for k, target in enumerate(truth):
                made = self.net.trunk[2:](torch.addmm(base[k], masks, parts[k]))
                if pairs is not None:
                    made = self._add_rows(made, masks, pairs[k])
                found.append(reading_error(self.net.decode(made), target))
        return torch.stack(found)

    def _partial_products(self, weights: Tensor, reverted: Tensor) -> tuple[Tensor, Tensor]:
        """(models, width) of the reverted models, and what each row adds to it (models, rows, width)."""
        linear = self.net.trunk[1]
        assert isinstance(linear, nn.Linear)
        bare = replace(self.scaler, axes=None, rows=None)
        product = linear.weight if self.scaler.axes is None else linear.weight @ self.scaler.axes.T
        without = bare(reverted)
        moved = bare(weights).sub_(without)
        parts = [moved[:, own] @ product[:, own].T for own in self.groups.coordinates]
        return torch.addmm(linear.bias, without, product.T), torch.stack(parts, dim=1)

    def _rows(self, weights: Tensor, reverted: Tensor) -> Tensor | None:
        """(models, 2 * rows, features): what a gated reconstructor adds, the rows as they are and as they began."""
        if not self.net.rows:
            return None
        count = len(self.scaler.alive)
        pair = [self.scaler(some)[:, count:].unflatten(1, (self.net.rows, -1)) for some in (weights, reverted)]
        return torch.cat(pair, dim=1)

    def _add_rows(self, made: Tensor, masks: Tensor, pair: Tensor) -> Tensor:
        """Each row of one model by its gate: its own where the mask keeps it, else its initial one."""
        made, gates = made[:, : -self.net.rows], made[:, -self.net.rows :]
        return torch.addmm(made, torch.cat([gates * masks, gates * (1 - masks)], dim=1), pair)


def reading_error(found: Tensor, target: Tensor) -> Tensor:
    """The paper fits its surrogate to the MSE alone, and trains and reports MSE + MAE: here one error is all three."""
    difference = (found - target).flatten(1)
    return difference.square().mean(1) + difference.abs().mean(1)
