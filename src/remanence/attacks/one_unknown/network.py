"""The network of a reconstructor: from features of released weights to a record.

Balle, Cherubin, Hayes (IEEE S&P 2022), tables IV and VI, give the `dense` and the `deconv` head. The `gated` head is
ours (docs/decisions/0007): training moves each row of the first fully connected layer along that layer's inputs, the
unknown record's among them, so the network adds these rows to its output, each by a gate that it predicts.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn

from remanence.models import deconv, mirror, mlp
from remanence.models.operations import Conv
from remanence.shadow import Rows
from remanence.types import Params

Head: TypeAlias = Literal["gated", "dense", "deconv"]


@final
class Reconstructor(nn.Module):
    """A network from features (n, inputs) to records (n, *shape) in [0, 1].

    With `rows` > 0 the features that the trunk does not take are that many rows of the first layer; the trunk's last
    `rows` outputs are their gates. A `decoder`, if any, maps that layer's inputs back to the record.
    """

    def __init__(
        self, trunk: nn.Sequential, shape: Sequence[int], *, rows: int = 0, decoder: nn.Sequential | None = None
    ) -> None:
        super().__init__()
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
        return x.sigmoid().reshape(-1, *self.shape)


def build_network(
    head: Head, hidden: Sequence[int], inputs: int, shape: Sequence[int], layer: Rows | None
) -> Reconstructor:
    """An uninitialised reconstructor with hidden layers of these widths; `layer` is what a gated head adds up."""
    if head == "deconv":
        return Reconstructor(deconv(inputs, shape, hidden=hidden), shape)
    if head == "dense" or layer is None:
        return Reconstructor(mlp((inputs,), prod(shape), hidden=hidden, activation=nn.ReLU), shape)
    trunk = mlp((inputs,), layer.features + layer.count, hidden=hidden, activation=nn.ReLU)
    convolutions = [each for each in layer.encoder if isinstance(each, Conv)]
    decoder = mirror(convolutions) if convolutions else None
    return Reconstructor(trunk, shape, rows=layer.count, decoder=decoder)


def materialise(net: nn.Module, params: Params, like: Tensor) -> nn.Module:
    """Give the architecture `net` the values `params` in the dtype and device of `like`, to be trained in place."""
    net.load_state_dict({name: p.to(like) for name, p in params.items()}, assign=True)
    return net.requires_grad_()
