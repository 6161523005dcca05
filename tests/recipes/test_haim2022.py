"""Every recipe at smoke scale, from its cells to the page, and what each must show even there."""

import pytest
from smoke import measures, records

from remanence_recipes import RECIPES

NAMES = [name for name in RECIPES if name.startswith("haim2022.")]


@pytest.mark.parametrize("name", NAMES)
def test_weight_decay_brings_a_victim_nearer_to_rest(name: str) -> None:
    found = {label: measures(record) for label, record in records(name).items()}
    assert list(found) == [study.label for study in RECIPES[name]("smoke")]
    without, decayed = (each["unexplained off the kinks"] for each in found.values())
    assert decayed < without / 2


def test_regression_is_drawn_against_the_error() -> None:
    titles = [figure["title"] for record in records("haim2022.regression").values() for figure in record["figures"]]
    assert titles == ["SSIM against the error"] * 2
