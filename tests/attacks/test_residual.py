"""The closed form against autograd through the gradient, and the stacked runs against each one alone."""

import pytest
import torch
from torch import Tensor, nn

from remanence.attacks.weights import residual, residual_autograd
from remanence.models import centred_mlp, replace_relu, torch_params
from remanence.types import Params

HIDDEN = [(9,), (9, 8), (9, 8, 7)]
ALPHA = torch.tensor(3.0, dtype=torch.float64)


def net(outputs: int, hidden: tuple[int, ...], *, bias: bool = True) -> tuple[nn.Sequential, Params]:
    model = centred_mlp((6,), outputs, hidden=hidden)
    if not bias:
        with torch.device("meta"):
            model[2] = nn.Linear(6, hidden[0], bias=False)
    return model, {name: p.double() for name, p in torch_params(model, seed=0).items()}


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("outputs", [1, 4])
def test_the_closed_form_is_the_gradient_of_a_gradient(outputs: int, hidden: tuple[int, ...], bias: bool) -> None:
    model, params = net(outputs, hidden, bias=bias)
    x, top = drawn(5, 6), drawn(5, outputs)
    layers = residual.layers_of(model, params, (6,))
    activations = residual.forward(layers, x, ALPHA)
    rest = residual.unexplained(layers, activations, top)
    of_deltas = residual.grad_deltas(layers, activations, rest)
    of_x = residual.grad_inputs(layers, activations, rest, of_deltas)
    value, by_x, by_top = residual_autograd.value_and_grads(
        replace_relu(model, residual_autograd.SurrogateReLU(float(ALPHA))), params, x, top
    )
    torch.testing.assert_close(rest.objective, value, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(of_x, by_x, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(of_deltas[-1], by_top, rtol=1e-10, atol=1e-10)


def test_the_factor_of_the_multipliers_leaves_the_least() -> None:
    model, params = net(4, (9, 8))
    layers = residual.layers_of(model, params, (6,))
    activations = residual.forward(layers, drawn(5, 6), None)
    top = drawn(5, 4)
    if residual.fit_scale(layers, residual.unexplained(layers, activations, top))[1] < 1e-5:
        top = -top  # a factor is positive
    fitted, factor = residual.fit_scale(layers, residual.unexplained(layers, activations, top))
    at, *beside = (residual.unexplained(layers, activations, f * factor * top) for f in (1.0, 0.99, 1.01))
    torch.testing.assert_close(fitted.objective, at.objective)
    torch.testing.assert_close(fitted.weights, at.weights)
    assert all(other.objective > at.objective for other in beside)
