"""What the recipes on weights alone share: their victims, and comparisons over several of them."""

from dataclasses import replace

import pytest
import torch

from remanence.attacks import KKT, Stationarity
from remanence.data.splits import check_disjoint
from remanence.training import ByLoss, CrossEntropy, KnownLoss, Logistic, SquaredError
from remanence.types import Data
from remanence_recipes.buzaglo2023.figures import decays, few, grouped, plain
from remanence_recipes.weights_alone import sweep, target
from remanence_recipes.weights_alone.survey import Surveyed, difference, share
from remanence_recipes.weights_alone.sweep import Sweep
from remanence_recipes.weights_alone.target import FULL, Target

TARGET = Target(scale="smoke", per_class=3, effort=FULL["smoke"], decay=0.01)


def surveyed(*found: float, records: int = 10) -> Surveyed:
    counts = torch.tensor(found, dtype=torch.float64)
    return Surveyed(found=counts, good=counts, by_chance=torch.ones_like(counts), records=records)


def test_a_victim_has_as_many_records_of_each_class_and_none_held_out() -> None:
    private, held_out = replace(TARGET, classes=4).cut(1)
    assert private.y.bincount().tolist() == [3, 3, 3, 3]
    assert private.num_classes == held_out.num_classes == 4
    check_disjoint({"private": private, "held out": held_out})
    assert not torch.equal(private.x, replace(TARGET, classes=4).cut(2)[0].x)


def test_two_groups_are_of_all_ten_classes() -> None:
    two = grouped(TARGET)
    private, _ = two.cut(1)
    assert two.records == TARGET.records == 30
    assert private.y.bincount().tolist() == [15, 15]
    assert list(two.victim(private, 1).final.values())[-1].shape == (1, 150)


def test_photographs_join_held_out_records_that_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    def images(source: str, *, shrunk: bool) -> Data:
        generator = torch.Generator().manual_seed(len(source))
        x = torch.rand(24, 3, 4, 4, generator=generator)
        return Data(x=x, y=torch.arange(24) % 2, num_classes=2, name=source)

    monkeypatch.setattr(target, "_images", images)
    most = replace(TARGET, scale="full", source="cifar100", classes=2, per_class=9)
    private, held_out = most.cut(0)
    assert len(private) == 18
    assert len(held_out) == 6 + 24
    assert len(replace(most, per_class=3).cut(0)[1]) == 18  # 12 candidates: enough are left


@pytest.mark.parametrize(("loss", "signed"), [(Logistic(), False), (SquaredError(), True)])
def test_the_published_runs_are_those_of_the_loss(loss: Logistic | SquaredError, signed: bool) -> None:
    kkt = replace(TARGET, loss=loss, classes=2).attacks(0)["KKT"]
    assert isinstance(kkt, KKT)
    assert kkt.signed == signed
    assert len(kkt.runs) == 2 + FULL["smoke"].runs
    assert kkt.runs[0].multiplier_lr == 1e-4


def test_the_papers_victims_without_weight_decay_are_trained_in_float64() -> None:
    for each in decays(plain("full"), "full").values():
        assert each.dtype == (torch.float32 if each.decay else torch.float64)


@pytest.mark.parametrize("loss", [CrossEntropy(), Logistic()], ids=repr)
@pytest.mark.parametrize("by_loss", [True, False])
def test_where_the_rate_follows_the_loss_attacks_take_the_length_off(loss: KnownLoss, by_loss: bool) -> None:
    each = replace(TARGET, loss=loss, decay=0.0, classes=2, by_loss=by_loss)
    assert isinstance(each.training().lr_schedule, ByLoss) == by_loss
    assert all(
        (attack.preprocessing.norm is not None) == by_loss
        for attack in each.attacks(0).values()
        if isinstance(attack, KKT | Stationarity)
    )


def test_a_difference_has_its_interval_over_victims() -> None:
    one, other = surveyed(8, 9, 10), surveyed(1, 1, 2)
    found = difference("many over few", one.shares, other.shares, seed=0)
    assert found.value == pytest.approx(0.7667, abs=1e-4)
    assert found.low is not None
    assert 0.7 - 1e-9 <= found.low <= found.value
    assert found.chance == 0
    assert difference("few over many", other.shares, one.shares, seed=0).value == pytest.approx(-found.value)


def test_a_share_is_of_the_records_of_all_victims() -> None:
    assert share("found", surveyed(1, 4)).value == 0.25


def test_a_sweep_compares_the_ends_of_its_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {classes: replace(few("smoke"), classes=classes) for classes in (2, 5, 10)}
    shares = {2: surveyed(0, 2), 5: surveyed(5, 5), 10: surveyed(9, 10)}
    monkeypatch.setattr(sweep, "survey", lambda target, *_: {"KKT": shares[target.classes]})
    made = Sweep(axis="classes", curves={"few": points, "many": points}, victims=2).run(0, torch.device("cpu"))
    first = made.measures[0]
    assert first.name == "difference of share found, 10 over 2 classes, KKT"
    assert first.value == pytest.approx(0.85)
    assert "4 victims" in first.meaning
    assert [figure.title for figure in made.figures] == ["Found, KKT", "SSIM above 0.4 as published, KKT"]
    assert made.figures[0].series[0].y == (0.1, 0.5, 0.95)
    assert made.figures[1].series[-1].y == (0.1, 0.1, 0.1)
