"""Every recipe at smoke scale, from its cells to the page, and what each must show even there."""

import pytest
from smoke import measures, results

from remanence_recipes import RECIPES

NAMES = [name for name in RECIPES if name.startswith("buzaglo2023.")]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_from_its_cells_to_the_page(name: str) -> None:
    assert list(results(name)) == [cell.label for cell in RECIPES[name]("smoke")]


def test_digits_are_read_off_weights_that_came_to_rest() -> None:
    found = measures(results("buzaglo2023.figure2_binary_vs_multiclass")["ten classes"])
    assert found["share found, Stationarity"] >= 0.3  # chance: 0.01
    assert found["share found, Stationarity"] > found["share found, KKT"]


def test_more_classes_give_more_away() -> None:
    made = results("buzaglo2023.figure2_binary_vs_multiclass")
    ten, two = (measures(made[label]) for label in ("ten classes", "two groups"))
    assert ten["mean SSIM, Stationarity"] > two["mean SSIM, Stationarity"]


def test_weight_decay_gives_more_away() -> None:
    made = results("buzaglo2023.figure4_weight_decay")
    without, decayed = (measures(made[label]) for label in ("no decay, small first layer", "decay 0.01"))
    assert decayed["share found, Stationarity"] > without["share found, Stationarity"]
    assert decayed["unexplained off the kinks"] < 0.1 < without["unexplained off the kinks"]


def test_the_best_of_each_class_is_shown_beside_the_best_by_chance() -> None:
    record = results("buzaglo2023.figure1")["best of each class"]
    found = {measure.name: measure for measure in record.measures}
    best = found["best SSIM of a class, Stationarity"]
    assert best.chance < best.low
    assert found["classes with a record found, Stationarity"].value >= 0.3


def test_decay_draws_records_towards_the_boundary() -> None:
    record = results("buzaglo2023.figure5_margins")["margins"]
    found = measures(record)
    assert found["median margin, decay 0.01"] < found["median margin, no decay, small first layer"]
    lines = record.figures[0].series
    assert all(list(line.y) == sorted(line.y) and len(line.y) == 19 for line in lines)


def test_the_threshold_stands_beside_what_unrelated_images_reach() -> None:
    record = results("buzaglo2023.figure7_threshold")["around SSIM 0.4"]
    found = measures(record)
    shares = [found[f"above 0.4, {count} unrelated images"] for count in (20, 40, 80, 160)]
    assert shares == sorted(shares)
    falling = {line.name: line.y for line in record.figures[0].series}
    assert falling["Stationarity"][8] == found["above 0.4, Stationarity"]  # the place of 0.4
    assert all(list(y) == sorted(y, reverse=True) for y in falling.values())


@pytest.mark.parametrize("name", ["figure3_classes", "figure8_fixed_500", "figure6_cifar100"])
def test_a_sweep_shows_every_place_of_its_axis_beside_chance(name: str) -> None:
    (record,) = results(f"buzaglo2023.{name}").values()
    found, published = record.figures
    assert {series.role for series in found.series} == {"ours", "chance"}
    assert published.title.startswith("SSIM above 0.4")
    assert all(len(series.x) == 2 for series in (*found.series, *published.series))
