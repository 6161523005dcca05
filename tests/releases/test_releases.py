import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from refusals import refused
from torch.nn.functional import cross_entropy

from remanence import DPGD, SGD, Training, Victim, train_victim
from remanence.data import Split
from remanence.engine import train
from remanence.models import initial_params, initial_stack, mlp
from remanence.releases import (
    Case,
    KnowsAllButOne,
    KnowsFinal,
    KnowsFixed,
    KnowsGradient,
    KnowsTraining,
    KnowsUpdate,
    all_but_one,
    all_but_one_unknown_init,
    check_fit,
    fine_tuned,
    gradient_at_final,
    gradient_at_initial,
    local_update,
    train_victims,
    weights_only,
)
from remanence.shadow import build_bank
from remanence.training import QuasiNewton
from remanence.types import concat

LATTICE = [
    (weights_only, {KnowsFinal}),
    (fine_tuned, {KnowsFinal, KnowsTraining}),
    (all_but_one, {KnowsFinal, KnowsTraining, KnowsFixed, KnowsAllButOne}),
    (all_but_one_unknown_init, {KnowsFinal, KnowsFixed}),
    (gradient_at_initial, {KnowsUpdate, KnowsGradient}),
    (gradient_at_final, {KnowsUpdate, KnowsGradient}),
    (local_update, {KnowsUpdate}),
]


def victim(parts: Split, records: int = 1, training: Training | None = None) -> Victim:
    model = mlp(parts.fixed.shape, 10)
    private = parts.private.take(slice(0, records))
    return train_victim(
        model, training or Training(epochs=20), initial_params(model, seed=0), parts.fixed, private, seed=0
    )


@pytest.mark.parametrize(("reveal", "known"), LATTICE)
def test_each_release_shows_what_its_protocols_say(
    parts: Split, reveal: Callable[[Victim], Case[Any]], known: set[type]
) -> None:
    case = reveal(victim(parts))
    knowledge = (KnowsFinal, KnowsTraining, KnowsFixed, KnowsAllButOne, KnowsUpdate, KnowsGradient)
    assert {protocol for protocol in knowledge if isinstance(case.release, protocol)} == known
    assert torch.equal(case.truth.x, parts.private.x[:1])
    with pytest.raises(dataclasses.FrozenInstanceError):
        case.release.model = None


def test_the_gradient_is_that_of_the_mean_loss_of_the_private_batch(parts: Split) -> None:
    made = victim(parts, records=4)
    release = gradient_at_final(made).release
    real = mlp(parts.fixed.shape, 10).to_empty(device="cpu")
    real.load_state_dict(made.final)
    cross_entropy(real(made.private.x), made.private.y).backward()
    for name, parameter in real.named_parameters():
        assert torch.allclose(release.gradient[name], parameter.grad, atol=1e-6)
    assert release.batch_size == 4
    assert release.labels is None


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_simulated_update_is_what_torch_moves_the_weights_by(parts: Split, steps: int, momentum: float) -> None:
    training = Training(optimizer=SGD(lr=0.1, momentum=momentum), epochs=steps)
    made = victim(parts, records=3, training=training)
    release = local_update(made).release
    real = mlp(parts.fixed.shape, 10).to_empty(device="cpu")
    real.load_state_dict(made.initial)
    optimizer = torch.optim.SGD(real.parameters(), lr=0.1, momentum=momentum)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(real(made.private.x), made.private.y).backward()
        optimizer.step()
    simulated = release.simulate(made.private.x, made.private.y)
    for name, parameter in real.named_parameters():
        assert torch.allclose(release.update[name], parameter.detach() - made.initial[name], atol=1e-6)
        assert torch.allclose(release.sent[name], simulated[name], atol=1e-6)


@pytest.mark.parametrize(
    ("training", "argument"),
    [
        (Training(optimizer=QuasiNewton()), "optimizer"),
        (Training(epochs=0), "epochs"),
        (Training(privacy=DPGD(clip=1.0, noise=1.0)), "privacy"),
    ],
    ids=["optimizer", "steps", "noise"],
)
def test_updates_that_cannot_be_simulated_are_refused(parts: Split, training: Training, argument: str) -> None:
    made = dataclasses.replace(victim(parts, training=Training(epochs=1)), training=training)
    with refused("unsupported-training", argument):
        local_update(made)


def test_a_gradient_of_a_training_that_clips_is_refused(parts: Split) -> None:
    made = dataclasses.replace(victim(parts, training=Training(epochs=1)), training=Training(clip=1.0))
    with refused("unsupported-training", "clip"):
        gradient_at_initial(made)


@pytest.mark.parametrize(
    ("optimizer", "code"), [(SGD(lr=0.0), "not-fitted"), (SGD(lr=1e30), "diverged"), (SGD(lr=300.0), "not-fitted")]
)
def test_a_victim_that_did_not_fit_is_refused(parts: Split, optimizer: SGD, code: str) -> None:
    with refused(code):
        check_fit(victim(parts, training=Training(optimizer=optimizer, epochs=5)))


def test_a_victim_that_learnt_less_than_the_frequency_of_the_classes_is_refused(parts: Split) -> None:
    made = victim(parts)
    check_fit(made)
    worse = {name: 60 * p for name, p in made.initial.items()}  # from so bad a start a little better is still bad
    with refused("not-fitted"):
        check_fit(dataclasses.replace(made, initial=worse, final={name: 0.9 * p for name, p in worse.items()}))
    with refused("out-of-range", "victim"):
        all_but_one(victim(parts, records=2))


def test_victims_may_start_from_weights_of_their_own(parts: Split) -> None:
    private = parts.private.take(slice(0, 3))
    model, training = mlp(private.shape, 10), Training(epochs=2)
    starts = initial_stack(model, 3, seed=0)
    victims = train_victims(model, training, starts, parts.fixed, private, seed=0)
    for k, victim in enumerate(victims):
        assert all(torch.equal(p, starts[name][k]) for name, p in victim.initial.items())
        alone = train(training, model, victim.initial, concat([parts.fixed, victim.private]))
        assert all(torch.allclose(victim.final[name], p, atol=1e-5) for name, p in alone.items())


def test_the_noise_of_a_victim_is_no_shadows(parts: Split) -> None:
    """The same record, start and seed: under DP-GD an attacker must not be able to draw the victim's noise again."""
    private = parts.private.take(slice(0, 2))
    model, training = mlp(private.shape, 10), Training(epochs=2, privacy=DPGD(clip=1.0, noise=1.0))
    initial = initial_params(model, seed=0)
    victims = train_victims(model, training, initial, parts.fixed, private, seed=0)
    bank = build_bank(all_but_one(victims[0]).release, private, seed=0)
    weights = torch.stack([torch.cat([v.final[name].flatten() for name in sorted(v.final)]) for v in victims])
    assert (bank.weights - weights).abs().mean() > 1e-3
    assert (weights[0] - weights[1]).abs().mean() > 1e-3
