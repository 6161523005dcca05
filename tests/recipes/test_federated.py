"""The federated studies at smoke scale: the recipes run, and show what they should."""

import pytest
from smoke import measures, results

from remanence_recipes import RECIPES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("federated.")])
def test_a_recipe_runs_from_its_experiments_to_the_page(name: str) -> None:
    assert list(results(name)) == [experiment.label for experiment in RECIPES[name]("smoke")]


def test_batches_at_fresh_weights_are_reconstructed_exactly() -> None:
    for label, result in results("federated.first_layer").items():
        if "fresh" in label:
            assert result.attack.scores.found.fraction.value == 1
            assert result.attack.scores.metrics["mse"].mean < 1e-9


def test_simulating_the_local_steps_reconstructs_more_than_ignoring_them() -> None:
    simulated, ignored = (r.attack.scores.metrics["mse"].mean for r in results("federated.local_steps").values())
    assert simulated < 0.5 * ignored


def test_gradient_matching_sharpens_the_estimate_of_the_tensor() -> None:
    (result,) = results("federated.from_the_tensor").values()
    found = measures(result)
    assert found["rms error, sharpened"] < 0.5 * found["rms error, estimate"]


def test_labels_are_inferred_at_fresh_weights_and_always_for_one_record() -> None:
    found = {label: measures(result) for label, result in results("federated.labels").items()}
    assert all(each["labels right by noise, batches of 1"] == 1 for each in found.values())
    assert found["after 0 epochs"]["labels right by public records, batches of 8"] == 1
