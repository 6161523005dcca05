"""Held-out records of another kind, and near copies of private ones: named before any attack, and no result."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from auditing.nets import as_images, fitted, published, seeded, small_mlp, weights
from refusals import refused
from torch import Tensor

from remanence import audit
from remanence.auditing.answer.gate import failures
from remanence.auditing.checks.kinds import check_kind, check_near_copies
from remanence.data import split
from remanence.releases import gradient_at_initial, train_victim
from remanence.training import Training
from remanence.types import Data


def noise(like: Tensor, size: float, *, seed: int = 0) -> Tensor:
    return size * torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))


def changed(data: Data, change: Callable[[Tensor], Tensor]) -> Data:
    return replace(data, x=change(data.x))


def halves(data: Data, private: int, held_out: int, seed: int) -> tuple[Data, Data]:
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    return data.take(order[:private]), data.take(order[private : private + held_out])


def table(seed: int) -> Data:
    """Columns of numbers, of few values, and rare ones of 0 and 1; some rows are nearly those of others."""
    g = torch.Generator().manual_seed(seed)
    parts = [torch.randn(1200, 2, generator=g), torch.randint(0, 4, (1200, 3), generator=g).float()]
    parts.append((torch.rand(1200, 20, generator=g) < 0.03).float())
    x = torch.cat(parts, dim=1)
    x[:60] = x[60:120] + 1e-3
    return Data(x=x, y=torch.randint(0, 2, (1200,), generator=g), num_classes=2, bounds=(-torch.inf, torch.inf))


OTHER: dict[str, Callable[[Tensor], Tensor]] = {
    "noisy": lambda x: (x + noise(x, 0.2)).clamp(0, 1),
    "shifted": lambda x: x.roll(1, 3),
    "random": lambda x: torch.rand(x.shape, generator=torch.Generator().manual_seed(0)),
    "darker": lambda x: 0.7 * x,
    "flipped": lambda x: x.flip(3),
}


@pytest.mark.parametrize("kind", OTHER)
def test_held_out_records_of_another_kind_are_warned_of(digits: Data, kind: str) -> None:
    private, held_out = halves(as_images(digits), 100, 1000, 0)
    for one, other in ((private, changed(held_out, OTHER[kind])), (changed(private, OTHER[kind]), held_out)):
        assert [check.status for check in check_kind(one, other)] == ["warning"]


@pytest.mark.parametrize(("private", "held_out"), [(10, 400), (100, 1000), (300, 300)])
def test_splits_at_random_are_of_one_kind_without_near_copies(digits: Data, private: int, held_out: int) -> None:
    for seed in range(15):
        for data in (as_images(digits), table(seed)):
            parts = halves(data, private, held_out, seed)
            assert check_kind(*parts)[0].status == "ok"
            assert check_near_copies(*parts, {}) == []


def test_several_photographs_of_one_subject_are_no_other_kind_where_that_is_said(digits: Data) -> None:
    ours, theirs = halves(as_images(digits), 40, 600, 1)
    x = ours.x.repeat(3, 1, 1, 1)
    private = Data(x=(x + noise(x, 0.01)).clamp(0, 1), y=ours.y.repeat(3), num_classes=10)
    assert check_kind(private, theirs)[0].status == "warning"
    groups = torch.arange(40).repeat(3)
    said = replace(private, groups=groups), replace(theirs, groups=100 + torch.arange(600))
    assert check_kind(*said)[0].status == "ok"


def test_near_copies_of_private_records_stop_and_a_few_warn(digits: Data) -> None:
    private, held_out = halves(as_images(digits), 100, 1000, 2)
    near = (private.x + noise(private.x, 0.01)).clamp(0, 1)

    def beside(count: int) -> Data:
        return replace(held_out, x=torch.cat([held_out.x, near[:count]]), y=torch.cat([held_out.y, private.y[:count]]))

    for count, status in ((3, "warning"), (20, "stop")):
        numbers: dict[str, float | None] = {}
        (check,) = check_near_copies(private, beside(count), numbers)
        assert check.status == status
        assert "the positions 1000, 1001, 1002" in check.text
        assert numbers == {"near_copies": count}
    assert check_near_copies(private, replace(private, x=near), {})[0].status == "stop"  # nothing else was held out
    release = published(fitted(seeded(small_mlp), private), private)
    with refused("preflight", "near-copies"):
        audit(release, truth=private, held_out=beside(20), budget=1)


@pytest.mark.parametrize("overfitted", [False, True])
def test_after_a_warning_ranks_and_membership_decide_nothing(digits: Data, overfitted: bool) -> None:
    parts = split(as_images(digits), private=60, fixed=0, public=300, test=800, seed=0)
    model = fitted(seeded(small_mlp), parts.private if overfitted else parts.public, epochs=40)
    noisy = changed(parts.test, OTHER["noisy"])
    report = audit(published(model, parts.private), truth=parts.private, held_out=noisy, budget=2)
    assert report.severity == "inconclusive"
    assert report.verdict.startswith("Inconclusive: private and held-out records are not of one kind")
    assert "not of one kind" in report.answer.advice[0]
    assert all(row.found == 0 and row.p == 1 for row in report.attacks if row.records and row.subject == "release")
    assert not any(example.found.any() for example in report.examples.values())
    conditions = ["found>0", "found>=90%", "severity>=membership", "membership.tpr@1%>0.99"]
    assert len(failures(report, conditions)) == len(conditions)


def test_where_no_attack_had_time_another_kind_is_said_and_nothing_is_distinguished(digits: Data) -> None:
    parts = split(as_images(digits), private=60, fixed=0, public=300, test=800, seed=0)
    noisy = changed(parts.test, OTHER["noisy"])
    report = audit(published(seeded(small_mlp), parts.private), truth=parts.private, held_out=noisy, budget=0.01)
    assert not any(row.status == "ran" for row in report.attacks)
    assert report.verdict.startswith("Inconclusive: private and held-out records are not of one kind")
    assert "no attack ran, for lack of time" in report.verdict
    assert "distinguished" not in report.verdict


def test_exact_copies_count_whatever_was_held_out(digits: Data) -> None:
    parts = split(as_images(digits), private=16, fixed=0, public=0, test=800, seed=0)
    model, batch = small_mlp(hidden=512), parts.private
    initial = weights(seeded(lambda: small_mlp(hidden=512)))
    victim = train_victim(model, Training(epochs=1), initial, batch.take(slice(0, 0)), batch, seed=0)
    release = gradient_at_initial(victim).release
    noisy = changed(parts.test, OTHER["random"])
    report = audit(release, truth=batch, held_out=noisy, budget=10, attacks=["FirstLayer"])
    (row,) = report.attacks
    assert row.found == row.exact
    assert row.exact
    assert report.severity in ("some-records", "many-records")
    assert "exact copies alone were counted" in report.verdict
