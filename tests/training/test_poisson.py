"""DP-SGD with Poisson sampling against a loop over records, and against what its randomness must be like."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import Tensor, nn

from remanence import DPGD, SGD, Training
from remanence.data import Split
from remanence.engine import train
from remanence.engine.ensembles.chunked import train_chunk
from remanence.models import initial_params, mlp
from remanence.releases import gradient_at_initial, train_victims
from remanence.releases.victim import Victim
from remanence.types import Data, Params

PRIVATE = DPGD(clip=0.3, noise=0.0, sample_rate=0.2)
TRAINING = Training(optimizer=SGD(lr=0.5, momentum=0.9), epochs=3, weight_decay=0.01, privacy=PRIVATE)


def steps_by_hand(training: Training, model: nn.Module, params: Params, data: Data, batches: list[Tensor]) -> Params:
    """One record after the other by torch's optimizer, on clipped gradients over the expected size of a sample."""
    assert training.privacy is not None
    assert isinstance(training.optimizer, SGD)
    model.to_empty(device="cpu").load_state_dict(params)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=training.optimizer.lr,
        momentum=training.optimizer.momentum,
        weight_decay=training.weight_decay,
    )
    for batch in batches:
        total = [torch.zeros_like(p) for p in model.parameters()]
        for i in batch.tolist():
            loss = nn.functional.cross_entropy(model(data.x[i : i + 1]), data.y[i : i + 1])
            grads = torch.autograd.grad(loss, list(model.parameters()))
            norm = torch.sqrt(sum(g.square().sum() for g in grads))
            for part, g in zip(total, grads, strict=True):
                part += g * min(1.0, training.privacy.clip / float(norm))
        for p, part in zip(model.parameters(), total, strict=True):
            p.grad = part / (training.privacy.sample_rate * len(data))
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.state_dict().items()}


def test_each_step_takes_each_record_with_the_sample_rate() -> None:
    training = Training(epochs=200, privacy=replace(PRIVATE, sample_rate=0.05))
    batches = list(training.batches(40, seed=1))
    assert len(batches) == 200 * 20
    taken = torch.zeros(len(batches), 40)
    for row, batch in zip(taken, batches, strict=True):
        row[batch] = 1
    assert taken.mean(0).sub(0.05).abs().max() < 5 * (0.05 * 0.95 / 4000) ** 0.5
    assert taken.sum(1).var() == pytest.approx(40 * 0.05 * 0.95, rel=0.1)  # independent: a binomial number of them
    assert min(map(len, batches)) == 0


@pytest.mark.parametrize("rate", [0.2, 0.02])
def test_training_is_the_loop_over_records(parts: Split, rate: float) -> None:
    """At the lower rate most samples are empty."""
    training, data = replace(TRAINING, privacy=replace(PRIVATE, sample_rate=rate)), parts.fixed.take(slice(0, 20))
    data = data.to("cpu", torch.float64)
    model = mlp(data.shape, 10)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    found = train(training, model, initial, data, seed=3)
    batches = [batch for batch in training.batches(len(data), seed=3) if batch is not None]
    expected = steps_by_hand(training, mlp(data.shape, 10).double(), initial, data, batches)
    for name, p in expected.items():
        torch.testing.assert_close(found[name], p)


def test_noise_has_the_std_of_its_multiplier_over_the_expected_size(parts: Split) -> None:
    data, model = parts.fixed.take(slice(0, 20)), mlp(parts.fixed.shape, 10)
    privacy = DPGD(clip=1e-9, noise=1.2e9, sample_rate=0.5)  # a std of 1.2 on sums that are nearly zero
    initial = initial_params(model, seed=0)
    final = train(Training(optimizer=SGD(lr=1.0), epochs=1, privacy=privacy), model, initial, data, seed=5)
    noise = torch.cat([(final[name] - initial[name]).flatten() for name in initial])
    assert float(noise.std()) == pytest.approx(2**0.5 * 1.2 / 10, rel=0.05)  # two steps, 10 records in each


def test_every_victim_has_samples_and_noise_of_its_own(parts: Split) -> None:
    """Twins, victims of the same record, would otherwise be equal."""
    twins, model = parts.private.take([0, 0, 0]), mlp(parts.fixed.shape, 10)
    for noise in (0.0, 1.0):
        training = replace(TRAINING, privacy=replace(PRIVATE, noise=noise))
        victims = train_victims(model, training, initial_params(model, seed=0), parts.fixed, twins, seed=0)
        first = [next(iter(victim.final.values())) for victim in victims]
        assert not torch.allclose(first[0], first[1])
        assert not torch.allclose(first[1], first[2])


def test_a_model_of_an_ensemble_is_one_trained_alone(parts: Split) -> None:
    model, targets = mlp(parts.fixed.shape, 10), parts.private.take(slice(0, 3))
    initial = initial_params(model, seed=0)
    arguments = {"seed": 1, "noise_seed": 2}
    stacked = train_chunk(TRAINING, model, initial, parts.fixed, targets, **arguments)
    again = train_chunk(TRAINING, model, initial, parts.fixed, targets.take(slice(0, 1)), **arguments)
    for name, p in stacked.items():
        assert p.shape == (3, *initial[name].shape)
        assert torch.equal(p[0], again[name][0])


def test_the_expected_training_takes_all_records_in_as_many_steps() -> None:
    training = replace(TRAINING, privacy=replace(PRIVATE, noise=2.0), lr_schedule=((1, 0.1),))
    expected = training.expected
    assert expected.epochs == len(list(training.batches(10, 0))) == 15
    assert expected.lr_schedule == ((5, 0.1),)
    assert expected.privacy == DPGD(clip=0.3)
    assert Training().expected == Training()


def test_a_batch_size_beside_a_sample_rate_and_gradients_of_samples_are_refused(parts: Split) -> None:
    with refused("conflict", "batch_size"):
        replace(TRAINING, batch_size=8)
    model = mlp(parts.fixed.shape, 10)
    start = initial_params(model, seed=0)
    victim = Victim(
        model=model, training=TRAINING, initial=start, final=start, fixed=parts.fixed, private=parts.private
    )
    with refused("unsupported-training", "privacy"):
        gradient_at_initial(victim)
