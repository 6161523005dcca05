"""Flat parameter vectors, and where in them the rows of the first fully connected layer lie."""

from collections.abc import Container, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor, nn

from remanence.types import Params


def stack_weights(stacked: Params) -> Tensor:
    """A stack of K models as K flat rows, in the order of the names: dicts of one model may be ordered differently."""
    return torch.cat([stacked[name].flatten(1) for name in sorted(stacked)], dim=1)


def unstack(model: nn.Module, row: Tensor) -> Params:
    """One row of `stack_weights` as the parameters of `model`."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    parts = row.split([shapes[name].numel() for name in sorted(shapes)])
    return {name: part.view(shapes[name]) for name, part in zip(sorted(shapes), parts, strict=True)}


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """The rows of a layer, one behind the other in a flat parameter vector, and the `encoder` before the layer, which
    turns a record into its inputs of `shape` (empty: they are the record itself)."""

    start: int
    count: int
    shape: tuple[int, ...]
    encoder: nn.Sequential
    beside: Tensor  # the coordinates of all biases and of the layers behind

    @property
    def features(self) -> int:
        return prod(self.shape)

    def of(self, weights: Tensor) -> Tensor:
        """(models, rows, features)."""
        return weights[:, self.start :][:, : self.count * self.features].reshape(-1, self.count, self.features)


def first_layer(model: nn.Module, shape: Sequence[int]) -> Rows | None:
    """The first fully connected layer; None where `model` is no sequence that comes to one."""
    layers = list(model) if isinstance(model, nn.Sequential) else []
    for place, layer in enumerate(layers):
        if isinstance(layer, nn.Linear):
            encoder = nn.Sequential(*(m for m in layers[:place] if not isinstance(m, nn.Flatten)))
            inputs = deepcopy(encoder).to("meta")(torch.empty(1, *shape, device="meta")).shape[1:]
            before = sum(p.numel() for name, p in model.named_parameters() if name < f"{place}.weight")
            behind = {id(p) for later in layers[place + 1 :] for p in later.parameters()}
            small = {name for name, p in model.named_parameters() if p.ndim == 1 or id(p) in behind}
            beside = _coordinates(model, small)
            return Rows(start=before, count=layer.out_features, shape=tuple(inputs), encoder=encoder, beside=beside)
    return None


def _coordinates(model: nn.Module, names: Container[str]) -> Tensor:
    """Where these parameters of `model` lie in a row of `stack_weights`."""
    sizes = [(name, p.numel()) for name, p in sorted(model.named_parameters())]
    return torch.cat([torch.full((size,), name in names) for name, size in sizes]).nonzero().flatten()
