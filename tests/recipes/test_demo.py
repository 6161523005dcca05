"""What the demo and an audit say of where their attacks' settings come from."""

from functools import partial

import pytest

from remanence.data import load
from remanence_recipes.demo import audit_cells

BATCH, CHOSEN, INFORMED = (
    "gradient of a batch",
    "gradient of a batch, at weights that the server chose",
    "all records but one",
)


@pytest.mark.parametrize(
    ("named", "looked_at"),
    [("digits", {BATCH, INFORMED}), ("cifar10", {CHOSEN}), ("patients.csv", set()), (None, set())],
)
def test_a_cell_says_whether_its_attack_was_tuned_on_the_truth_of_this_data(
    named: str | None, looked_at: set[str]
) -> None:
    cells = audit_cells(partial(load, "digits"), named=named)
    assert {cell.label for cell in cells if cell.tuned_on_truth} == looked_at
