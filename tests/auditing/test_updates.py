"""Updates of federated clients: simulated where that is possible, otherwise taken for a gradient."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import nn
from torch.nn.functional import cross_entropy

from remanence import SGD, Adam, Data, Gradient, LocalUpdate, Training
from remanence.attacks import FirstLayer
from remanence.auditing.attempts.applicability import applicable, in_evaluation_mode
from remanence.auditing.inputs.updates import UpdateRelease, update_release
from remanence.engine import loss_gradient, train
from remanence.models import initial_params, mlp
from remanence.releases import split_gradient
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


def test_a_client_whose_statistics_changed_is_simulated_with_batchnorm_in_training_mode(batch: Data) -> None:
    """As torch trains, dropout aside; and the attacks that cannot do it say so."""
    model = nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(), nn.Linear(20, 10))
    ).double()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    model[4].eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()
    after = {name: p.clone() for name, p in model.state_dict().items()}
    given = {"batch_size": 12, "shape": batch.shape, "num_classes": 10}
    found = update_release(model.train(), before, after, Training(optimizer=SGD(lr=0.1), epochs=3), **given)
    release = in_evaluation_mode(found.release)
    assert (found.weaker, release.batch_norm) == (None, "training")
    again, statistics = release.simulate_with_statistics(batch.x, batch.y)
    for name, sent in release.sent.items():
        torch.testing.assert_close(again[name], sent)
    for name, sent in release.statistics.items():
        torch.testing.assert_close(statistics[name], sent)
    asked = {each.name: each for each in applicable(release, attacks=("FirstLayer", "GradientMatching", "SimuDy"))}
    assert {name: each.status for name, each in asked.items()} == {
        "FirstLayer": "refused",
        "GradientMatching": "runs",
        "SimuDy": "weaker",
    }
    assert all("BatchNorm" in (asked[name].reason or "") for name in ("FirstLayer", "SimuDy"))
    frozen = update_release(
        model.eval(), before, after | {n: b for n, b in before.items() if "running" in n}, None, **given
    )
    assert frozen.release.batch_norm == "frozen"


def test_a_client_that_trains_its_head_alone_is_attacked_by_what_enters_it(batch: Data) -> None:
    """Attacks on the first layer say that it was frozen; gradient matching has the features of every record."""
    some = batch.take(slice(0, 5))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 10)).double()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    cross_entropy(model(some.x), some.y).backward()
    sent = {name: before[name] - 0.1 * p.grad for name, p in model.named_parameters() if name.startswith("3.")}
    given = {"batch_size": 5, "shape": batch.shape, "num_classes": 10}
    found = update_release(model.eval(), before, sent, Training(optimizer=SGD(lr=0.1), epochs=1), **given)
    assert set(found.release.sent) == {"3.weight", "3.bias"}
    asked = {each.name: each for each in applicable(found.release, attacks=("FirstLayer", "Stein", "GradientMatching"))}
    assert {name: each.status for name, each in asked.items()} == {
        "GradientMatching": "runs",
        "FirstLayer": "refused",
        "Stein": "refused",
    }
    split = split_gradient(found.release)
    features = FirstLayer(guesses=False).run(replace(split.head, labels=some.y), seed=0).x
    torch.testing.assert_close(features, model[:3](some.x).detach(), rtol=1e-4, atol=1e-5)
    assert asked["GradientMatching"].attack.features == FirstLayer(guesses=False)
