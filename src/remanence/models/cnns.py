"""The convolutional network of Balle et al."""

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import nn

from remanence.errors import BadInput


def cnn(shape: Sequence[int], num_classes: int, *, activation: Callable[[], nn.Module] = nn.ELU) -> nn.Sequential:
    """Two valid 4x4 convolutions and two linear layers: Balle et al., table V (55,208 parameters on CIFAR-10)."""
    if len(shape) != 3 or min(shape[1:]) < 10:
        message = f"`shape` of cnn() must be (channels, height, width) of at least 10x10, got {tuple(shape)}: use mlp()"
        raise BadInput(message, code="out-of-range", argument="shape")
    channels, height, width = shape
    sides = [(side - 4) // 2 + 1 - 3 for side in (height, width)]
    with torch.device("meta"):
        return nn.Sequential(
            *(nn.Conv2d(channels, 16, 4, stride=2), activation(), nn.Conv2d(16, 32, 4), activation(), nn.Flatten()),
            *(nn.Linear(32 * prod(sides), 10), activation(), nn.Linear(10, num_classes)),
        )
