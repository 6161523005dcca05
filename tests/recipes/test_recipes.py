"""Every recipe makes experiments at every scale, and every committed result passes its own check."""

from pathlib import Path

import pytest

from remanence.experiments import SCALES, Scale
from remanence.experiments.results import parse_results
from remanence_recipes import RECIPES

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_makes_differently_named_experiments(name: str, scale: Scale) -> None:
    labels = [experiment.label for experiment in RECIPES[name](scale)]
    assert labels
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_committed_result_is_one(path: Path) -> None:
    results = parse_results(path.read_text(encoding="utf-8"), where=path.name)
    small = path.stem.endswith("-small")
    assert {result.scale for result in results} == {"small" if small else "full"}
    assert {result.recipe for result in results} <= set(RECIPES)
    for claim in (claim for result in results for claim in result.claims):
        assert (claim.holds is None) == (small or claim.printed is None)
        assert (claim.reached is None) == (small or claim.target is None)
