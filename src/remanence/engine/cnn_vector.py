"""The trained weights of a convolutional net as one vector, and its frozen norms as factors and shifts of channels."""

from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor

from remanence.types import Params


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Order:
    """Of the weights in the vector: those of layers, the factors of all norms, their shifts, then biases."""

    shapes: dict[str, tuple[int, ...]]
    layers: tuple[str, ...]  # convolutions and linear ones
    form: torch.memory_format  # of images and kernels: channels last is what a CUDA device multiplies fastest

    def packed(self, params: Params) -> Tensor:
        return torch.cat([self._turned(params[name]).flatten() for name in self.shapes])

    def named(self, vector: Tensor) -> Params:
        """Views of its parts."""
        parts = vector.split([prod(shape) for shape in self.shapes.values()])
        return {name: self._shaped(part, shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def _turned(self, p: Tensor) -> Tensor:
        return p.permute(0, 2, 3, 1) if p.ndim == 4 and self.form == torch.channels_last else p

    def _shaped(self, part: Tensor, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 4 and self.form == torch.channels_last:
            return part.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
        return part.view(shape)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Norms:
    """Frozen BatchNorms with the channels of all side by side: gamma (z - mean) / sqrt(variance + eps) + beta."""

    channels: dict[str, int]  # of each, by the layer that takes it: a convolution that it is folded into, or itself
    first: int  # where gammas begin in the vector; betas follow
    mean: Tensor
    rate: Tensor  # 1 / sqrt(variance + eps)

    def scales(self, weights: Tensor) -> Params:
        return self._each(self._scale(weights))

    def shifts(self, weights: Tensor) -> Params:
        beta = weights[self._behind : self._behind + len(self.mean)]
        return self._each(beta.addcmul(self.mean, self._scale(weights), value=-1))

    def pull(self, found: Tensor, products: Tensor, shifted: Tensor) -> None:
        """On gamma, which acts on the kernel and on the shift, and on beta."""
        torch.mul(products.addcmul_(self.mean, shifted, value=-1), self.rate, out=found[self.first : self._behind])
        found[self._behind : self._behind + len(self.mean)].copy_(shifted)

    @property
    def _behind(self) -> int:
        return self.first + len(self.mean)

    def _scale(self, weights: Tensor) -> Tensor:
        return weights[self.first : self._behind] * self.rate

    def _each(self, every: Tensor) -> Params:
        return dict(zip(self.channels, every.split(list(self.channels.values())), strict=True))
