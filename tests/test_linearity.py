"""The linearity index against a loop over all pairs of epochs."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from refusals import refused
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from remanence import SGD, Training, train_victim
from remanence.data import Split
from remanence.diagnostics.linearity import gradient_linearity
from remanence.diagnostics.preflight import run_preflight
from remanence.models import apply, initial_params, mlp
from remanence.training import UntilStationary


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Softsign])  # the last by autograd
@pytest.mark.parametrize("batch_size", [None, 10])
def test_it_is_the_mean_over_all_pairs_of_epochs(
    parts: Split, activation: type[nn.Module], batch_size: int | None
) -> None:
    private, fixed = (part.to("cpu", torch.float64) for part in (parts.private.take(slice(0, 3)), parts.fixed))
    model = mlp(private.shape, 10, hidden=(8,), activation=activation)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    training = Training(optimizer=SGD(lr=0.5), epochs=4, batch_size=batch_size, shuffled=False)
    victim = train_victim(model, training, initial, fixed, private, seed=0)

    def gradient(epochs: int, record: int) -> Tensor:
        before = Training(optimizer=SGD(lr=0.5), epochs=epochs, batch_size=batch_size, shuffled=False)
        params = train_victim(model, before, initial, fixed, private, seed=0).final
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        loss = cross_entropy(apply(model, leaves, private.x[record : record + 1]), private.y[record : record + 1])
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))])

    slow = [
        torch.stack([cosine_similarity(gradient(a, i), gradient(b, i), dim=0) for a, b in combinations(range(4), 2)])
        for i in range(3)
    ]
    torch.testing.assert_close(gradient_linearity(victim), torch.stack(slow).mean(1))


def test_gradients_whose_squares_underflow_have_a_direction(parts: Split) -> None:
    """A record that is classified with certainty leaves a gradient of about 1e-26, the same at every epoch."""
    private = parts.private.take(slice(0, 3))
    private = replace(private, y=torch.zeros_like(private.y))
    model = nn.Sequential(nn.Flatten(), nn.Linear(private.x[0].numel(), 10))
    initial = {"1.weight": torch.zeros(10, private.x[0].numel()), "1.bias": 60 * torch.eye(10)[0]}
    victim = train_victim(model, Training(epochs=3), initial, private.take([]), private, seed=0)
    torch.testing.assert_close(gradient_linearity(victim), torch.ones(3))


def test_one_epoch_cannot_be_compared(parts: Split) -> None:
    model = mlp(parts.private.shape, 10)
    initial = initial_params(model, seed=0)
    victim = train_victim(model, Training(epochs=1), initial, parts.fixed, parts.private, seed=0)
    with refused("unsupported-training", "victim"):
        gradient_linearity(victim)


@pytest.mark.parametrize(("rate", "turns"), [(1e-3, False), (2.0, True)])
def test_preflight_says_whether_gradients_turn(parts: Split, rate: float, turns: bool) -> None:
    private = parts.private.take(slice(0, 5))
    model = mlp(private.shape, 10, hidden=(16,), activation=nn.ReLU)
    training = Training(optimizer=SGD(lr=rate), epochs=10)
    victim = train_victim(model, training, initial_params(model, seed=0), private.take([]), private, seed=0)
    before = run_preflight(victim)
    assert before.linearity == pytest.approx(float(gradient_linearity(victim).mean()))
    assert ("gradients-turn" in {caveat.code for caveat in before.caveats()}) == turns
    for other in (
        replace(training, epochs=1),
        replace(training, epochs=101),
        replace(training, lr_schedule=UntilStationary()),
    ):
        assert run_preflight(replace(victim, training=other)).linearity is None
