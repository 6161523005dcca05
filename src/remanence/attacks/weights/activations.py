"""Activations with their first and second derivatives, which the gradient of a gradient takes.

Smooth ones have both. ReLU and leaky ReLU have a boundary, where a surrogate stands for the step of the derivative:
leak + (1 - leak) sigmoid(alpha a + shift).
"""

from collections.abc import Callable, Mapping
from math import pi
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, softplus

Derivatives: TypeAlias = tuple[Tensor, Tensor, Tensor]  # the activation, its derivative and the derivative of that


def derivative_below_zero(module: nn.Module) -> float | None:
    """The derivative of a ReLU or leaky ReLU at negative values; None for a smooth activation."""
    if isinstance(module, nn.LeakyReLU):
        return float(module.negative_slope)
    return 0.0 if isinstance(module, nn.ReLU) else None


def smooth(module: nn.Module, a: Tensor) -> Derivatives:
    """A smooth activation and its derivatives at `a`."""
    return _SMOOTH[type(module)](module, a)


def refusal(module: nn.Module) -> str | None:
    """Why an activation is not supported; None where it is."""
    if type(module) in (nn.ReLU, nn.LeakyReLU):
        return None
    if type(module) not in _SMOOTH:
        return f"{type(module).__name__}, not one of ReLU, LeakyReLU, {', '.join(each.__name__ for each in _SMOOTH)}"
    if isinstance(module, nn.GELU) and module.approximate != "none":
        return f'GELU(approximate="{module.approximate}"), not the exact one'
    return None


def _tanh(module: Any, a: Tensor) -> Derivatives:
    value = a.tanh()
    first = 1 - value.square()
    return value, first, -2 * value * first


def _sigmoid(module: Any, a: Tensor) -> Derivatives:
    value = a.sigmoid()
    first = value * (1 - value)
    return value, first, first * (1 - 2 * value)


def _softplus(module: Any, a: Tensor) -> Derivatives:
    first = (module.beta * a).sigmoid()
    return softplus(a, module.beta, module.threshold), first, module.beta * first * (1 - first)


def _elu(module: Any, a: Tensor) -> Derivatives:
    below = module.alpha * a.clamp_max(0).exp()
    return torch.where(a > 0, a, below - module.alpha), torch.where(a > 0, 1.0, below), torch.where(a > 0, 0.0, below)


def _silu(module: Any, a: Tensor) -> Derivatives:
    gate = a.sigmoid()
    change = gate * (1 - gate)
    return a * gate, gate + a * change, change * (2 + a * (1 - 2 * gate))


def _gelu(module: Any, a: Tensor) -> Derivatives:
    density = (-a.square() / 2).exp() / (2 * pi) ** 0.5
    return gelu(a), torch.special.ndtr(a) + a * density, density * (2 - a.square())


_SMOOTH: Mapping[type[nn.Module], Callable[[Any, Tensor], Derivatives]] = {
    nn.GELU: _gelu,
    nn.SiLU: _silu,
    nn.ELU: _elu,
    nn.Tanh: _tanh,
    nn.Sigmoid: _sigmoid,
    nn.Softplus: _softplus,
}
