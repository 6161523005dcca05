"""The federation of a client: sums and defenses by plain torch, after those of the update that was sent."""

from dataclasses import replace

import pytest
import torch
from digit_clients import SEVERAL, STEP, by_torch, federation, mean, part, parts_of, sent
from refusals import refused

from remanence.auditing.countermeasures.axes import AXES
from remanence.auditing.countermeasures.federation import Federation
from remanence.releases.defenses import Clipping, GaussianNoise, TopK
from remanence.training import Training
from remanence.types import concat


@pytest.mark.parametrize("training", [STEP, SEVERAL], ids=["one step", "momentum and decay"])
def test_what_the_server_sees_is_the_mean_of_updates_by_plain_torch(training: Training) -> None:
    made = federation(training)
    for clients in (1, 3):
        shown = made.update(clients, ())
        expected = mean([by_torch(made.sent.at, data, training) for data in parts_of(made, clients)])
        assert (shown.release.clients, len(shown.truth)) == (clients, 8 * clients)
        assert all(torch.allclose(shown.release.update[name], u, atol=1e-6) for name, u in expected.items())


def test_the_update_as_it_is_is_what_was_sent() -> None:
    shown = sent(STEP, defenses=(GaussianNoise(relative_std=10.0),))
    made = Federation.from_held_out(shown, part(0, 8), part(100, 700), 3, seed=0)
    assert made.update(1, ()).release is shown


def test_defenses_of_the_client_come_before_those_of_a_setting() -> None:
    first, added = Clipping(norm=0.01), TopK(fraction=0.1)
    made = Federation.from_held_out(sent(STEP, defenses=(first,)), part(0, 8), part(100, 700), 3, seed=0)
    shown = made.update(2, (added,)).release
    assert shown.defenses == (first, added)
    updates = [by_torch(made.sent.at, data, STEP) for data in parts_of(made, 2)]
    norms = [torch.cat([u.flatten() for u in each.values()]).norm() for each in updates]
    clipped = [{name: u * 0.01 / norm for name, u in each.items()} for each, norm in zip(updates, norms, strict=True)]
    expected = mean([added(each, seed=0) for each in clipped])
    assert all(torch.allclose(shown.update[name], u, atol=1e-7) for name, u in expected.items())


def test_sums_of_an_update_of_several_clients_are_times_as_many() -> None:
    shown = sent(STEP, clients=2)
    made = Federation.from_held_out(shown, part(0, 8), part(100, 700), 4, seed=0)
    assert (made.clients, made.size, made.update(1, ()).release) == (10, 4, shown)
    case = made.update(2, ())
    assert (case.release.clients, case.release.batch_size) == (4, 16)
    parts = [part(0, 4), part(4, 8), *(made.others.take(slice(start, start + 4)) for start in (0, 4))]
    expected = mean([by_torch(made.sent.at, data, STEP) for data in parts])
    assert all(torch.allclose(case.release.update[name], u, atol=1e-6) for name, u in expected.items())
    with refused("shape-mismatch", "truth"):
        Federation.from_held_out(shown, part(0, 6), part(100, 700), 4, seed=0)


def test_the_federation_is_trained_as_federated_averaging_by_plain_torch() -> None:
    made = federation(SEVERAL)
    weights, rounds = made.train((), range(2))
    expected = made.sent.at
    for _ in range(2):
        update = mean([by_torch(expected, data, SEVERAL) for data in parts_of(made, made.clients)])
        expected = expected | {name: expected[name] + u for name, u in update.items()}
    assert rounds == 2
    assert all(torch.allclose(weights[name], p, atol=1e-5) for name, p in expected.items())


def test_noise_is_relative_to_the_root_mean_square_of_each_tensor() -> None:
    made = federation(STEP)
    plain = made.update(1, ()).release.update
    for level in (0.1, 3.0):
        noisy = made.update(1, AXES["noise"].setting("noise", level).defenses).release.update
        for name in ("1.weight", "3.weight"):
            ratio = (noisy[name] - plain[name]).std() / plain[name].square().mean().sqrt()
            assert float(ratio) == pytest.approx(level, rel=0.1)


def test_top_k_bits_and_clipping_are_applied_to_what_each_client_sends() -> None:
    made = federation(STEP)
    plain = torch.cat([u.flatten() for u in made.update(1, ()).release.update.values()])

    def flat(axis: str, value: float) -> torch.Tensor:
        shown = made.update(1, AXES[axis].setting(axis, value).defenses).release
        return torch.cat([u.flatten() for u in shown.update.values()])

    assert int((flat("topk", 0.01) != 0).sum()) == -(-len(plain) // 100)
    assert len(flat("bits", 1).unique()) == 8  # two levels in each of four tensors
    assert float(flat("clip", 0.01).norm()) == pytest.approx(0.01, rel=1e-4)
    assert float(plain.norm()) > 0.01


def test_frozen_parameters_stay_frozen_in_every_update() -> None:
    release = sent(STEP)
    head = replace(release, update={name: u for name, u in release.update.items() if name.startswith("3")})
    made = Federation.from_held_out(head, part(0, 8), part(100, 700), 3, seed=0)
    assert set(made.update(2, ()).release.update) == {"3.weight", "3.bias"}
    weights, _ = made.train((), range(2))
    assert torch.equal(weights["1.weight"], release.at["1.weight"])
    assert not torch.equal(weights["3.weight"], release.at["3.weight"])


def test_no_record_of_another_client_is_held_out_nor_another_of_its_subject() -> None:
    made = federation(STEP, clients=20)
    assert (made.clients, len(made.others), len(made.held_out)) == (20, 19 * 8, 600 - 19 * 8)
    keys = [{row.tobytes() for row in data.x.flatten(1).numpy()} for data in (made.others, made.held_out)]
    assert not keys[0] & keys[1]
    few = replace(part(100, 700), groups=torch.arange(600) // 4)
    grouped = Federation.from_held_out(sent(STEP), part(0, 8), few, 20, seed=0)
    assert grouped.others.groups is not None
    assert grouped.held_out.groups is not None
    assert not set(grouped.others.groups.tolist()) & set(grouped.held_out.groups.tolist())


def test_sums_of_more_clients_than_records_are_held_out_for_are_refused() -> None:
    made = federation(STEP, clients=100)
    assert made.clients == 38  # half of 600 records
    with refused("out-of-range", "clients"):
        made.update(39, ())


def test_records_of_all_clients_are_in_the_sum() -> None:
    made = federation(STEP)
    case = made.update(2, ())
    expected = concat(parts_of(made, 2))
    assert torch.equal(case.truth.x, expected.x)
    assert case.release.batch_size == 16
