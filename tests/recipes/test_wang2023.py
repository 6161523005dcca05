"""Every recipe of the paper at smoke scale, from its cells to the page, and what each must show even there."""

import pytest
from smoke import measures, results

from remanence_recipes import RECIPES

NAMES = [name for name in RECIPES if name.startswith("wang2023.")]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_from_its_cells_to_the_page(name: str) -> None:
    assert list(results(name)) == [cell.label for cell in RECIPES[name]("smoke")]


def test_the_exact_span_is_closer_than_the_moments_and_the_refinement_exact() -> None:
    (record,) = results("wang2023.figure2").values()
    found = measures(record)
    for activation in ("x²+x³", "tanh"):
        paper, span, refined = (found[f"{way}, {activation}, d = 10"] for way in ("rows", "exact span", "refined"))
        assert refined < 1e-9 < span < paper < 0.2
    assert found["rows, x²+x³, d = 10"] < found["head, x²+x³, d = 10"] < 0.5


def test_the_error_falls_with_the_root_of_the_rows() -> None:
    for record in results("wang2023.rates").values():
        (slope,) = [each for each in record.measures if each.name == "slope"]
        assert 0.25 < slope["low"] < slope["value"] < slope["high"] < 0.75


def test_noise_changes_the_constant_of_the_error_and_not_its_slope() -> None:
    for record in results("wang2023.noise").values():
        found = measures(record)
        assert 1.5 * found["constant, noise 0"] < found["constant, noise 3"]
        slopes = [each for each in record.measures if each.name.startswith("slope")]
        assert len(slopes) == 2
        assert all(abs(each.value - 0.5) < 0.2 for each in slopes)  # of six draws, and two numbers of rows


def test_clipping_hides_nothing_and_the_other_defences_do() -> None:
    found = {label: measures(record) for label, record in results("wang2023.defenses").items()}
    for attack in ("Stein", "gradient matching"):
        error = f"error, {attack}, "
        assert found["clipping"][f"{error}norm 0.1"] == pytest.approx(found["clipping"][f"{error}norm 10"], abs=1e-3)
        assert 2 * found["Gaussian noise"][f"{error}noise 0.01"] < found["Gaussian noise"][f"{error}noise 3"]
        assert 2 * found["top-k"][f"{error}share 1"] < found["top-k"][f"{error}share 0.01"]
        assert 2 * found["few bits"][f"{error}8 bits"] < found["few bits"][f"{error}sign"]
    larger = found["larger batches"]
    assert 2 * larger["error, gradient matching, batch of 1"] < larger["error, gradient matching, batch of 32"]
    assert "error, Stein, batch of 32" not in larger


def test_a_strong_defence_costs_accuracy_and_a_larger_batch_gains_it() -> None:
    made = results("wang2023.defenses")
    noise, larger = measures(made["Gaussian noise"]), measures(made["larger batches"])
    (chance,) = {each.chance for each in made["Gaussian noise"].measures if "accuracy" in each.name}
    assert chance < noise["accuracy, noise 3"] < noise["accuracy, noise 0.01"] - 0.1
    assert larger["accuracy, batch of 1"] < larger["accuracy, batch of 32"]


def test_of_linear_and_quadratic_activations_only_what_is_predicted_can_be_read() -> None:
    (record,) = results("wang2023.linear_caveat").values()
    found = measures(record)
    assert found["rank of the gradient, linear"] == 1
    assert found["rank of the gradient, quadratic"] == 3
    assert found["records outside the span, quadratic"] < 1e-12
    assert found["other vectors, same gradient of the first layer"] < 1e-12


def test_images_are_found_and_refined_ones_are_exact() -> None:
    for label, record in results("wang2023.figure3_mnist").items():
        if "paper" not in label:
            assert record.attack.scores.found.count == record.attack.scores.records
        if "refined" in label:
            assert record.attack.scores.metrics["mse"].mean < 1e-15
    for record in results("wang2023.cifar10").values():
        assert record.attack.scores.found.fraction.value > 0.8


def test_the_activations_leave_the_moments_of_the_methods_table_and_two_are_refused() -> None:
    record, hermite = results("wang2023.activations").values()
    found = measures(record) | measures(hermite)
    for name, order in (("x²+x³", 3), ("tanh", 3), ("sigmoid", 3), ("ReLU", 4), ("leaky ReLU", 4), ("ELU", 3)):
        assert found[f"{name}, order"] == order
        assert found[f"{name}, refined"] < 1e-9 < found[f"{name}, exact span"] < 0.2
    said = {measure.name: measure.meaning for measure in record.measures}
    assert found["linear, ways refused"] == found["quadratic, ways refused"] == 3
    assert "only one combination of the batch" in said["linear, ways refused"]
    assert "only the span of the batch" in said["quadratic, ways refused"]


def test_deeper_nets_are_read_as_well() -> None:
    (record,) = results("wang2023.depth").values()
    found = measures(record)
    for name in ("ReLU", "leaky ReLU", "tanh"):
        assert found[f"{name}, refined, 4 layers"] < 1e-9
        assert found[f"{name}, exact span, 4 layers"] < 2 * found[f"{name}, exact span, 2 layers"]


def test_trained_weights_stop_gradient_matching_and_not_the_tensor() -> None:
    by_label = results("wang2023.query_point")
    assert measures(by_label["accuracy"])["accuracy after 10 epochs"] > 0.8
    assert all(by_label[f"{epochs} epochs, refined"].attack.scores.found.count == 4 for epochs in (0, 10))
    matched = [by_label[f"{epochs} epochs, gradient matching"].attack.scores.found.count for epochs in (0, 10)]
    assert matched[1] < matched[0] == 4


def test_words_are_read_behind_a_table_that_is_not_sent() -> None:
    (record,) = results("wang2023.embeddings").values()
    found = measures(record)
    assert all(found[f"{name}, refined, batches of {size}"] == 1 for name in ("tanh", "ReLU") for size in (1, 2))
    assert found["words that the table's own gradient names"] == 1
    assert all(measure.chance < 0.2 for measure in record.measures if measure.chance is not None)


def test_larger_batches_are_read_beside_their_condition() -> None:
    by_label = results("wang2023.limits")
    for size in (1, 4):
        assert by_label[f"digits, tanh, batches of {size}"].attack.scores.found.count == 4
    found = measures(by_label["condition of the batches"])
    assert found["digits, batches of 1"] == pytest.approx(1)
    assert found["digits, batches of 4"] > 1.5
