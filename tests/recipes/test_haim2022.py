"""Every recipe at smoke scale, from its cells to the page, and what each must show even there."""

import pytest
from smoke import measures, results

from remanence_recipes import RECIPES

NAMES = [name for name in RECIPES if name.startswith("haim2022.")]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_victims_come_to_rest_without_weight_decay_but_for_regression(name: str) -> None:
    found = {label: measures(record) for label, record in results(name).items()}
    assert list(found) == [study.label for study in RECIPES[name]("smoke")]
    without, decayed = (each["unexplained off the kinks"] for each in found.values())
    assert decayed < 0.15
    assert (without < 0.15) == (name != "haim2022.regression")


def test_regression_is_drawn_against_the_error() -> None:
    titles = [figure.title for record in results("haim2022.regression").values() for figure in record.figures]
    assert titles == ["SSIM against the error"] * 2
