"""What weights tell before a search: balanced neurons at a stationary point, leftover noise, and a fit."""

from collections.abc import Callable
from dataclasses import astuple
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from refusals import refused
from stationary import RECORDS, stationary
from torch import Tensor, nn

from remanence import CrossEntropy, WeightsOnly
from remanence.attacks import Stationarity
from remanence.diagnostics import forecast
from remanence.diagnostics.forecasting import FITTED, fit
from remanence.models import mlp, torch_params


def test_neurons_are_balanced_where_training_has_converged_and_not_before() -> None:
    victim = stationary(centred=False, hidden=(40, 30))
    shape = victim.private.shape
    after, before = (forecast(victim.model, p, shape, records=RECORDS) for p in (victim.final, victim.initial))
    assert after.imbalance < 0.01
    assert before.imbalance > 0.3
    assert after.above_noise == 1.0
    assert (after.records, after.neurons) == (RECORDS, 40)
    assert after.outputs == 5
    assert after.fraction > before.fraction


def test_directions_stand_above_noise_as_far_as_they_are_larger() -> None:
    """Planted: a matrix of rank ten in noise whose largest singular value is known."""
    generator = torch.Generator().manual_seed(0)
    model = mlp((300,), 5, hidden=(200,), activation=nn.ReLU)
    params = torch_params(model, seed=0)
    noise = 0.01 * torch.randn(200, 300, generator=generator)
    edge = 0.01 * (200**0.5 + 300**0.5)
    left, right = (torch.linalg.qr(torch.randn(side, 10, generator=generator))[0] for side in (200, 300))
    values = edge * torch.tensor([10.0, 8, 6, 5, 4, 0.1, 0.1, 0.1, 0.1, 0.1])
    found = forecast(model, params | {"1.weight": left * values @ right.T + noise}, (300,), records=10)
    assert found.above_noise == pytest.approx(0.5)


def test_a_fit_gives_planted_fractions_back() -> None:
    features = torch.randn(200, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    planted = torch.sigmoid(features @ torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64) - 0.3)
    fitted = fit(features.tolist(), planted.tolist(), [1000] * 200)
    expected = torch.tensor([fitted.fraction(row) for row in features.tolist()])
    assert float((expected - planted).abs().max()) < 0.02


def test_the_forecast_is_fitted_on_committed_results() -> None:
    path = Path(__file__).parents[1] / "benchmarks" / "forecast.py"
    spec = spec_from_file_location("forecast_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    made = benchmark.fitted()
    for shipped, again in zip(astuple(FITTED), astuple(made), strict=True):
        assert shipped == pytest.approx(again, rel=1e-3, abs=1e-3)


def test_networks_that_are_no_mlps_are_refused() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 5))
    with refused("unsupported-model", "model"):
        forecast(model, dict(model.state_dict()), (1, 8, 8), records=10)


@pytest.mark.parametrize("records", [0, -3, 20, 2.5, None])
def test_numbers_of_records_that_leave_no_noise_to_measure_are_refused(records: int) -> None:
    model = mlp((30,), 5, hidden=(20,), activation=nn.ReLU)
    with refused("out-of-range", "records"):
        forecast(model, torch_params(model, seed=0), (30,), records=records)


@pytest.mark.parametrize(
    ("change", "code"),
    [(torch.zeros_like, "out-of-range"), (lambda p: p / 0, "not-finite"), (Tensor.half, "wrong-type")],
)
def test_weights_that_tell_nothing_are_refused(change: Callable[[Tensor], Tensor], code: str) -> None:
    model = mlp((30,), 5, hidden=(20,), activation=nn.ReLU)
    params = {name: change(p) for name, p in torch_params(model, seed=0).items()}
    with refused(code, "release"):
        forecast(model, params, (30,), records=4)
    with refused(code, "release"):
        Stationarity(candidates=4).run(WeightsOnly(model=model, final=params, shape=(30,), num_classes=5), seed=0)


def test_label_smoothing_is_that_of_torch() -> None:
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    labels, loss = torch.arange(6) % 4, CrossEntropy(label_smoothing=0.2)
    expected = nn.functional.cross_entropy(logits, labels, label_smoothing=0.2)
    torch.testing.assert_close(loss(logits, labels), expected)
    (grad,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(loss.grad_logits(logits.detach(), labels) / 6, grad)
    with refused("out-of-range", "label_smoothing"):
        CrossEntropy(label_smoothing=1.0)
