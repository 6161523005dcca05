"""The trained weights of a CNN as one vector, and its frozen norms as a factor and a shift of each channel."""

from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor

from remanence.types import Params


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """The order of the weights in the vector: those of layers, the gammas of all norms, their betas, then biases."""

    shapes: dict[str, tuple[int, ...]]
    layers: tuple[str, ...]  # convolutions and linear layers
    memory_format: torch.memory_format  # of images and kernels: channels last is fastest on a CUDA device

    def pack(self, params: Params) -> Tensor:
        """The vector of these parameters."""
        return torch.cat([self._permuted(params[name]).flatten() for name in self.shapes])

    def unpack(self, vector: Tensor) -> Params:
        """Views of the parts of a vector, by name."""
        parts = vector.split([prod(shape) for shape in self.shapes.values()])
        return {name: self._shaped(part, shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def _permuted(self, p: Tensor) -> Tensor:
        return p.permute(0, 2, 3, 1) if p.ndim == 4 and self.memory_format == torch.channels_last else p

    def _shaped(self, part: Tensor, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 4 and self.memory_format == torch.channels_last:
            return part.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
        return part.view(shape)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FrozenNorms:
    """Frozen BatchNorms with the channels of all concatenated: gamma (z - mean) / sqrt(variance + eps) + beta."""

    channels: dict[str, int]  # by the layer that applies it: a convolution that it is folded into, or the norm itself
    offset: int  # of the gammas in the vector; betas follow
    mean: Tensor
    inverse_std: Tensor  # 1 / sqrt(variance + eps)

    def scales(self, weights: Tensor) -> Params:
        return self._by_layer(self._scale(weights))

    def shifts(self, weights: Tensor) -> Params:
        beta = weights[self._betas : self._betas + len(self.mean)]
        return self._by_layer(beta.addcmul(self.mean, self._scale(weights), value=-1))

    def write_gradient(self, gradient: Tensor, grad_scales: Tensor, grad_shifts: Tensor) -> None:
        """Write the gradients with respect to gammas, which act on scales and shifts, and betas into the vector."""
        grad_gamma = grad_scales.addcmul_(self.mean, grad_shifts, value=-1)
        torch.mul(grad_gamma, self.inverse_std, out=gradient[self.offset : self._betas])
        gradient[self._betas : self._betas + len(self.mean)].copy_(grad_shifts)

    @property
    def _betas(self) -> int:
        return self.offset + len(self.mean)

    def _scale(self, weights: Tensor) -> Tensor:
        return weights[self.offset : self._betas] * self.inverse_std

    def _by_layer(self, concatenated: Tensor) -> Params:
        return dict(zip(self.channels, concatenated.split(list(self.channels.values())), strict=True))
