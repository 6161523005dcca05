"""Layers of numbers that are shown with the weights and never trained."""

from typing import final

import torch
from torch import Tensor, nn


@final
class Centre(nn.Module):
    """Takes a mean off flat records: a number of `Params` that is shown with the weights and never trained."""

    mean: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.mean


@final
class Standardise(nn.Module):
    """Images less the mean of each channel, over its spread: numbers of `Params` that are shown and never trained."""

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std
