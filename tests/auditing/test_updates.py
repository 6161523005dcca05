"""Updates of federated clients: simulated where that is possible, otherwise taken for a gradient."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import nn

from remanence import SGD, Adam, Data, Gradient, LocalUpdate, Training
from remanence.auditing.attempts.applicability import applicable
from remanence.auditing.inputs.updates import UpdateRelease, update_release
from remanence.engine import loss_gradient, train
from remanence.models import initial_params, mlp
from remanence.types import Params

FULL = Training(optimizer=SGD(lr=1e-4), epochs=3)


@pytest.fixture(scope="module")
def batch(digits: Data) -> Data:
    return digits.take(slice(0, 12)).to("cpu", torch.float64)


MODEL = mlp((1, 8, 8), 10, hidden=(30,), activation=nn.ReLU)
BEFORE = {name: p.double() for name, p in initial_params(MODEL, seed=0).items()}


def shown(batch: Data, training: Training, known: Training | None, **changed: Params) -> UpdateRelease:
    weights = {"before": BEFORE, "after": train(training, MODEL, BEFORE, batch, seed=0)} | changed
    return update_release(
        MODEL, weights["before"], weights["after"], known, batch_size=12, shape=batch.shape, num_classes=10
    )


def cosine(release: Gradient, batch: Data) -> tuple[float, float]:
    """Of the release and the gradient of the batch, with the ratio of their lengths."""
    true = loss_gradient(MODEL, BEFORE, batch.x, batch.y, loss=release.loss)
    one, other = (torch.cat([params[name].flatten() for name in true]) for params in (release.gradient, true))
    return float(torch.cosine_similarity(one, other, dim=0)), float(one.norm() / other.norm())


def test_full_batches_of_sgd_are_simulated(batch: Data) -> None:
    found = shown(batch, FULL, FULL)
    assert found.weaker is None
    assert isinstance(found.release, LocalUpdate)
    again = found.release.simulate(batch.x, batch.y)
    assert all(torch.allclose(again[name], sent) for name, sent in found.release.sent.items())


@pytest.mark.parametrize(
    "training",
    [
        replace(FULL, batch_size=6),
        replace(FULL, batch_size=4, weight_decay=0.3, optimizer=SGD(lr=1e-4, momentum=0.9)),
        replace(FULL, lr_schedule=((1, 0.1), (2, 3.0))),
    ],
    ids=["mini-batches", "momentum and decay", "schedule"],
)
def test_attacks_on_one_gradient_are_shown_that_of_many_steps_with_its_length(training: Training, batch: Data) -> None:
    found = shown(batch, training, training)
    assert isinstance(found.release, LocalUpdate)
    assert found.weaker is None
    (one,) = applicable(found.release, attacks=("FirstLayer",))
    assert one.status == "weaker"
    assert cosine(one.release, batch) == pytest.approx((1.0, 1.0), abs=0.03)


def test_the_training_of_a_client_is_simulated_by_simudy(batch: Data) -> None:
    training = Training(optimizer=Adam(lr=1e-3), epochs=2, batch_size=4)
    release = shown(batch, training, training).release
    (one,) = applicable(release, attacks=("SimuDy",))
    assert (one.status, one.release.training) == ("runs", training)
    after = train(training, MODEL, BEFORE, batch, seed=0)
    assert all(torch.allclose(one.release.final[name], p) for name, p in after.items())
    several = replace(release, clients=2)  # type: ignore[call-arg]
    (refusal,) = applicable(several, attacks=("SimuDy",))
    assert refusal.status == "refused"


def test_without_a_recipe_the_length_is_that_of_the_gradient_of_noise(batch: Data) -> None:
    found = shown(batch, replace(FULL, batch_size=4), None)
    assert "--local" in (found.weaker or "")
    assert isinstance(found.release, Gradient)
    same, ratio = cosine(found.release, batch)
    assert same > 0.99
    assert 0.3 < ratio < 3


def test_weights_that_say_nothing_are_refused(batch: Data) -> None:
    with refused("conflict", "after"):
        shown(batch, FULL, FULL, after=BEFORE)
    with refused("shape-mismatch", "before"):
        shown(batch, FULL, FULL, before={"1.weight": torch.ones(2)})
    with refused("not-finite", "after"):
        shown(batch, FULL, FULL, after=BEFORE | {"1.bias": torch.full((30,), torch.nan)})
