"""Stand-ins: trained here on a few records, of the released architecture, and never counted for the release."""

from dataclasses import replace
from time import perf_counter, process_time

import pytest
import torch
from auditing.nets import SmallCNN, as_images, fitted, published, seeded, small_mlp, weights
from torch import nn

from remanence.auditing.answer.severity import severity
from remanence.auditing.attempts.resuming import Steps
from remanence.auditing.attempts.running import count_found
from remanence.auditing.attempts.stand_in import RECORDS, attack_stand_ins, new_weights, stand_ins
from remanence.auditing.checks.outputs import losses
from remanence.data import Split, split
from remanence.models import normalized
from remanence.releases import FineTuned, Gradient, WeightsOnly, gradient_at_initial, train_victim
from remanence.training import AdamW, Training
from remanence.types import Data


@pytest.fixture(scope="module")
def images(digits: Data) -> Split:
    return split(as_images(digits), private=60, fixed=0, public=0, test=300, seed=0)


@pytest.fixture(scope="module")
def cnn(images: Split) -> WeightsOnly:
    return published(fitted(seeded(SmallCNN), images.private, epochs=5), images.private)


def test_a_stand_in_is_trained_on_a_few_private_records_from_new_weights(cnn: WeightsOnly, images: Split) -> None:
    of_gradient, tuned = stand_ins(cnn, images.private, seed=0)
    assert isinstance(of_gradient.release, Gradient)
    assert isinstance(tuned.release, FineTuned)
    for each in (of_gradient, tuned):
        assert len(each.truth) == RECORDS
        assert all(any(torch.equal(x, other) for other in images.private.x) for x in each.truth.x)
    assert set(tuned.release.initial) == set(cnn.final)
    assert not torch.equal(tuned.release.initial["conv1.weight"], cnn.final["conv1.weight"])
    before, after = (
        float(losses(cnn.model, params, tuned.truth).mean()) for params in (tuned.release.initial, tuned.release.final)
    )
    assert after < before


def test_the_base_and_the_recipe_are_taken_where_they_are_known(images: Split) -> None:
    model, training = small_mlp(), Training(optimizer=AdamW(lr=1e-3), epochs=50, batch_size=4)
    base = weights(seeded(small_mlp))
    release = FineTuned(model=model, final=base, shape=(1, 8, 8), num_classes=10, initial=base, training=training)
    _, tuned = stand_ins(release, images.private, seed=0)
    assert isinstance(tuned.release, FineTuned)
    assert tuned.release.initial is base
    assert tuned.release.training == replace(training, epochs=10, batch_size=None)


def test_new_weights_keep_the_normalisation_and_the_global_generators(
    cnn: WeightsOnly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("the generators of GPUs are seeded"))
    model = normalized(cnn.model, 0.2, 0.3)
    release = replace(cnn, model=model, final=weights(model))
    state = torch.random.get_rng_state()
    sampled, again = new_weights(release, seed=1), new_weights(release, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(again[name], p) for name, p in sampled.items())
    constants = [name for name in sampled if name.endswith(("mean", "std")) and "running" not in name]
    assert len(constants) == 2
    assert all(torch.equal(sampled[name], release.final[name]) for name in constants)


def test_an_update_has_no_stand_in(images: Split) -> None:
    batch = images.private.take(slice(0, 4))
    victim = train_victim(
        small_mlp(), Training(epochs=1), weights(seeded(small_mlp)), batch.take(slice(0, 0)), batch, seed=0
    )
    assert not list(stand_ins(gradient_at_initial(victim).release, batch, seed=0))


@pytest.mark.slow
@pytest.mark.usefixtures("short_searches")
def test_what_ran_on_stand_ins_is_counted_and_never_makes_the_severity(images: Split) -> None:
    tiny = seeded(lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)))
    release = published(tiny, images.private)
    start = process_time()
    tried = attack_stand_ins(release, images.private, images.test, perf_counter() + 6, Steps(None), 0)
    assert process_time() - start < 20
    rows = count_found(tried)
    assert rows
    assert all(row.subject == "stand-in" and row.status == "ran" and row.reason for row in rows)
    assert all(row.name.endswith((f"(gradient of {RECORDS} records)", f"(tuned on {RECORDS} records)")) for row in rows)
    assert severity([replace(row, found=row.records, exact=row.records, p=0.0) for row in rows], ()) == "inconclusive"
