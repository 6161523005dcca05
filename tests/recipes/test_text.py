"""The studies of text at smoke scale: the recipes run, and show what they should."""

import pytest
from smoke import measures, results

from remanence_recipes import RECIPES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("text.")])
def test_a_recipe_runs_and_finds_every_token(name: str) -> None:
    assert list(results(name)) == [experiment.label for experiment in RECIPES[name]("smoke")]
    for result in results(name).values():
        found = measures(result)
        assert found["tokens found"] == 1
        assert found.get("sequences found", 1) == 1
