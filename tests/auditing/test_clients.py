"""Audits and sweeps of clients whose BatchNorm is in training mode, and of those that send some layers alone."""

from dataclasses import replace
from time import sleep

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from remanence.attacks import FirstLayer
from remanence.auditing import applicable
from remanence.auditing.checks.outputs import endpoints
from remanence.auditing.checks.preflight import preflight
from remanence.auditing.countermeasures.federation import Federation
from remanence.auditing.countermeasures.membership import strongest_membership
from remanence.auditing.countermeasures.sweep import sweep_update
from remanence.auditing.evidence.membership import gather_evidence
from remanence.auditing.inputs.updates import update_release
from remanence.releases import Gradient, LocalUpdate
from remanence.training import SGD, Training
from remanence.types import Data, Params, Reconstruction

STEPS = Training(optimizer=SGD(lr=0.1), epochs=2)


@pytest.fixture(scope="module")
def batch(digits: Data) -> Data:
    return digits.take(slice(0, 12)).to("cpu", torch.float64)


@pytest.fixture(scope="module")
def others(digits: Data) -> Data:
    return digits.take(slice(100, 400)).to("cpu", torch.float64)


def net() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            *(nn.Flatten(), nn.Linear(64, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 10))
        ).double()


def trained(weights: Params, data: Data) -> Params:
    """The state of a client after its training by torch."""
    model = net().train()
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS.epochs):
        optimizer.zero_grad()
        cross_entropy(model(data.x), data.y).backward()
        optimizer.step()
    return {name: p.clone() for name, p in model.state_dict().items()}


def shown(after: Params, batch: Data) -> LocalUpdate:
    given = {"batch_size": len(batch), "shape": batch.shape, "num_classes": 10}
    found = update_release(net().eval(), dict(net().state_dict()), after, STEPS, **given).release
    assert isinstance(found, LocalUpdate)
    return found


def test_stand_ins_train_with_batchnorm_as_the_client_did(batch: Data, others: Data) -> None:
    """What they send, and the statistics, by plain torch; the weights of a federation have the mean of statistics."""
    before = dict(net().state_dict())
    after = trained(before, batch)
    release = shown(after, batch)
    made = Federation.from_held_out(release, batch, others, 2, seed=0)
    again = made.update(1, ()).release
    assert again.batch_norm == "training"
    for name, u in release.update.items():
        torch.testing.assert_close(again.update[name], u)
    assert again.statistics is not None
    torch.testing.assert_close(again.statistics["2.running_var"], after["2.running_var"])
    size = len(batch)
    parts = [batch, *(made.others.take(slice(k * size, (k + 1) * size)) for k in range(made.clients - 1))]
    clients = [trained(before, part) for part in parts]
    weights, _ = made.train((), range(1))
    for name in ("1.weight", "2.running_mean", "2.running_var"):
        torch.testing.assert_close(weights[name], torch.stack([each[name] for each in clients]).mean(0))


def test_a_sweep_with_batchnorm_in_training_mode_says_what_it_leaves_out(batch: Data, others: Data) -> None:
    release = shown(trained(dict(net().state_dict()), batch), batch)
    first, *rows = sweep_update(release, batch, others, {"noise": (1,)}, (), budget=5, seed=0)
    assert [row.status for row in (first, *rows)] == ["ran", "ran"]
    assert "no defense changes BatchNorm statistics" in (first.reason or "")
    assert "keeps the statistics" not in (first.reason or "")


def test_who_is_told_the_labels_is_told_them_in_a_sweep(batch: Data, others: Data) -> None:
    release = replace(shown(trained(dict(net().state_dict()), batch), batch), labels=batch.y)
    case = Federation.from_held_out(release, batch, others, 2, seed=0).update(2, ())
    assert case.release.labels is not None
    assert torch.equal(case.release.labels, case.truth.y)
    assert len(case.truth) == 2 * len(batch)
    rows = sweep_update(release, batch, others, {"noise": (1,)}, (), budget=2, seed=0)
    assert [row.labels for row in rows] == [None, None]


def test_the_end_of_a_client_has_the_statistics_that_it_sent(batch: Data) -> None:
    after = trained(dict(net().state_dict()), batch)
    release = shown(after, batch)
    for end in (endpoints(release)[1], release.fine_tuned(10).final):
        assert end is not None
        for name in ("1.weight", "2.running_mean", "2.running_var"):
            torch.testing.assert_close(end[name], after[name])


def test_weights_of_batchnorm_without_statistics_were_trained_in_training_mode(batch: Data, others: Data) -> None:
    """The private records explain the update, with statistics and without; where the assumption is wrong they do not,
    and the warning says what to give."""
    after = trained(dict(net().state_dict()), batch)
    alone = {name: p for name, p in after.items() if name in dict(net().named_parameters())}
    unchanged = {name: p for name, p in net().state_dict().items() if "running" in name}
    for sent, mode, status in (
        (after, "training", "ok"),
        (alone, "training", "ok"),
        (alone | unchanged, "frozen", "warning"),
    ):
        release = shown(sent, batch)
        checks = {each.name: each for each in preflight(release, batch, others).checks}
        assert (release.batch_norm, checks["update"].status) == (mode, status)
        assert ("with its buffers" in checks["update"].text) == (status == "warning")
        assert (release.statistics is None) == (sent is not after)
        assert mode == "frozen" or checks["normalize"].status == "ok"


def test_a_closed_form_before_a_search_is_not_counted_as_steps(batch: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of a thousand quick steps after two seconds for the features is estimated as such."""
    model, run = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).double(), FirstLayer.run
    cross_entropy(model(batch.x), batch.y).backward()
    head = {name: p.detach() - 0.1 * p.grad for name, p in model.named_parameters() if name.startswith("3")}
    given = {"batch_size": len(batch), "shape": batch.shape, "num_classes": 10}
    release = update_release(model.eval(), dict(model.state_dict()), head, STEPS, **given).release

    def slow(attack: FirstLayer, release: Gradient, *, seed: int) -> Reconstruction:
        sleep(2.1)
        return run(attack, release, seed=seed)

    monkeypatch.setattr(FirstLayer, "run", slow)
    (asked,) = applicable(release, attacks=["GradientMatching"])
    assert asked.attack.features is not None
    assert 2 < asked.seconds < 100  # as steps it would be 700


def test_a_first_layer_that_was_not_sent_has_no_span(batch: Data, others: Data) -> None:
    """Its weights are those that the server sent, and say nothing about the records."""
    model = net().eval()
    cross_entropy(model(batch.x), batch.y).backward()
    head = {name: p.detach() - 0.1 * p.grad for name, p in model.named_parameters() if name.startswith("4")}
    release = shown(head, batch)
    rows, _ = gather_evidence(release, batch, others, seed=0, seconds=5)
    (span,) = [row for row in rows if row.group == "span"]
    assert span.value is None
    assert "unchanged" in span.meaning
    auc = strongest_membership(release, batch, others, seed=0)[1]
    assert auc is not None
    assert "span" not in auc.name
