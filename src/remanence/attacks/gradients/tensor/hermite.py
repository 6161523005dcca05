"""Hermite coefficients of an activation, which decide what a gradient under Gaussian weights identifies of a batch."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from remanence.errors import BadInput

_NODES, _REACH = 200, 14.0  # quadrature of each half line: activations are smooth but at zero
_VANISHES = 1e-6  # a coefficient relative to the largest


def hermite_coefficients(
    activation: Callable[[Tensor], Tensor], *, max_order: int = 4, scale: float = 1.0
) -> list[float]:
    """c_k = E[s(scale z) H_k(z)] for k = 0..`max_order`, z standard normal, H_k with leading coefficient one."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    half = torch.from_numpy((nodes + 1) * _REACH / 2)
    z = torch.cat([-half.flip(0), half])
    weight = torch.from_numpy(np.concatenate([weights[::-1], weights]) * _REACH / 2)
    density = weight * (-z.square() / 2).exp() / (2 * torch.pi) ** 0.5
    values, polynomials = activation(scale * z), [torch.ones_like(z), z]
    for k in range(1, max_order):
        polynomials.append(z * polynomials[k] - k * polynomials[k - 1])
    return [float((density * values * p).sum()) for p in polynomials[: max_order + 1]]


def identifying_order(activation: Callable[[Tensor], Tensor]) -> int:
    """The order of the moment that identifies the records of a batch; activations without one are refused."""
    coefficients = hermite_coefficients(activation)
    for order in (3, 4):
        if not vanishes(order, coefficients):
            return order
    values = ", ".join(f"c_{k} = {c:.2g}" for k, c in enumerate(coefficients))
    remaining = "one combination of the batch" if vanishes(2, coefficients) else "the span of the batch"
    message = (
        f"the activation's Hermite coefficients of orders 3 and 4 vanish ({values}): only {remaining} is identified by "
        "this gradient; use another activation"
    )
    raise BadInput(message, code="not-identifiable", argument="release")


def vanishes(order: int, coefficients: Sequence[float]) -> bool:
    """Whether the coefficient of this order is zero up to rounding, relative to the largest one."""
    return abs(coefficients[order]) <= _VANISHES * max(map(abs, coefficients))
