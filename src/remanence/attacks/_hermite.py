"""Hermite coefficients of an activation, which decide what a gradient under Gaussian weights tells of a batch."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

_NODES, _REACH = 200, 14.0  # of each half line: the activations have no kink but at zero


def hermite_coefficients(activation: Callable[[Tensor], Tensor], *, most: int = 4, scale: float = 1.0) -> list[float]:
    """c_k = E[s(scale z) H_k(z)] for k = 0..`most`, z standard normal, H_k with leading coefficient one."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    half = torch.from_numpy((nodes + 1) * _REACH / 2)
    z = torch.cat([-half.flip(0), half])
    weight = torch.from_numpy(np.concatenate([weights[::-1], weights]) * _REACH / 2)
    density = weight * (-z.square() / 2).exp() / (2 * torch.pi) ** 0.5
    values, polynomials = activation(scale * z), [torch.ones_like(z), z]
    for k in range(1, most):
        polynomials.append(z * polynomials[k] - k * polynomials[k - 1])
    return [float((density * values * p).sum()) for p in polynomials[: most + 1]]
