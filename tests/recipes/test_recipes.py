"""Every recipe makes cells at every scale, and every committed record passes its own check."""

from pathlib import Path

import pytest

from remanence.experiments import SCALES, Scale
from remanence.experiments.results import parse_results
from remanence_recipes import RECIPES

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_makes_differently_named_cells(name: str, scale: Scale) -> None:
    labels = [cell.label for cell in RECIPES[name](scale)]
    assert labels
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_committed_record_is_one(path: Path) -> None:
    records = parse_results(path.read_text(encoding="utf-8"), where=path.name)
    small = path.stem.endswith("-small")
    assert {record.scale for record in records} == {"small" if small else "full"}
    assert {record.recipe for record in records} <= set(RECIPES)
    for claim in (claim for record in records for claim in record.claims):
        assert (claim.holds is None) == (small or claim.printed is None)
        assert (claim.reached is None) == (small or claim.target is None)
