"""Input normalisation by buffers, which are released with the weights and never trained."""

from typing import final

import torch
from torch import Tensor, nn


@final
class Centre(nn.Module):
    """Subtracts a mean from flat records."""

    mean: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.mean


@final
class Standardise(nn.Module):
    """Subtracts the mean of each channel of images and divides by its standard deviation."""

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std
