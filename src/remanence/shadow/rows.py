"""Flat parameter vectors: how parameters are stacked into them, and where the rows of the first dense layer lie."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import final

import torch
from torch import Tensor, nn

from remanence.models.operations import Conv, Flatten, Linear, Operation
from remanence.models.structure import Unsupported, first_linear
from remanence.types import Params


def stack_weights(stacked: Params) -> Tensor:
    """(models, parameters): a stack of models as flat vectors, sorted by the names of the parameters, because dicts of
    one model may be ordered differently."""
    return torch.cat([stacked[name].flatten(1) for name in sorted(stacked)], dim=1)


def unstack_weights(model: nn.Module, row: Tensor) -> Params:
    """The parameters of `model` from one row of `stack_weights`."""
    shapes = {name: p.shape for name, p in _state_tensors(model).items()}
    parts = row.split([shapes[name].numel() for name in sorted(shapes)])
    return {name: part.view(shapes[name]) for name, part in zip(sorted(shapes), parts, strict=True)}


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """The rows of a fully connected layer, one after the other in a flat parameter vector, and the `encoder` before the
    layer, which maps a record to the layer's inputs of `shape` (empty: they are the record itself)."""

    start: int
    bias: int | None  # where the biases of the rows begin; None: there are none
    count: int
    shape: tuple[int, ...]
    encoder: tuple[Operation, ...]
    other: Tensor  # the coordinates of all biases and of the layers after it

    @property
    def features(self) -> int:
        return prod(self.shape)

    def select(self, weights: Tensor) -> Tensor:
        """(models, rows, features): the rows of flat parameter vectors (models, parameters)."""
        return weights[:, self.start :][:, : self.count * self.features].reshape(-1, self.count, self.features)

    def coordinates(self) -> Tensor:
        """(rows, parameters of a row): the indices of the weights and of the bias of each row in a flat vector."""
        weights = torch.arange(self.start, self.start + self.count * self.features).view(self.count, -1)
        if self.bias is None:
            return weights
        return torch.cat([weights, torch.arange(self.bias, self.bias + self.count)[:, None]], dim=1)

    def restricted(self, rows: Tensor, coordinates: Tensor) -> "Rows":
        """These rows where only the sorted `coordinates` of a flat vector remain, those of the rows among them."""
        first = rows[:1]
        return replace(
            self,
            start=int(torch.searchsorted(coordinates, self.start + first * self.features)),
            bias=None if self.bias is None else int(torch.searchsorted(coordinates, self.bias + first)),
            count=len(rows),
            other=torch.isin(coordinates, self.other.to(coordinates.device)).nonzero().flatten(),
        )


def first_layer(model: nn.Module, shape: Sequence[int]) -> Rows | None:
    """The rows of the first fully connected layer of `model`; None where it has none that can be recognised."""
    first = first_linear(model, shape)
    if isinstance(first, Unsupported):
        return None
    layer, encoder = first.layer, tuple(each for each in first.before if not isinstance(each, Flatten))
    convolutions = [each for each in encoder if isinstance(each, Conv)]
    inputs = convolutions[-1].out_shape if convolutions else tuple(shape)
    kernels = {layer.weight, *(each.weight for each in convolutions)}
    return Rows(
        start=int(_coordinates(model, [layer.weight])[0]),
        bias=int(_coordinates(model, [layer.bias])[0]) if layer.has_bias else None,
        count=layer.out_features,
        shape=inputs if prod(inputs) == layer.in_features else (layer.in_features,),
        encoder=encoder,
        other=_coordinates(model, {name for name, _ in model.named_parameters()} - kernels),
    )


def rows_of_layers(model: nn.Module, layers: Sequence[Linear]) -> list[Tensor]:
    """The indices of the weights and of the bias of each row of these layers in a flat vector, layer by layer."""
    rows = []
    for layer in layers:
        weights = _coordinates(model, [layer.weight]).view(layer.out_features, -1)
        rows += list(torch.cat([weights, _coordinates(model, [layer.bias])[:, None]], 1) if layer.has_bias else weights)
    return rows


def _coordinates(model: nn.Module, names: Container[str]) -> Tensor:
    """The indices of these parameters of `model` in a row of `stack_weights`."""
    sizes = {name: p.numel() for name, p in _state_tensors(model).items()}
    return torch.cat([torch.full((sizes[name],), name in names) for name in sorted(sizes)]).nonzero().flatten()


def _state_tensors(model: nn.Module) -> Params:
    """The parameters and buffers that a stack of models holds."""
    return dict(chain(model.named_parameters(), model.named_buffers()))
