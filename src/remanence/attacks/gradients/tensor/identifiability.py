"""What a gradient under Gaussian weights can identify: by the Hermite coefficients of the activation, by how many
independent records it is of, and by how much of it is noise."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from remanence.attacks.gradients.tensor.moments import span_of_rows
from remanence.attacks.gradients.tensor.refinement import row_space
from remanence.attacks.gradients.tensor.wide_layer import WideLayer
from remanence.errors import BadInput

_NODES, _REACH = 200, 14.0  # quadrature of each half line: activations are smooth but at zero
_VANISHES = 1e-6  # a coefficient relative to the largest
_EQUATIONS = 2  # for each unknown, at least
_MAX_RECORDS, _CLEAR_GAP = 64, 10.0  # where the number is not known; ratio of neighbouring singular values
_SLACK = 1.1  # over the noise that is expected


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


def estimate_rank(layer: WideLayer, *, seed: int) -> int:
    """The number of independent records in the gradient: its singular values before rounding, or before a wide gap."""
    values = span_of_rows(layer.grad_rows, min(_MAX_RECORDS, *layer.grad_rows.shape), seed=seed)[1]
    rank = int((values > layer.gap * values[0]).sum())
    if rank < len(values) or rank == 1:
        return rank
    gaps = values[:-1] / values[1:]
    if float(gaps.max()) < _CLEAR_GAP:
        message = (
            f"the gradient shows {rank} directions or more and no gap between them, which does not determine the "
            "number of records: give `batch_size`"
        )
        raise BadInput(message, code="not-enough-knowledge", argument="batch_size")
    return int(gaps.argmax()) + 1


def check_independent(layer: WideLayer, count: int, *, seed: int) -> None:
    """Refuse a gradient that does not show `count` independent records."""
    rows, features = layer.grad_rows.shape
    if count < 1:
        message = f"`batch_size` must be a number of records, got {count}: give 1 or more"
        raise BadInput(message, code="out-of-range", argument="batch_size")
    if count > min(rows, features):
        raise BadInput(
            f"a gradient of {rows} rows and {features} features cannot separate {count} records: use a wider layer",
            code="not-identifiable",
            argument="batch_size",
        )
    values = span_of_rows(layer.grad_rows, count, seed=seed)[1]
    rank = int((values > layer.gap * values[0]).sum())
    if rank < count:
        message = (
            f"the gradient shows {rank} independent directions and the batch has {count} records: some of them depend "
            "linearly on others, or leave no trace, and cannot be separated"
        )
        raise BadInput(message, code="not-identifiable", argument="batch_size")


def check_determined(layer: WideLayer, count: int, *, norm_known: bool) -> None:
    """Refuse a gradient that other batches of `count` records explain as well."""
    equations = len(layer.rows) * (count + (layer.grad_biases is not None))
    unknowns = count * (count + row_space(layer.head).shape[1])
    if equations < _EQUATIONS * unknowns:
        message = (
            f"{len(layer.rows)} rows give {equations} equations for {unknowns} unknowns of {count} records, and "
            f"{_EQUATIONS} times as many are needed: other batches may explain the gradient; use a wider layer"
        )
        raise BadInput(message, code="not-identifiable", argument="batch_size")
    if not norm_known and layer.grad_biases is None and layer.homogeneous:
        message = (
            "without biases and with an activation such as ReLU a record of twice the length and half the residual "
            "gives the same gradient: give the `norm` of the records"
        )
        raise BadInput(message, code="not-identifiable", argument="norm")


def estimate_noise(layer: WideLayer, count: int, *, seed: int) -> float:
    """The fraction of noise in the gradient within the span and in that of the biases, if it is as large there as
    outside the span; 0 where that may be rounding."""
    span, features = span_of_rows(layer.grad_rows, count, seed=seed)[0], layer.grad_rows.shape[1]
    inside, total = layer.grad_rows @ span, layer.grad_rows.norm()
    biases = torch.zeros_like(total) if layer.grad_biases is None else layer.grad_biases.norm()
    outside = (layer.grad_rows - inside @ span.T).norm() / total * (features / max(1, features - count)) ** 0.5
    within = outside * torch.hypot(total * (count / features) ** 0.5, biases) / torch.hypot(inside.norm(), biases)
    return _SLACK * float(within) if float(within) > layer.rounding else 0.0
