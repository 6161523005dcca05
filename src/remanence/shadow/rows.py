"""Flat parameter vectors: how parameters are stacked into them, and where the rows of the first dense layer lie."""

from collections.abc import Container, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor, nn

from remanence.types import Params


def stack_weights(stacked: Params) -> Tensor:
    """(models, parameters): a stack of models as flat vectors, sorted by the names of the parameters, because dicts of
    one model may be ordered differently."""
    return torch.cat([stacked[name].flatten(1) for name in sorted(stacked)], dim=1)


def unstack_weights(model: nn.Module, row: Tensor) -> Params:
    """The parameters of `model` from one row of `stack_weights`."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    parts = row.split([shapes[name].numel() for name in sorted(shapes)])
    return {name: part.view(shapes[name]) for name, part in zip(sorted(shapes), parts, strict=True)}


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """The rows of a fully connected layer, one after the other in a flat parameter vector, and the `encoder` before the
    layer, which maps a record to the layer's inputs of `shape` (empty: they are the record itself)."""

    start: int
    count: int
    shape: tuple[int, ...]
    encoder: nn.Sequential
    other: Tensor  # the coordinates of all biases and of the layers after it

    @property
    def features(self) -> int:
        return prod(self.shape)

    def select(self, weights: Tensor) -> Tensor:
        """(models, rows, features): the rows of flat parameter vectors (models, parameters)."""
        return weights[:, self.start :][:, : self.count * self.features].reshape(-1, self.count, self.features)


def first_layer(model: nn.Module, shape: Sequence[int]) -> Rows | None:
    """The first fully connected layer of `model`; None where it is no sequence that has one."""
    layers = list(model) if isinstance(model, nn.Sequential) else []
    for index, layer in enumerate(layers):
        if isinstance(layer, nn.Linear):
            encoder = nn.Sequential(*(m for m in layers[:index] if not isinstance(m, nn.Flatten)))
            inputs = deepcopy(encoder).to("meta")(torch.empty(1, *shape, device="meta")).shape[1:]
            before = sum(p.numel() for name, p in model.named_parameters() if name < f"{index}.weight")
            after = {id(p) for later in layers[index + 1 :] for p in later.parameters()}
            small = {name for name, p in model.named_parameters() if p.ndim == 1 or id(p) in after}
            other = _coordinates(model, small)
            return Rows(start=before, count=layer.out_features, shape=tuple(inputs), encoder=encoder, other=other)
    return None


def _coordinates(model: nn.Module, names: Container[str]) -> Tensor:
    """The indices of these parameters of `model` in a row of `stack_weights`."""
    sizes = [(name, p.numel()) for name, p in sorted(model.named_parameters())]
    return torch.cat([torch.full((size,), name in names) for name, size in sizes]).nonzero().flatten()
