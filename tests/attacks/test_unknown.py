"""What is not known: the rate is found again, and candidates that nothing needs pull least."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import nn
from torch.nn.functional import cross_entropy

from remanence import SGD, Adam, Data, Reconstruction, Training, Victim, train_victim
from remanence.attacks import (
    L2,
    Search,
    SimuDy,
    Surrogate,
    TotalVariation,
    Whitening,
    contributions,
    count_needed,
    find_labels,
    find_rate,
    find_training,
    with_search,
)
from remanence.engine import train
from remanence.models import apply, initial_params, mlp
from remanence.releases import fine_tuned

TRAINING = Training(optimizer=SGD(lr=0.1), epochs=5)
QUICK = SimuDy(
    candidates=4,
    labels=(0, 1, 2, 3),
    distance=L2(),
    prior=None,
    search=Search(optimizer=Adam(lr=0.1, beta1=0.8, beta2=0.9), steps=15),
    whitening=None,
    surrogate=None,
)


@pytest.fixture(scope="module")
def victim(digits: Data) -> Victim:
    data = digits.take([int((digits.y == label).nonzero()[0, 0]) for label in range(4)]).to("cpu", torch.float64)
    model = mlp(data.shape, 10, hidden=(32,))
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    return train_victim(model, TRAINING, initial, data.take([]), data, seed=0)


@pytest.mark.slow
def test_the_rate_is_found_among_others_and_among_those_that_diverge(victim: Victim) -> None:
    attack = QUICK
    wrong = replace(TRAINING, optimizer=SGD(lr=7.0))
    release = replace(fine_tuned(victim).release, training=wrong)
    assert find_rate(attack, release, (0.01, 0.1, 1.0, 1e300), seed=0) == 0.1
    assert find_rate(attack, release, (0.5,), seed=0) == 0.5
    with refused("empty", "trainings"):
        find_rate(attack, release, (), seed=0)


@pytest.mark.slow
def test_the_rate_is_not_taken_from_the_release(victim: Victim) -> None:
    true = replace(TRAINING, epochs=20, weight_decay=0.05)
    model = mlp(victim.private.shape, 10, hidden=(32,), activation=nn.ReLU)
    owner = train_victim(model, true, victim.initial, victim.fixed, victim.private, seed=0)
    release = replace(fine_tuned(owner).release, training=replace(true, optimizer=SGD(lr=0.025)))
    attack = with_search(
        replace(QUICK, prior=TotalVariation(weight=0.005), whitening=Whitening(), surrogate=Surrogate()), steps=20
    )
    assert find_rate(attack, release, (0.025, 0.05, 0.1, 0.2), seed=0) == 0.1


@pytest.mark.slow
@pytest.mark.parametrize("true", [replace(TRAINING, batch_size=2, shuffled=False), replace(TRAINING, epochs=8)])
def test_batch_size_and_epochs_are_found(victim: Victim, true: Training) -> None:
    owner = train_victim(victim.model, true, victim.initial, victim.fixed, victim.private, seed=0)
    release = replace(fine_tuned(owner).release, training=replace(TRAINING, epochs=1))
    attack = QUICK
    guesses = [replace(true, batch_size=b, epochs=e) for b, e in ((None, 2), (None, 8), (2, 5), (1, 2))]
    assert find_training(attack, release, guesses, seed=0) == true


def test_labels_are_found_with_repetition(digits: Data) -> None:
    data = digits.take(torch.tensor([int((digits.y == label).nonzero()[0, 0]) for label in (1, 4, 4, 7)]))
    data = data.to("cpu", torch.float64)
    model = mlp(data.shape, 10, hidden=(32,))
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    release = fine_tuned(train_victim(model, TRAINING, initial, data.take([]), data, seed=0)).release
    assert find_labels(release, 4) == (1, 4, 4, 7)
    assert find_labels(release, 4, looks_like=data.x) == (1, 4, 4, 7)


def test_contributions_are_norms_of_summed_gradients(victim: Victim) -> None:
    release, private = fine_tuned(victim).release, victim.private
    found = contributions(release, Reconstruction(x=private.x, y=private.y))
    totals = [0.0] * 4
    for i in range(4):
        total = torch.zeros((), dtype=torch.float64)
        for epochs in range(TRAINING.epochs):
            params = train(replace(TRAINING, epochs=epochs), release.model, release.initial, private)
            leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
            loss = cross_entropy(apply(release.model, leaves, private.x[i : i + 1]), private.y[i : i + 1])
            total = total + torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))])
        totals[i] = float(total.norm())
    assert found.tolist() == pytest.approx(totals)
    with refused("not-enough-knowledge", "found"):
        contributions(release, Reconstruction(x=private.x))


def test_the_needed_are_the_group_that_explains_most_of_the_variance() -> None:
    pulls, one_class = torch.tensor([0.2, 1.5, 0.3, 1.2, 1.9, 0.25, 0.6]), torch.zeros(7, dtype=torch.int64)
    variances = []
    for count in range(1, 7):
        upper, lower = pulls.log().sort(descending=True).values.split([count, 7 - count])
        variances.append(float(count * upper.var(correction=0) + (7 - count) * lower.var(correction=0)))
    found = count_needed(pulls, one_class)
    assert found.value == 1 + variances.index(min(variances))
    assert 1 <= found.low <= found.value <= found.high <= 6
    with refused("empty", "norms"):
        count_needed(pulls[:1], one_class[:1])


@pytest.mark.parametrize("records", [20, 40, 60])
def test_classes_that_pull_more_do_not_count_for_more(records: int) -> None:
    generator = torch.Generator().manual_seed(records)
    labels = torch.arange(80) % 10
    spread = torch.exp(0.15 * torch.randn(80, generator=generator))
    planted = torch.where(torch.arange(80) < records, 1.0, 0.35) * spread
    found = count_needed(planted * torch.logspace(0, 2, 10)[labels], labels)
    assert found.low <= records <= found.high
    assert abs(found.value - records) <= 2
    assert found.high - found.low < 30
