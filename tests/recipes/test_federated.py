"""Every recipe at smoke scale, from its cells to the page, and what each must show even there."""

import pytest
from smoke import measures, results

from remanence_recipes import RECIPES

NAMES = [name for name in RECIPES if name.startswith("federated.")]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_from_its_cells_to_the_page(name: str) -> None:
    assert list(results(name)) == [cell.label for cell in RECIPES[name]("smoke")]


def test_batches_of_fresh_weights_come_back_exactly() -> None:
    for label, record in results("federated.first_layer").items():
        if "fresh" in label:
            assert record.attack.scores.found.fraction.value == 1
            assert record.attack.scores.metrics["mse"].mean < 1e-9


def test_simulating_the_local_steps_reads_more_than_ignoring_them() -> None:
    simulated, ignored = (r.attack.scores.metrics["mse"].mean for r in results("federated.local_steps").values())
    assert simulated < 0.5 * ignored


def test_the_estimate_is_sharpened() -> None:
    (record,) = results("federated.from_the_tensor").values()
    found = measures(record)
    assert found["rms error, sharpened"] < 0.5 * found["rms error, estimate"]


def test_labels_are_read_at_fresh_weights_and_always_for_one_record() -> None:
    for record in results("federated.labels").values():
        assert measures(record)["labels right by noise, batches of 1"] == 1
    fresh = measures(results("federated.labels")["after 0 epochs"])
    assert fresh["labels right by public records, batches of 8"] == 1
