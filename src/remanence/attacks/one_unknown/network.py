"""The network of a reconstructor: from features of released weights to a record.

Balle, Cherubin, Hayes (IEEE S&P 2022), tables IV and VI, give the `dense` and the `deconv` head. The `gated` head is
ours (docs/decisions/0007): training moves each row of the first fully connected layer along that layer's inputs, the
unknown record's among them, so the network adds these rows to its output, each by a gate that it predicts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from remanence.bounds import UNIT, Bounds, is_finite
from remanence.models import deconv, mirror, mlp
from remanence.models.operations import Conv
from remanence.shadow import Rows
from remanence.types import Data, Params

Head: TypeAlias = Literal["gated", "dense", "deconv"]


@final
class Reconstructor(nn.Module):
    """A network from features (n, inputs) to records (n, *shape) in a box.

    With `rows` > 0 the features that the trunk does not take are that many rows of the first layer; the trunk's last
    `rows` outputs are their gates. A `decoder`, if any, maps that layer's inputs back to the record.
    """

    def __init__(
        self,
        trunk: nn.Sequential,
        shape: Sequence[int],
        *,
        rows: int = 0,
        decoder: nn.Sequential | None = None,
        output: "Output | None" = None,
    ) -> None:
        super().__init__()
        self.output = output or Output()
        self.trunk, self.decoder = trunk, decoder
        self.shape, self.rows = tuple(shape), rows

    def forward(self, inputs: Tensor, dropout_masks: Iterable[Tensor] = ()) -> Tensor:
        """Records (n, *shape); the outputs of each hidden layer are multiplied by its dropout mask, if it has one."""
        taken = next((layer.in_features for layer in self.trunk if isinstance(layer, nn.Linear)), inputs.shape[1])
        x, masks = inputs[:, :taken], iter(dropout_masks)
        for layer in self.trunk:
            x = layer(x)
            if isinstance(layer, nn.ReLU) and x.ndim == 2:
                mask = next(masks, None)
                x = x if mask is None else x * mask
        if self.rows:
            rows = inputs[:, taken:].unflatten(1, (self.rows, -1))
            x = torch.baddbmm(x[:, None, : -self.rows], x[:, None, -self.rows :], rows).squeeze(1)
        return self.decode(x)

    def decode(self, hidden: Tensor) -> Tensor:
        """Records from the inputs of the first fully connected layer, or from logits where there is no decoder."""
        x: Tensor = hidden if self.decoder is None else self.decoder(hidden)
        return self.output(x).reshape(-1, *self.shape)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Output:
    """From the last layer's outputs to values in the box of the records: a sigmoid in a finite one, otherwise in units
    of `std` from `mean`, those of public records, or from the one side of the box."""

    bounds: Bounds = UNIT
    mean: Tensor | None = None  # of each value, where the box is not finite
    std: Tensor | None = None

    @classmethod
    def from_records(cls, records: Data) -> "Output":
        """The output for records like these."""
        if is_finite(records.bounds):
            return cls(bounds=records.bounds)
        std, mean = torch.std_mean(records.x, dim=0, correction=0)
        return cls(bounds=records.bounds, mean=mean, std=torch.where(std > 0, std, torch.ones_like(std)))

    def __call__(self, x: Tensor) -> Tensor:
        low, high = self.bounds
        if self.mean is None or self.std is None:
            unit = x.sigmoid()
            return unit if self.bounds == UNIT else low + (high - low) * unit
        mean, std = (each.to(x).reshape(x.shape[1:]) for each in (self.mean, self.std))
        if isfinite(low):
            return low + std * softplus(x)
        return high - std * softplus(x) if isfinite(high) else mean + std * x


def build_network(head: Head, hidden: Sequence[int], inputs: int, records: Data, layer: Rows | None) -> Reconstructor:
    """An uninitialised reconstructor of records like `records`, with hidden layers of these widths; `layer` is what a
    gated head adds up."""
    shape, output = records.shape, Output.from_records(records)
    if head == "deconv":
        return Reconstructor(deconv(inputs, shape, hidden=hidden), shape, output=output)
    if head == "dense" or layer is None:
        return Reconstructor(mlp((inputs,), prod(shape), hidden=hidden, activation=nn.ReLU), shape, output=output)
    trunk = mlp((inputs,), layer.features + layer.count, hidden=hidden, activation=nn.ReLU)
    convolutions = [each for each in layer.encoder if isinstance(each, Conv)]
    decoder = mirror(convolutions) if convolutions else None
    return Reconstructor(trunk, shape, rows=layer.count, decoder=decoder, output=output)


def materialise(net: nn.Module, params: Params, like: Tensor) -> nn.Module:
    """Give the architecture `net` the values `params` in the dtype and device of `like`, to be trained in place."""
    net.load_state_dict({name: p.to(like) for name, p in params.items()}, assign=True)
    return net.requires_grad_()
