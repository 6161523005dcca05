"""Linear layers with an activation between them."""

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
    """Flatten, then linear layers with `activation` between them: Balle et al., table IV, by default."""
    widths = [prod(shape), *hidden]
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), activation()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


def centred_mlp(shape: Sequence[int], outputs: int, *, hidden: Sequence[int] = (1000, 1000)) -> nn.Sequential:
    """A mean is taken off, then linear layers with ReLU, a bias in the first alone: Buzaglo et al. 2023."""
    widths = [prod(shape), *hidden]
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Flatten(), Centre(widths[0])]
        for place, (fan_in, fan_out) in enumerate(pairwise(widths)):
            layers += [nn.Linear(fan_in, fan_out, bias=place == 0), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs, bias=False))
