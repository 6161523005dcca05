"""Multilayer perceptrons: linear layers with an activation between each two."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import nn

from remanence.models.layers import Centre


def mlp(
    shape: Sequence[int],
    num_classes: int,
    *,
    hidden: Sequence[int] = (10,),
    activation: Callable[[], nn.Module] = nn.ELU,
) -> nn.Sequential:
    """An MLP of `hidden` layers and an activation after each; by default that of Balle et al., table IV."""
    widths = [prod(shape), *hidden]
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), activation()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


def centred_mlp(shape: Sequence[int], outputs: int, *, hidden: Sequence[int] = (1000, 1000)) -> nn.Sequential:
    """An MLP with ReLU that subtracts a mean from its records and has a bias in its first layer alone: Buzaglo et al.
    2023."""
    widths = [prod(shape), *hidden]
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Flatten(), Centre(widths[0])]
        for index, (fan_in, fan_out) in enumerate(pairwise(widths)):
            layers += [nn.Linear(fan_in, fan_out, bias=index == 0), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs, bias=False))
