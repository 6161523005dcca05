"""Every recipe at smoke scale, from its cells to the page, and what each must show even there."""

import pytest
from smoke import measures, records

from remanence_recipes import RECIPES

NAMES = [name for name in RECIPES if name.startswith("buzaglo2023.")]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_from_its_cells_to_the_page(name: str) -> None:
    assert list(records(name)) == [cell.label for cell in RECIPES[name]("smoke")]


def test_digits_are_read_off_weights_that_came_to_rest() -> None:
    found = measures(records("buzaglo2023.figure2_binary_vs_multiclass")["ten classes"])
    assert found["share found, Equilibrium"] >= 0.3  # chance: 0.01
    assert found["share found, Equilibrium"] > found["share found, KKT"]


def test_more_classes_give_more_away() -> None:
    ten, two = (measures(r) for r in records("buzaglo2023.figure2_binary_vs_multiclass").values())
    assert ten["mean SSIM, Equilibrium"] > two["mean SSIM, Equilibrium"]


def test_weight_decay_gives_more_away() -> None:
    without, decayed = (measures(r) for r in records("buzaglo2023.figure4_weight_decay").values())
    assert decayed["share found, Equilibrium"] > without["share found, Equilibrium"]
    assert decayed["unexplained off the kinks"] < 0.1 < without["unexplained off the kinks"]
