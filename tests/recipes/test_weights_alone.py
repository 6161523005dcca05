"""The recipes of Haim et al. and Buzaglo et al. at smoke scale, what each must show even there, and what they share."""

from dataclasses import replace

import pytest
import torch
from smoke import measures, results

from remanence.attacks import KKT, Stationarity
from remanence.data.splits import check_disjoint
from remanence.experiments import Trial
from remanence.training import ByLoss, CrossEntropy, KnownLoss, Logistic, SquaredError
from remanence.types import Data
from remanence_recipes import RECIPES
from remanence_recipes.buzaglo2023.figures import decays, for_survey, grouped, multiclass
from remanence_recipes.weights_alone import surveys, target
from remanence_recipes.weights_alone.surveys import Surveyed, difference, fraction_found, survey_along
from remanence_recipes.weights_alone.target import FULL, Target

NAMES = [name for name in RECIPES if name.startswith(("buzaglo2023.", "haim2022.", "ablations.first_layer_span"))]
TARGET = Target(scale="smoke", per_class=3, effort=FULL["smoke"], decay=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_from_its_experiments_to_the_page(name: str) -> None:
    assert list(results(name)) == [experiment.label for experiment in RECIPES[name]("smoke")]


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith(("ablations.", "buzaglo2023.published"))])
def test_experiments_state_what_they_spend_of_the_papers_epochs_iterations_and_runs(name: str) -> None:
    for experiment in RECIPES[name]("full"):
        assert experiment.budget
        spent = experiment.budget.fractions()
        assert spent["epochs"] <= 0.02
        assert spent["iterations"] <= 0.06
        assert spent["restarts"] <= 0.03


@pytest.mark.slow
def test_digits_are_found_in_stationary_weights_and_more_of_ten_classes_than_of_two() -> None:
    made = results("buzaglo2023.figure2_binary_vs_multiclass")
    ten, two = (measures(made[label]) for label in ("ten classes", "two groups"))
    assert ten["share found, Stationarity"] >= 0.3  # chance: 0.01
    assert ten["share found, Stationarity"] > ten["share found, KKT"]
    assert ten["mean SSIM, Stationarity"] > two["mean SSIM, Stationarity"]


@pytest.mark.slow
def test_more_is_found_with_weight_decay() -> None:
    made = results("buzaglo2023.figure4_weight_decay")
    without, decayed = (measures(made[label]) for label in ("no decay, small first layer", "decay 0.01"))
    assert decayed["share found, Stationarity"] > without["share found, Stationarity"]
    assert decayed["unexplained off the ReLU boundary"] < 0.1 < without["unexplained off the ReLU boundary"]


@pytest.mark.slow
def test_the_best_of_each_class_is_better_than_the_best_by_chance() -> None:
    found = {measure.name: measure for measure in results("buzaglo2023.figure1")["best of each class"].measures}
    best = found["best SSIM of a class, Stationarity"]
    assert best.chance < best.low
    assert found["classes with a record found, Stationarity"].value >= 0.3


@pytest.mark.slow
def test_weight_decay_draws_records_towards_the_boundary() -> None:
    result = results("buzaglo2023.figure5_margins")["margins"]
    found = measures(result)
    assert found["median margin, decay 0.01"] < found["median margin, no decay, small first layer"]
    assert all(list(line.y) == sorted(line.y) and len(line.y) == 19 for line in result.figures[0].series)


@pytest.mark.slow
def test_a_victim_with_training_errors_is_attacked() -> None:
    found = measures(results("buzaglo2023.figure5_margins")["training error above zero"])
    assert 0 < found["records on the wrong side"] < 0.5
    assert 0 <= found["share found, Stationarity"] <= 1


@pytest.mark.slow
def test_surveys_of_classes_are_one_experiment_for_each_number_of_records() -> None:
    made = results("buzaglo2023.figure3_classes")
    assert list(made) == ["2 of each", "5 of each"]
    for result in made.values():
        found = measures(result)
        records = found["records found, 10 classes, Stationarity"]
        count = 10 * int(result.label.split()[0])
        assert records == pytest.approx(found["share found, 10 classes, Stationarity"] * count)
    assert "weight decay over none, two classes" in results("buzaglo2023.figure4_weight_decay")


@pytest.mark.slow
def test_the_threshold_stands_next_to_what_unrelated_images_reach() -> None:
    result = results("buzaglo2023.figure7_threshold")["around SSIM 0.4"]
    found = measures(result)
    by_chance = [found[f"above 0.4, {count} unrelated images"] for count in (20, 40, 80, 160)]
    assert by_chance == sorted(by_chance)
    levels = {line.name: line.y for line in result.figures[0].series}
    assert levels["Stationarity"][8] == found["above 0.4, Stationarity"]  # the ninth level is 0.4
    assert all(list(y) == sorted(y, reverse=True) for y in levels.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10_binary", "mnist_binary", "regression"])
def test_binary_victims_converge_without_weight_decay_but_for_regression(name: str) -> None:
    made = results(f"haim2022.{name}")
    without, decayed = (measures(result)["unexplained off the ReLU boundary"] for result in made.values())
    assert decayed < 0.15
    assert (without < 0.15) == (name != "regression")
    axis = "error" if name == "regression" else "margin"
    assert {figure.title for result in made.values() for figure in result.figures} == {f"SSIM against the {axis}"}


@pytest.mark.slow
def test_the_rank_of_the_first_layer_counts_the_records_once_the_initial_weights_have_vanished() -> None:
    result = results("ablations.first_layer_span")["weight decay and epochs"]
    found = measures(result)
    assert found["rank, weight decay 0.015"] == found["rank, first weights known, no weight decay"] == 20
    assert found["rank, weight decay 0"] is None
    assert found["AUC, weight decay 0"] < 1 == found["AUC, weight decay 0.015"]
    (caveat,) = result.caveats
    assert caveat.code == "no-gap"
    assert caveat.text.startswith("Weight decay 0: ")


@pytest.mark.slow
def test_a_record_is_identified_in_the_target_that_was_trained_on_it_and_in_no_other() -> None:
    found = measures(results("ablations.first_layer_span")["with and without a record"])
    assert found["rank exact"] == found["AUC, with against without"] == found["identified, with the record"] == 1
    assert found["identified, without the record"] == 0


def test_a_victim_has_as_many_records_of_each_class_and_none_held_out() -> None:
    private, held_out = replace(TARGET, classes=4).split(1)
    assert private.y.bincount().tolist() == [3, 3, 3, 3]
    assert private.num_classes == held_out.num_classes == 4
    check_disjoint({"private": private, "held out": held_out})
    assert not torch.equal(private.x, replace(TARGET, classes=4).split(2)[0].x)


def test_two_groups_are_of_all_ten_classes() -> None:
    two = grouped(TARGET)
    assert two.records == TARGET.records == 30
    assert two.split(1)[0].y.bincount().tolist() == [15, 15]


def test_photographs_join_held_out_records_that_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    def images(source: str, *, shrunk: bool) -> Data:
        x = torch.rand(24, 3, 4, 4, generator=torch.Generator().manual_seed(len(source)))
        return Data(x=x, y=torch.arange(24) % 2, num_classes=2, name=source)

    monkeypatch.setattr(target, "distinct_images", images)
    large = replace(TARGET, scale="full", source="cifar100", classes=2, per_class=9)
    private, held_out = large.split(0)
    assert len(private) == 18
    assert len(held_out) == 6 + 24
    assert len(replace(large, per_class=3).split(0)[1]) == 18  # 12 candidates: enough are left


@pytest.mark.parametrize(("loss", "signed"), [(Logistic(), False), (SquaredError(), True)])
def test_the_published_runs_are_those_of_the_loss(loss: Logistic | SquaredError, signed: bool) -> None:
    each = replace(TARGET, loss=loss, classes=2)
    kkt = each.attacks(0)["KKT"]
    assert isinstance(kkt, KKT)
    assert kkt.signed == signed
    assert len(kkt.runs) == each.runs == 2 + FULL["smoke"].sampled_runs
    assert kkt.runs[0].multiplier_lr == 1e-4


def test_the_papers_victims_without_weight_decay_are_trained_in_float64() -> None:
    for each in decays(multiclass("full")).values():
        assert each.dtype == (torch.float32 if each.decay else torch.float64)


@pytest.mark.parametrize("loss", [CrossEntropy(), Logistic()], ids=repr)
@pytest.mark.parametrize("by_loss", [True, False])
def test_where_the_learning_rate_follows_the_loss_attacks_scale_the_layers(loss: KnownLoss, by_loss: bool) -> None:
    each = replace(TARGET, loss=loss, decay=0.0, classes=2, by_loss=by_loss)
    assert isinstance(each.training().lr_schedule, ByLoss) == by_loss
    for attack in each.attacks(0).values():
        assert isinstance(attack, KKT | Stationarity)
        assert (attack.preprocessing.norm is not None) == by_loss


def surveyed(*found: float, records: int = 10) -> Surveyed:
    counts = torch.tensor(found, dtype=torch.float64)
    return Surveyed(found=counts, above=counts, by_chance=torch.ones_like(counts), records=records)


def test_surveys_report_fractions_of_all_records_and_differences_over_victims() -> None:
    one, other = surveyed(8, 9, 10), surveyed(1, 1, 2)
    found = difference("many over few", one.fractions, other.fractions, seed=0)
    assert found.value == pytest.approx(0.7667, abs=1e-4)
    assert found.low is not None
    assert 0.7 - 1e-9 <= found.low <= found.value
    assert fraction_found("few", surveyed(1, 4)).value == 0.25


def test_a_survey_along_an_axis_compares_its_last_value_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {classes: for_survey(TARGET, 2, classes=classes) for classes in (2, 5, 10)}
    found = {2: surveyed(0, 2), 5: surveyed(5, 5), 10: surveyed(9, 10)}
    monkeypatch.setattr(surveys, "survey", lambda target, *_: {"KKT": found[target.classes]})
    measured, _ = survey_along("", "", "classes", {"few": points, "many": points}, victims=2).evaluations
    made = measured(Trial(attack=None, seed=0, device=torch.device("cpu")))
    first = made.measures[0]
    assert first.name == "difference of share found, 10 over 2 classes, KKT"
    assert first.value == pytest.approx(0.85)
    assert "4 victims" in first.meaning
    assert [figure.title for figure in made.figures] == ["Found, KKT", "SSIM above 0.4 as published, KKT"]
    assert made.figures[0].series[0].y == (0.1, 0.5, 0.95)
    assert made.figures[1].series[-1].y == (0.1, 0.1, 0.1)
