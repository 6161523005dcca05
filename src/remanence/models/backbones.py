"""Frozen networks whose outputs, embeddings, a head is trained on: fine-tuning as most people do it.

AlexNet (Krizhevsky, Sutskever, Hinton 2012) comes from the file of LPIPS, which holds its convolutions. Any network
that ends with a linear layer is a backbone without that layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from remanence.errors import BadInput, check_above
from remanence.models.functional import apply
from remanence.models.lpips import SHAPES, STRIDES, alexnet_outputs, load_lpips
from remanence.types import Data, Params

_SIDES = (1, 1, 1, 1, 2)  # of the grid of means of each stage of AlexNet
_AT_ONCE = 512  # images


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Backbone:
    """A frozen network from images (n, *shape) to embeddings (n, width); of most networks they are not negative."""

    name: str
    model: nn.Module
    params: Params
    shape: tuple[int, ...]  # of an image
    scale: float = 1.0  # that embeddings are divided by

    def __post_init__(self) -> None:
        check_above(self, scale=0)
        if len(self.shape) != 3:
            message = f"`shape` of a backbone must be (channels, height, width), got {tuple(self.shape)}: give images"
            raise BadInput(message, code="shape-mismatch", argument="shape")

    def __call__(self, x: Tensor) -> Tensor:
        """The embeddings of images, through which autograd goes."""
        if tuple(x.shape[1:]) != self.shape:
            message = f"images of the backbone {self.name} must be {self.shape}, got {tuple(x.shape[1:])}: resize them"
            raise BadInput(message, code="shape-mismatch", argument="x")
        return apply(self.model, self.params, x).flatten(1) / self.scale

    @torch.no_grad()
    def embed(self, x: Tensor) -> Tensor:
        """The embeddings of any number of images, computed some at a time where the weights are, without a graph;
        they are of the device and dtype of the images."""
        like = next(filter(Tensor.is_floating_point, self.params.values()), x)  # pooling alone has no weights
        return torch.cat([self(some.to(like)).to(x) for some in x.split(_AT_ONCE)])

    @property
    def width(self) -> int:
        """The number of features of an embedding."""
        return self.embed(torch.zeros(1, *self.shape)).shape[1]

    def to(self, device: torch.device | str) -> "Backbone":
        """The same network on another device."""
        return replace(self, params={name: p.to(device) for name, p in self.params.items()})


def embedded(backbone: Backbone, data: Data) -> Data:
    """The records of `data` as rows of embeddings, with the same labels."""
    return replace(data, x=backbone.embed(data.x), name=f"{data.name} by {backbone.name}", bounds=(0.0, inf))


def alexnet(shape: Sequence[int], *, like: Tensor) -> Backbone:
    """The convolutions of AlexNet with the published weights, on the device and in the dtype of `like`.

    Features are the means over positions of each stage after its ReLU, of the last stage over the four quarters: 64 +
    192 + 384 + 256 + 4 x 256 = 1,920. Images are enlarged to 64 pixels a side, as for LPIPS.
    """
    weights = {name: p for name, p in load_lpips(like).weights.items() if name.startswith("conv")}
    return Backbone(name="AlexNet", model=AlexNetMeans(), params=weights, shape=tuple(shape))


@final
class AlexNetMeans(nn.Module):
    """From images to the means of AlexNet's stages over positions; weights are named as in the file of LPIPS."""

    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            for i, (stride, padding) in enumerate(STRIDES):
                fan_out, fan_in, kernel, _ = SHAPES[f"conv{i + 1}.weight"]
                self.add_module(f"conv{i + 1}", nn.Conv2d(fan_in, fan_out, kernel, stride=stride, padding=padding))

    def forward(self, x: Tensor) -> Tensor:
        outputs = alexnet_outputs(dict(self.named_parameters()), x)
        means = [adaptive_avg_pool2d(each, side).flatten(1) for each, side in zip(outputs, _SIDES, strict=True)]
        return torch.cat(means, dim=1)


def without_head(model: nn.Sequential, params: Params, shape: Sequence[int], *, name: str) -> Backbone:
    """A trained network without its last linear layer, such as a ResNet, whose features are means after a ReLU."""
    if not isinstance(model, nn.Sequential) or len(model) < 2 or not isinstance(model[-1], nn.Linear):
        last = type(model[-1]).__name__ if isinstance(model, nn.Sequential) and len(model) else type(model).__name__
        message = f"`model` of without_head() must be an nn.Sequential that ends with a Linear layer, got {last}"
        raise BadInput(message, code="unsupported-model", argument="model")
    layers = nn.Sequential(*islice(model, len(model) - 1)).train(model.training)
    head = f"{len(model) - 1}."
    remaining = {key: p for key, p in params.items() if not key.startswith(head)}
    return Backbone(name=name, model=layers, params=remaining, shape=tuple(shape))
