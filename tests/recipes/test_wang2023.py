"""Wang et al. 2023 and our studies of their setting at smoke scale: the recipes run, and show what they should."""

import pytest
from smoke import measures, results

from remanence_recipes import RECIPES

pytestmark = pytest.mark.slow
NAMES = [name for name in RECIPES if name.startswith(("wang2023.", "ablations.stein", "ablations.gradient"))]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_from_its_experiments_to_the_page(name: str) -> None:
    assert list(results(name)) == [experiment.label for experiment in RECIPES[name]("smoke")]


def test_the_exact_span_is_closer_than_the_moments_and_the_refinement_exact() -> None:
    found = measures(results("wang2023.figure2")["planted pairs"])
    for activation in ("x²+x³", "tanh"):
        paper, span, refined = (found[f"{name}, {activation}, d = 10"] for name in ("rows", "exact span", "refined"))
        assert refined < 1e-9 < span < paper < 0.2
    assert found["rows, tanh, d = 10"] < found["rows, tanh, a = ones, d = 10"] < 0.3
    assert found["labels recovered, refined, x²+x³"] == 1
    assert found["rows, x²+x³, d = 10"] < found["head, x²+x³, d = 10"] < 0.5


def test_the_error_falls_with_the_root_of_the_rows_and_noise_changes_its_constant_only() -> None:
    for result in results("wang2023.rates").values():
        assert 0.25 < measures(result)["exponent"] < 0.75
    for result in results("wang2023.noise").values():
        found = measures(result)
        assert 1.5 * found["constant, noise 0"] < found["constant, noise 3"]
        assert all(abs(found[f"exponent, noise {level}"] - 0.5) < 0.25 for level in (0, 3))


def test_linear_and_quadratic_activations_leave_what_the_paper_predicts() -> None:
    found = measures(results("wang2023.linear_caveat")["what remains"])
    assert found["rank of the gradient, linear"] == 1
    assert found["rank of the gradient, quadratic"] == 3
    assert found["records outside the span, quadratic"] < 1e-12
    assert found["other vectors, same gradient of the first layer"] < 1e-12


def test_the_record_whose_label_is_expected_is_lost_without_a_bias_on_the_output() -> None:
    found = measures(results("wang2023.output_bias")["labels"])
    assert found["label 1, no bias"] > 0.3  # its residual is zero but for the draw of few rows
    assert all(found[name] < 0.3 for name in ("label 1, bias 30", "label -1, bias 30", "label -1, no bias"))


def test_six_activations_are_inverted_by_the_moment_they_leave_and_two_are_refused() -> None:
    error, hermite = results("wang2023.activations").values()
    found = measures(error) | measures(hermite)
    for name, order in (("x²+x³", 3), ("tanh", 3), ("sigmoid", 3), ("ReLU", 4), ("leaky ReLU", 4), ("ELU", 3)):
        assert found[f"{name}, order"] == order
        assert found[f"{name}, refined"] < 1e-9 < found[f"{name}, exact span"] < 0.2
    assert found["linear, ways refused"] == found["quadratic, ways refused"] == 3


def test_the_error_does_not_grow_with_depth() -> None:
    found = measures(results("wang2023.depth")["planted pairs"])
    for name in ("ReLU", "leaky ReLU", "tanh"):
        assert found[f"{name}, refined, 4 layers"] < 1e-9
        assert found[f"{name}, exact span, 4 layers"] < 2 * found[f"{name}, exact span, 2 layers"]


def test_images_are_found_and_refined_ones_are_exact() -> None:
    for label, result in results("wang2023.figure3_mnist").items():
        assert "paper" in label or result.attack.scores.found.count == result.attack.scores.records
        assert "refined" not in label or result.attack.scores.metrics["mse"].mean < 1e-15
    for result in results("wang2023.cifar10").values():
        assert result.attack.scores.found.fraction.value > 0.8


def test_clipping_hides_nothing_and_the_other_defenses_do_at_a_cost_in_accuracy() -> None:
    found = {label: measures(result) for label, result in results("ablations.gradient_defenses").items()}
    for attack in ("Stein", "gradient matching"):
        error = f"error, {attack}, "
        assert found["clipping"][f"{error}norm 0.1"] == pytest.approx(found["clipping"][f"{error}norm 10"], abs=1e-3)
        assert 2 * found["Gaussian noise"][f"{error}noise 0.01"] < found["Gaussian noise"][f"{error}noise 3"]
        assert 2 * found["top-k"][f"{error}share 1"] < found["top-k"][f"{error}share 0.01"]
        assert 2 * found["few bits"][f"{error}8 bits"] < found["few bits"][f"{error}sign"]
    noise, larger = found["Gaussian noise"], found["larger batches"]
    assert noise["accuracy, noise 3"] < noise["accuracy, noise 0.01"] - 0.1
    assert 2 * larger["error, gradient matching, batch of 1"] < larger["error, gradient matching, batch of 32"]
    assert larger["accuracy, batch of 1"] < larger["accuracy, batch of 32"]
    assert "error, Stein, batch of 32" not in larger


def test_trained_weights_stop_gradient_matching_and_not_the_tensor() -> None:
    found = results("ablations.gradient_query_point")
    assert measures(found["accuracy"])["accuracy after 10 epochs"] > 0.8
    assert all(found[f"{epochs} epochs, refined"].attack.scores.found.count == 4 for epochs in (0, 10))
    matched = [found[f"{epochs} epochs, gradient matching"].attack.scores.found.count for epochs in (0, 10)]
    assert matched[1] < matched[0] == 4


def test_words_are_reconstructed_behind_a_table_that_is_not_sent() -> None:
    result = results("ablations.stein_embeddings")["words in their order"]
    found = measures(result)
    assert all(found[f"{name}, refined, batches of {size}"] == 1 for name in ("tanh", "ReLU") for size in (1, 2))
    assert found["words that the table's own gradient names"] == 1
    assert all(measure.chance < 0.2 for measure in result.measures)


def test_batches_are_found_whose_condition_number_is_small() -> None:
    found = results("ablations.stein_batch_size")
    assert all(found[f"digits, tanh, batches of {size}"].attack.scores.found.count == 4 for size in (1, 4))
    conditions = measures(found["condition of the batches"])
    assert conditions["digits, batches of 1"] == pytest.approx(1)
    assert conditions["digits, batches of 4"] > 1.5
