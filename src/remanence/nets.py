"""Architectures as plain functions, and the weights they start from.

A model here is only its architecture: it is built on the meta device, holds no numbers and draws none from the global
generator. The numbers are `Params`, passed in by whoever calls the model.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod, sqrt

import torch
from torch import Tensor, nn
from torch.func import functional_call

from remanence.errors import BadInput
from remanence.types import Params


def mlp(
    shape: Sequence[int],
    num_classes: int,
    *,
    hidden: Sequence[int] = (10,),
    activation: type[nn.Module] = nn.ELU,
) -> nn.Sequential:
    """Flatten, then linear layers with `activation` between them: Balle et al., table IV, by default."""
    widths = [prod(shape), *hidden]
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), activation()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


def cnn(shape: Sequence[int], num_classes: int, *, activation: type[nn.Module] = nn.ELU) -> nn.Sequential:
    """Two valid 4x4 convolutions and two linear layers: Balle et al., table V (55,208 parameters on CIFAR-10)."""
    if len(shape) != 3 or min(shape[1:]) < 10:
        raise BadInput(f"cnn() needs images (channels, height, width) of at least 10x10, got {tuple(shape)}: use mlp()")
    channels, height, width = shape
    left = [(side - 4) // 2 + 1 - 3 for side in (height, width)]
    with torch.device("meta"):
        return nn.Sequential(
            *(nn.Conv2d(channels, 16, 4, stride=2), activation(), nn.Conv2d(16, 32, 4), activation(), nn.Flatten()),
            *(nn.Linear(32 * prod(left), 10), activation(), nn.Linear(10, num_classes)),
        )


def initial_params(model: nn.Module, *, seed: int) -> Params:
    """Truncated normal weights with sigma = 1/sqrt(fan_in), cut at two sigma, and zero biases: haiku's default."""
    generator = torch.Generator().manual_seed(seed)
    params: Params = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not isinstance(module, nn.Linear | nn.Conv2d):
                raise BadInput(
                    f"initial_params() knows Linear and Conv2d, got {type(module).__name__} at `{path}`: "
                    "pass the initial weights yourself"
                )
            params[f"{path}.{name}" if path else name] = _draw(parameter, generator)
    return params


def _draw(parameter: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.zeros(parameter.shape)
    if drawn.ndim > 1:
        sigma = 1 / sqrt(drawn[0].numel())
        nn.init.trunc_normal_(drawn, std=sigma, a=-2 * sigma, b=2 * sigma, generator=generator)
    return drawn


def apply(model: nn.Module, params: Params, x: Tensor) -> Tensor:
    """The logits of `model` with the weights `params`."""
    logits: Tensor = functional_call(model, params, (x,))
    return logits
