"""Activations other than ReLU in the closed form of a gradient of a gradient, against autograd."""

from typing import Any

import pytest
import torch
from refusals import refused
from stationary import RECORDS, private
from torch import Tensor, nn

from remanence import SGD, Training, load, train_victim
from remanence.attacks import Stationarity, with_search
from remanence.attacks.weights import residual, residual_autograd
from remanence.attacks.weights.activations import refusal, smooth
from remanence.metrics import MSE
from remanence.models import torch_params
from remanence.releases import WeightsOnly, weights_only
from remanence.types import Params

SMOOTH = (nn.GELU(), nn.SiLU(), nn.ELU(alpha=0.7), nn.Tanh(), nn.Sigmoid(), nn.Softplus(beta=2.0))


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def net(activation: nn.Module) -> tuple[nn.Sequential, Params]:
    model = nn.Sequential(nn.Linear(6, 9), activation, nn.Linear(9, 8), activation, nn.Linear(8, 4))
    return model, {name: p.double() for name, p in torch_params(model, seed=0).items()}


@pytest.mark.parametrize("activation", SMOOTH, ids=str)
def test_derivatives_are_those_of_autograd(activation: nn.Module) -> None:
    a = drawn(50).mul(3).requires_grad_()
    value = activation(a)
    (first,) = torch.autograd.grad(value.sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), a)
    torch.testing.assert_close(smooth(activation, a.detach()), (value.detach(), first.detach(), second))


@pytest.mark.parametrize("activation", SMOOTH, ids=str)
def test_the_closed_form_of_smooth_nets_is_the_gradient_of_a_gradient(activation: nn.Module) -> None:
    model, params = net(activation)
    x, top = drawn(5, 6), drawn(5, 4)
    layers = residual.layers_of(model, params, (6,), relu_only=False)
    activations = residual.forward(layers, x, torch.tensor(3.0, dtype=torch.float64))
    left = residual.unexplained(layers, activations, top)
    grad_deltas = residual.grad_deltas(layers, activations, left)
    value, grad_x, grad_top = residual_autograd.value_and_grads(model, params, x, top)
    torch.testing.assert_close(left.objective, value)
    torch.testing.assert_close(residual.grad_inputs(layers, activations, left, grad_deltas), grad_x)
    torch.testing.assert_close(grad_deltas[-1], grad_top)
    assert residual.grad_shifts(layers, activations, left, grad_deltas) == [None, None]


@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_gradients_of_leaky_relu_and_of_shifts(slope: float) -> None:
    """Against differences: the objective of a forward pass whose derivative is frozen to the surrogate."""
    model, params = net(nn.LeakyReLU(slope) if slope else nn.ReLU())
    layers = residual.layers_of(model, params, (6,), relu_only=False)
    x, top, alpha = drawn(5, 6), drawn(5, 4), torch.tensor(3.0, dtype=torch.float64)
    shifts = [drawn(5, 9), drawn(5, 8)]

    def objective(*shifts: Tensor) -> Tensor:
        return residual.unexplained(layers, residual.forward(layers, x, alpha, shifts), top).objective

    activations = residual.forward(layers, x, alpha, shifts)
    left = residual.unexplained(layers, activations, top)
    grads = residual.grad_shifts(layers, activations, left, residual.grad_deltas(layers, activations, left))
    for index, grad in enumerate(grads):
        assert grad is not None
        for position in ((0, 0), (3, 5)):
            step = torch.zeros_like(shifts[index])
            step[position] = 1e-6
            ahead, behind = (
                objective(*(s + sign * step if k == index else s for k, s in enumerate(shifts))) for sign in (1, -1)
            )
            torch.testing.assert_close(grad[position], (ahead - behind) / 2e-6, rtol=1e-5, atol=1e-7)


class _Surrogate(torch.autograd.Function):
    """Leaky ReLU, whose derivative is the surrogate in the first pass and in the second."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return nn.functional.leaky_relu(a, 0.2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * (0.2 + 0.8 * torch.sigmoid(3.0 * ctx.saved_tensors[0]))


class SurrogateLeakyReLU(nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        return _Surrogate.apply(a)


def test_the_gradient_by_inputs_of_leaky_relu() -> None:
    model, params = net(nn.LeakyReLU(0.2))
    layers = residual.layers_of(model, params, (6,), relu_only=False)
    x, top = drawn(5, 6), drawn(5, 4)
    activations = residual.forward(layers, x, torch.tensor(3.0, dtype=torch.float64))
    left = residual.unexplained(layers, activations, top)
    found = residual.grad_inputs(layers, activations, left, residual.grad_deltas(layers, activations, left))
    surrogate, _ = net(SurrogateLeakyReLU())
    torch.testing.assert_close(found, residual_autograd.value_and_grads(surrogate, params, x, top)[1])


def test_activations_that_are_not_supported_are_refused() -> None:
    assert "not the exact one" in (refusal(nn.GELU(approximate="tanh")) or "")
    model, params = net(nn.Hardswish())
    release = WeightsOnly(model=model, final=params, shape=(6,), num_classes=4)
    with refused("unsupported-model", "release"):
        Stationarity(candidates=3).run(release, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("activation", [nn.LeakyReLU(0.1), nn.GELU(), nn.Tanh()], ids=str)
def test_stationarity_reconstructs_from_nets_with_other_activations(activation: nn.Module) -> None:
    data = private(5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 60), activation, nn.Linear(60, 5))
    initial = {name: p.double() for name, p in torch_params(model, seed=0).items()}
    training = Training(optimizer=SGD(lr=0.1, momentum=0.9), epochs=3000, weight_decay=0.01, lr_schedule=((2000, 0.2),))
    victim = train_victim(model, training, initial, data.take(slice(0, 0)), data, seed=0)
    found = with_search(Stationarity(candidates=RECORDS), steps=2000).run(weights_only(victim).release, seed=0)
    others = load("digits").take(slice(500, 1000)).x.double()
    closer = MSE.pairwise(found.x, data.x).amin(0) < MSE.pairwise(others, data.x).amin(0)
    assert int(closer.sum()) >= 6
