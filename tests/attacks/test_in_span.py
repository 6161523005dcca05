"""The equations in the span of a gradient: against autograd, and solved from nearby."""

import pytest
import torch
from gradients import SMOOTH, Activation, name_of, release_of
from torch import Tensor, nn

from remanence import Data, SquaredError
from remanence.attacks.gradients.tensor.moments import span_of_rows
from remanence.attacks.gradients.tensor.refinement import InSpan, row_space
from remanence.attacks.gradients.tensor.wide_layer import WideLayer
from remanence.models import apply
from remanence.training.losses import CrossEntropy, Loss


def in_span(activation: Activation, outputs: int, *, biased: bool, rows: int = 300) -> tuple[InSpan, Tensor, Tensor]:
    """With the records and residuals that solve them: three records in general position, biases and head as well."""
    generator = torch.Generator().manual_seed(5)
    batch = Data(x=torch.rand(3, 8, generator=generator).double(), y=torch.tensor([0, 1, 0]), num_classes=2)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, rows, bias=biased), activation(), nn.Linear(rows, outputs))
    at = {n: 0.5 * torch.randn(p.shape, generator=generator).double() for n, p in model.named_parameters()}
    at["2.weight"] /= rows**0.5  # no record is so well fitted that it leaves no residual
    loss: Loss = SquaredError() if outputs == 1 else CrossEntropy()
    release = release_of(model, at, batch, loss=loss)
    layer = WideLayer.from_release(release)
    span = span_of_rows(layer.grad_rows, 3, seed=0)[0]
    logits = apply(model, at, batch.x).requires_grad_()
    residuals = torch.autograd.grad(loss(logits, batch.y), logits)[0]
    return InSpan.in_blocks([layer], span), batch.x @ span, residuals @ row_space(layer.head)


kinds = pytest.mark.parametrize("biased", [True, False], ids=["biases", "no biases"])
sizes = pytest.mark.parametrize("outputs", [1, 3])


def test_the_derivatives_are_those_of_the_activation() -> None:
    x = torch.linspace(-2, 2, 12).double().view(3, 4)  # zero is not among them
    for activation in (*SMOOTH, nn.ReLU):
        layer = in_span(activation, 1, biased=True)[0].layer
        at = x.clone().requires_grad_()
        expected = torch.autograd.grad(activation()(at).sum(), at)[0]
        assert torch.allclose(layer.derivative(x), expected, atol=1e-12)
        numeric = (layer.derivative(x + 1e-6) - layer.derivative(x - 1e-6)) / 2e-6
        assert torch.allclose(layer.second_derivative(x), numeric, atol=1e-7)


@kinds
@sizes
@pytest.mark.parametrize("activation", [*SMOOTH, nn.ReLU, nn.Sigmoid], ids=name_of)
def test_the_batch_solves_its_equations(activation: Activation, outputs: int, biased: bool) -> None:
    equations, records, residuals = in_span(activation, outputs, biased=biased)
    assert equations.sent.shape == (300, 4 if biased else 3)
    assert equations.misfit(records, residuals).norm() < 1e-12 * equations.sent.norm()
    assert torch.allclose(equations.residuals_for(records), residuals, atol=1e-9)
    assert equations.misfit(1.1 * records, residuals).norm() > 1e-3 * equations.sent.norm()


@kinds
@sizes
@pytest.mark.parametrize("activation", SMOOTH, ids=name_of)
def test_the_derivatives_are_those_of_autograd(activation: Activation, outputs: int, biased: bool) -> None:
    equations, records, residuals = in_span(activation, outputs, biased=biased, rows=40)
    generator = torch.Generator().manual_seed(0)
    records = records + 0.3 * torch.randn(records.shape, generator=generator).double()
    residuals = residuals + 0.3 * torch.randn(residuals.shape, generator=generator).double()
    misfit = equations.misfit(records, residuals)
    by_each = torch.func.jacrev(equations.misfit, argnums=(0, 1))(records, residuals)  # (rows, columns, b, ...)
    jacobian = torch.cat(by_each, dim=3).flatten(2).flatten(0, 1)
    normal, side = equations._normal(records, residuals, misfit)
    assert torch.allclose(normal, jacobian.T @ jacobian, atol=1e-10)
    assert torch.allclose(side, jacobian.T @ misfit.flatten(), atol=1e-10)
    step = torch.zeros_like(records)
    step[1, 2] = 1e-6
    numeric = (equations.misfit(records + step, residuals) - equations.misfit(records - step, residuals)) / 2e-6
    unknowns = records.shape[1] + residuals.shape[1]
    assert torch.allclose(jacobian[:, unknowns + 2], numeric.flatten(), atol=1e-6)


def test_on_the_clearest_rows_a_small_error_turns_no_record_to_the_other_side() -> None:
    equations, records, residuals = in_span(nn.ReLU, 1, biased=True, rows=3000)
    shifted = records + 0.02 * torch.randn(records.shape, generator=torch.Generator().manual_seed(1)).double()
    selected = equations.clearest(shifted, residuals)
    assert len(selected.sent) == 1500

    def turned(rows: InSpan) -> int:
        on, seems = (rows.projected @ each.T + rows.biases[:, None] > 0 for each in (records, shifted))
        return int((on != seems).any(1).sum())

    assert turned(selected) == 0 < turned(equations)
    assert len(equations.subset(3).sent) == 400
