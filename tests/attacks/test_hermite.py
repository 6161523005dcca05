"""Hermite coefficients: the table of METHODS 3.2, and an adaptive quadrature that knows nothing of ours."""

from collections.abc import Callable
from math import exp, pi, sqrt

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor, nn
from torch.nn import functional

from remanence.attacks.gradients.tensor.identifiability import hermite_coefficients

Activation = Callable[[Tensor], Tensor]


def mixed(x: Tensor) -> Tensor:
    return x.square() + x**3


def leaky(x: Tensor) -> Tensor:
    return functional.leaky_relu(x, 0.01)


ALL: dict[str, tuple[Activation, list[float]]] = {  # c_0, c_2, c_3, c_4 as the table has them
    "x^2 + x^3": (mixed, [1.0, 2.0, 6.0, 0.0]),
    "tanh": (torch.tanh, [0.0, 0.0, -0.3636, 0.0]),
    "sigmoid": (torch.sigmoid, [0.5, 0.0, -0.0624, 0.0]),
    "relu": (torch.relu, [0.3989, 0.3989, 0.0, -0.3989]),
    "leaky": (leaky, [0.39495, 0.39495, 0.0, -0.39495]),  # the table cuts it to .3949
    "elu": (functional.elu, [0.1605, 0.2616, -0.1374, -0.1374]),
    "linear": (nn.Identity(), [0.0, 0.0, 0.0, 0.0]),
    "quadratic": (torch.square, [1.0, 2.0, 0.0, 0.0]),
}
POLYNOMIALS: list[Callable[[float], float]] = [
    lambda z: 1.0,
    lambda z: z,
    lambda z: z**2 - 1,
    lambda z: z**3 - 3 * z,
    lambda z: z**4 - 6 * z**2 + 3,
    lambda z: z**5 - 10 * z**3 + 15 * z,
]


def by_quad(activation: Activation, order: int, scale: float = 1.0) -> float:
    def integrand(z: float) -> float:
        value = float(activation(torch.tensor(scale * z, dtype=torch.float64)))
        return value * POLYNOMIALS[order](z) * exp(-z * z / 2) / sqrt(2 * pi)

    halves = (quad(integrand, a, b, epsabs=1e-12, epsrel=1e-11)[0] for a, b in ((-13.0, 0.0), (0.0, 13.0)))
    return float(sum(halves))


@pytest.mark.parametrize(("activation", "table"), ALL.values(), ids=ALL)
def test_the_coefficients_are_those_of_the_table_and_of_an_adaptive_quadrature(
    activation: Activation, table: list[float]
) -> None:
    found = hermite_coefficients(activation)
    assert [found[k] for k in (0, 2, 3, 4)] == pytest.approx(table, abs=5.1e-5)
    assert found == pytest.approx([by_quad(activation, order) for order in range(5)], abs=1e-9)
    scaled = [by_quad(activation, order, scale=2.5) for order in range(5)]
    assert hermite_coefficients(activation, scale=2.5) == pytest.approx(scaled, abs=1e-8)


def test_more_orders_are_given_where_asked_for() -> None:
    found = hermite_coefficients(lambda x: x**5, max_order=5)
    assert found == pytest.approx([by_quad(lambda x: x**5, k) for k in range(6)], abs=1e-6)
    assert found[5] == pytest.approx(120)  # k! times the leading coefficient
    assert len(hermite_coefficients(torch.tanh, max_order=2)) == 3
