"""Every recipe of the paper at smoke scale, from its cells to the page, and what each must show even there."""

import pytest
from smoke import measures, records

from remanence_recipes import RECIPES

NAMES = [name for name in RECIPES if name.startswith("mnemonist2023.")]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_from_its_cells_to_the_page(name: str) -> None:
    assert list(records(name)) == [cell.label for cell in RECIPES[name]("smoke")]


@pytest.mark.parametrize("name", NAMES)
def test_every_record_says_that_the_victims_rate_was_chosen_by_the_truth(name: str) -> None:
    for record in records(name).values():
        assert "tuned-on-truth" in {caveat["code"] for caveat in record["caveats"]}


def test_all_readings_of_a_run_see_the_same_releases() -> None:
    made = records("mnemonist2023.table3")
    errors = {label: r["scores"]["metrics"]["mae+mse"]["mean"] for label, r in made.items()}
    for place in (1, 2):
        readings = [r for label, r in made.items() if label.startswith(f"run {place}")]
        assert len(readings) == 3
        assert all(r["release"] == readings[0]["release"] and "mean_image" in r["nulls"] for r in readings)
        assert errors[f"run {place}, RecoNN"] != errors[f"run {place}, Mnemonist-RecoNN"]
    assert errors["run 1, RecoNN"] != errors["run 2, RecoNN"]  # other first weights


def test_a_gain_is_that_of_the_errors_it_stands_beside() -> None:
    (record,) = records("mnemonist2023.figure1_initialisations").values()
    (figure,), found = record["figures"], measures(record)
    lines = {series["name"]: series["y"] for series in figure["series"]}
    pairs = zip(lines["RecoNN, ReLU"], lines["Mnemonist-RecoNN, ReLU"], strict=True)
    gains = [1 - after / before for before, after in pairs]
    assert found["gain of Mnemonist-RecoNN"] == pytest.approx(sum(gains) / len(gains), abs=1e-5)
    assert found["starts in which it gains"] == sum(gain > 0 for gain in gains) / len(gains)
    assert lines["RecoNN, ReLU"] == sorted(lines["RecoNN, ReLU"])
    assert len(set(lines["mean image"])) == 1


def test_every_row_stores_every_record_with_a_sigmoid_and_some_do_with_a_relu() -> None:
    made = records("mnemonist2023.figure5_storage")
    relu, sigmoid = made["ReLU"], made["sigmoid"]
    assert measures(sigmoid)["rows that store a record, step 1"] == 10
    assert 0 < measures(relu)["rows that store a record, step 1"] < 10
    histogram = relu["figures"][0]["series"][0]
    mean = sum(int(rows) * share for rows, share in zip(histogram["x"], histogram["y"], strict=True))
    assert mean == pytest.approx(measures(relu)["rows that store a record, step 1"], rel=1e-4)


def test_the_surrogate_of_all_masks_is_drawn_with_every_row_and_every_mask() -> None:
    (record,) = records("mnemonist2023.figure7_importance").values()
    figures = {figure["title"]: figure["series"][0] for figure in record["figures"]}
    assert len(figures["Importance"]["y"]) == len(figures["Storage"]["y"]) == 10
    assert len(figures["Every mask"]["y"]) == 1024
    assert figures["Rows kept"]["x"] == list(range(11))
    whole, none = figures["Rows kept"]["y"][-1], figures["Rows kept"]["y"][0]
    assert whole < none  # a reader misses rows that are put back
    assert 0 < measures(record)["linear surrogate, R²"] <= 1
