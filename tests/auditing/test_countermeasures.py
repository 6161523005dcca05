"""What would help: stand-ins trained with each countermeasure, what leaks from them and how accurate they are."""

from functools import cache
from math import sqrt
from statistics import NormalDist
from time import process_time
from typing import Any

import pytest
import torch
from gradients import release_of
from made_report import made_answer
from sklearn.datasets import load_breast_cancer
from torch import nn

from remanence.auditing import Report, audit
from remanence.auditing.answer.report import Countermeasure
from remanence.auditing.answer.saved import dump_answer, parse_answer
from remanence.auditing.answer.tradeoff import tradeoff
from remanence.auditing.countermeasures.comparison import countermeasures, countermeasures_for
from remanence.auditing.countermeasures.variants import variants
from remanence.data import load
from remanence.engine import train
from remanence.models import initial_params, mlp
from remanence.releases import FineTuned
from remanence.training import SGD, Adam, AdamW, CrossEntropy, Logistic, Training
from remanence.types import Data, Params

RECIPE = Training(optimizer=SGD(lr=0.1, momentum=0.9), epochs=30, batch_size=10)
FINE_TUNING = Training(optimizer=SGD(lr=0.05), epochs=40)


def digits(start: int, stop: int) -> Data:
    data = load("digits")
    return data.take(torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[start:stop])


def net() -> nn.Module:
    return mlp((1, 8, 8), 10, hidden=(64,))


@cache
def from_scratch() -> tuple[Countermeasure, ...]:
    rows, _ = countermeasures(net(), RECIPE, digits(0, 40), digits(40, 600), attacks=(), budget=120, seed=0)
    return rows


@cache
def base() -> Params:
    recipe = Training(optimizer=SGD(lr=0.1, momentum=0.9), epochs=30)
    return train(recipe, net(), initial_params(net(), seed=1), digits(1000, 1500))


@cache
def fine_tuned() -> tuple[Countermeasure, ...]:
    rows, _ = countermeasures(
        net(), FINE_TUNING, digits(0, 20), digits(20, 600), initial=base(), attacks=(), budget=120, seed=0
    )
    return rows


def private(rows: tuple[Countermeasure, ...]) -> list[Countermeasure]:
    return [row for row in rows if row.name == "differential privacy"]


def auc(row: Countermeasure) -> tuple[float, float, float]:
    assert row.auc is not None
    value, low, high = row.auc.value, row.auc.low, row.auc.high
    assert value is not None
    assert low is not None
    assert high is not None
    return value, low, high


def accuracy(row: Countermeasure) -> float:
    assert row.accuracy is not None
    return row.accuracy.value


def test_the_baseline_comes_first_and_every_countermeasure_is_a_row() -> None:
    rows = from_scratch()
    assert rows[0].name == "baseline"
    kinds = ["withheld base", "differential privacy", "weight decay", "early stopping", "larger batches"]
    assert list(dict.fromkeys(row.name for row in rows[1:])) == kinds
    assert all(row.status == "ran" for row in rows if row.name != "withheld base")


def test_strong_noise_hides_members_and_costs_accuracy() -> None:
    rows = from_scratch()
    strongest, weakest = private(rows)[0], private(rows)[-1]
    assert auc(rows[0])[1] > 0.6
    assert auc(strongest)[1] < 0.55 < auc(weakest)[0]
    assert accuracy(strongest) < accuracy(weakest) - 0.2
    assert accuracy(strongest) < accuracy(rows[0]) - 0.2


def test_epsilon_and_the_bound_are_those_of_the_gaussian_mechanism() -> None:
    normal = NormalDist()
    for row, epsilon in zip(private(from_scratch()), (1, 4, 16, 64), strict=True):
        assert row.epsilon == pytest.approx(epsilon, abs=1e-4)
        assert row.bound is not None
        mu = normal.inv_cdf(row.bound) - normal.inv_cdf(0.01) if row.bound < 1 - 1e-12 else 12.0
        if mu < 5:  # Dong, Roth, Su 2022, corollary 2.13
            delta = normal.cdf(mu / 2 - epsilon / mu) - torch.tensor(epsilon).double().exp() * normal.cdf(
                -mu / 2 - epsilon / mu
            )
            assert float(delta) == pytest.approx(1e-5, rel=1e-3)
        assert row.tpr is not None
        assert row.tpr.low is not None
        assert row.tpr.low <= row.bound
        assert auc(row)[1] <= normal.cdf(mu / sqrt(2))


@pytest.mark.slow
def test_a_base_is_not_destroyed_by_noise_and_withholding_it_hides_the_update() -> None:
    rows = fine_tuned()
    withheld = rows[1]
    assert withheld.name == "withheld base"
    assert accuracy(withheld) == accuracy(rows[0])
    assert auc(rows[0])[0] > 0.99  # the update spans the records
    assert auc(withheld)[0] < 0.9
    assert all(accuracy(row) > accuracy(rows[0]) - 0.1 for row in private(rows))


@pytest.mark.slow
@pytest.mark.usefixtures("short_searches")
def test_attacks_on_fine_tuning_are_gone_without_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remanence.metrics.nulls.NULL_SCORES", 100)
    rows, figure = countermeasures(
        net(),
        FINE_TUNING,
        digits(0, 4),
        digits(4, 1200),
        initial=base(),
        attacks=("Linearised", "KKT"),
        budget=40,
        seed=0,
    )
    assert rows[0].attack is not None
    assert rows[0].attack.name == "Linearised"
    assert rows[0].attack.subject == "stand-in"
    assert rows[1].attack is None or rows[1].attack.name == "KKT"
    assert "Linearised" in (rows[1].reason or "")
    assert [row.attack.name for row in private(rows) if row.attack] == ["Linearised"] * 4
    assert figure.series


@pytest.mark.slow
def test_one_unknown_record_of_a_table_is_found_until_noise_is_added() -> None:
    x, y = (torch.from_numpy(each) for each in load_breast_cancer(return_X_y=True))
    data = Data(x=(x - x.amin(0)) / (x.amax(0) - x.amin(0)), y=y, num_classes=2)
    fixed, truth, held_out = (data.take(slice(*ends)) for ends in ((0, 60), (60, 61), (100, 400)))
    recipe = Training(optimizer=SGD(lr=2.0), epochs=400, weight_decay=0.05, loss=Logistic())
    linear = nn.Sequential(nn.Linear(30, 1)).double()
    rows, _ = countermeasures(linear, recipe, truth, held_out, fixed=fixed, attacks=("GLM",), budget=120, seed=0)
    assert rows[0].attack is not None
    assert rows[0].attack.found == 1
    assert [row.attack for row in private(rows)] == [None] * 4
    assert all("GLM" in (row.reason or "") for row in private(rows))


@pytest.mark.slow
def test_a_network_with_batch_norm_and_dropout_is_trained_by_a_recipe_of_ours() -> None:
    cnn = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(36, 10)
    )
    before = {name: p.clone() for name, p in cnn.state_dict().items()}
    rows, _ = countermeasures(cnn, None, digits(0, 20), digits(20, 200), attacks=(), budget=120, seed=0)
    assert all(row.status == "ran" for row in rows if row.name in ("baseline", "differential privacy", "weight decay"))
    reason = rows[0].reason or ""
    assert "BatchNorm" in reason
    assert "dropout" in reason
    assert "recipe" in reason
    assert cnn.training
    assert all(bool((before[name] == p).all()) for name, p in cnn.state_dict().items())


def names_and_trainings(training: Training, records: int = 100, **changes: Any) -> list[tuple[str, Training]]:
    made = variants(training, initial_params(net(), seed=0), records=records, base=True, **changes)
    return [(each.name, each.training) for each in made if each.refusal is None]


@pytest.mark.parametrize(
    ("training", "decays"),
    [
        (Training(weight_decay=0.01), [0.0, 0.1]),
        (Training(), [0.001, 0.01]),
        (Training(optimizer=AdamW(lr=1e-3, weight_decay=0.1)), [0.0, 1.0]),
    ],
)
def test_weight_decay_is_raised_or_taken_away(training: Training, decays: list[float]) -> None:
    made = [each for name, each in names_and_trainings(training) if name == "weight decay"]
    found = [each.weight_decay or getattr(each.optimizer, "weight_decay", 0.0) for each in made]
    assert found == pytest.approx(decays)


@pytest.mark.parametrize(("size", "larger"), [(None, []), (100, []), (40, [None]), (8, [32, None])])
def test_batches_grow_up_to_all_records(size: int | None, larger: list[int | None]) -> None:
    made = names_and_trainings(Training(batch_size=size, optimizer=Adam()))
    assert [each.batch_size for name, each in made if name == "larger batches"] == larger


def test_one_epoch_cannot_be_stopped_early() -> None:
    assert not [name for name, _ in names_and_trainings(Training(epochs=1)) if name == "early stopping"]
    assert [t.epochs for name, t in names_and_trainings(Training(epochs=40)) if name == "early stopping"] == [10, 4]


def test_the_budget_is_kept() -> None:
    start = process_time()
    rows, figure = countermeasures(net(), RECIPE, digits(0, 400), digits(400, 600), budget=0.2, seed=0)
    assert process_time() - start < 5
    assert {row.status for row in rows} & {"skipped"}
    assert all(row.reason for row in rows if row.status == "skipped")
    assert figure.x_label


def test_an_update_is_not_trained_again() -> None:
    batch = digits(0, 4)
    release = release_of(net(), initial_params(net(), seed=1), batch, loss=CrossEntropy())
    [row] = countermeasures_for(release, batch, digits(4, 100), budget=10, seed=0)
    assert row.status == "refused"


def test_figure_has_a_point_for_each_stand_in_and_the_levels() -> None:
    figure = tradeoff(from_scratch())
    names = {series.name: len(series.x) for series in figure.series}
    assert names.pop("chance")
    assert names == {
        "baseline": 1,
        "differential privacy": 4,
        "weight decay": 2,
        "early stopping": 2,
        "larger batches": 1,
    }


def test_rows_are_saved_and_shown() -> None:
    answer = made_answer(countermeasures=from_scratch())
    assert parse_answer(dump_answer(answer), where="here").countermeasures == from_scratch()
    page = Report(answer=answer).to_html()
    assert "What would help" in page
    assert "What would help" not in Report(answer=made_answer()).to_html()


@pytest.mark.slow
def test_an_audit_tries_countermeasures_on_request() -> None:
    truth, held_out = digits(0, 8), digits(8, 200)
    release = FineTuned(
        model=net(),
        final=train(FINE_TUNING, net(), base(), truth),
        initial=base(),
        training=FINE_TUNING,
        shape=truth.shape,
        num_classes=10,
    )
    report = audit(release, truth=truth, held_out=held_out, attacks=(), budget=20, defenses=True)
    assert report.answer.countermeasures[0].name == "baseline"
    assert report.answer.budget == 20
    assert report.answer.seconds < 25
