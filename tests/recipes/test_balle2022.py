"""Every recipe of the paper at smoke scale, from its experiments to the page, and what each must show even there."""

from dataclasses import replace

import pytest
from smoke import measures, results

from remanence.experiments.results import Result
from remanence_recipes import RECIPES

NAMES = [name for name in RECIPES if name.startswith(("balle2022.", "ablations.reconn_"))]


def found(result: Result) -> int:
    count: int = result.attack.scores.found.count
    return count


def mse(result: Result) -> float:
    mean: float = result.attack.scores.metrics["mse"].mean
    return mean


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_from_its_experiments_to_the_page(name: str) -> None:
    assert list(results(name)) == [experiment.label for experiment in RECIPES[name]("smoke")]


@pytest.mark.slow
def test_gates_find_what_the_papers_reconstructor_does_not() -> None:
    ours, papers = results("balle2022.mnist").values()
    assert found(ours) >= 10 > found(papers)
    assert ours.claims[0].holds is None  # claims are checked at full scale only


@pytest.mark.slow
def test_the_notebooks_model_classifies_and_relu_victims_are_attacked_with_their_own_shadow_models() -> None:
    (accuracy,) = results("balle2022.notebook")["accuracy"].measures
    assert accuracy.value > 2 * accuracy.chance
    made = results("balle2022.cifar10")
    assert mse(made["ReLU, our reconstructor"]) != mse(made["our reconstructor"])
    assert mse(made["ReLU, the paper's reconstructor"]) != mse(made["the paper's reconstructor"])


@pytest.mark.slow
def test_without_the_initial_weights_nothing_is_found() -> None:
    made = results("balle2022.figure10_membership")
    auc, unknown = measures(made["membership"]), made["reconstruction, first weights unknown"]
    assert auc["AUC, common start"] > auc["AUC, each its own start"]
    assert found(unknown) == 0
    assert "initial" not in unknown.attack.release.shows


@pytest.mark.slow
def test_a_reconstructor_transfers_when_it_is_centred_on_one_model_of_the_new_fixed_set() -> None:
    found = measures(results("balle2022.figure11_transfer")["transfer"])
    assert found["re-centred, 0 shadows"] < 0.25 * found["as it is"]
    assert found["re-centred, 0 shadows"] < found["from nothing, 10 shadows"]


@pytest.mark.slow
def test_noise_raises_the_error_and_success_stays_under_the_limit_of_epsilon() -> None:
    made = results("balle2022.dp_mnist")
    assert made["no privacy"].attack.limit is None
    assert made["clipped, without noise"].attack.limit is None
    little, much = made["epsilon 100000"], made["epsilon 1000"]
    for result in (little, much):
        assert result.attack.limit.success.low <= result.attack.limit.bound
        assert "above-the-limit" not in {caveat.code for caveat in result.caveats}
    assert mse(much) > 2 * mse(little)
    assert little.attack.limit.epsilon == pytest.approx(1e5, rel=1e-3)
    accuracy = {label: measures(result)["test accuracy"] for label, result in made.items()}
    assert accuracy["no privacy"] > accuracy["epsilon 1000"] + 0.1


@pytest.mark.slow
def test_the_closed_form_finds_every_record() -> None:
    (result,) = results("balle2022.glm").values()
    assert found(result) == result.attack.scores.records
    assert mse(result) < 1e-4


def test_only_relu_has_weights_with_zero_gradients() -> None:
    zeros = {name: measures(result) for name, result in results("balle2022.figure16_zero_gradients").items()}
    assert len(zeros) == 4
    for name, found in zeros.items():
        both = [found[f"{layer}, learning rate 0.1"] for layer in ("first convolution", "second")]
        assert found["convolutions, learning rate 0.1"] == pytest.approx(sum(both) / 2)
        assert (sum(both) > 0.01) == name.startswith("ReLU")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["balle2022.figure13_gallery", "balle2022.figure13_cifar10"])
def test_the_error_is_correlated_with_properties_of_records_for_both_reconstructors(name: str) -> None:
    for result in results(name).values():
        found = {measure.name: measure for measure in result.measures}
        assert set(found) == {"error and total variation", "error and distance from the mean image"}
        assert all(-1 <= each.low <= each.value <= each.high <= 1 for each in found.values())


@pytest.mark.slow
def test_more_shadow_models_lower_the_error() -> None:
    few, many = results("ablations.reconn_shadows").values()
    assert mse(many) < mse(few)


def test_experiments_of_a_recipe_share_victims_where_only_the_attack_differs() -> None:
    for name in ("balle2022.mnist", "balle2022.cifar10", "balle2022.notebook", "ablations.reconn_settings"):
        attacked = [experiment for experiment in RECIPES[name]("full") if experiment.attack]
        activations = {experiment.label.startswith("ReLU, ") for experiment in attacked}
        assert len({experiment.victims for experiment in attacked}) == len(activations)


def test_each_activation_of_table_iii_has_one_bank_for_three_reconstructors() -> None:
    experiments = RECIPES["balle2022.table3"]("full")
    assert len({experiment.victims for experiment in experiments}) == 12
    for i in range(0, len(experiments), 3):
        ours, papers, optax = experiments[i : i + 3]
        assert ours.victims is papers.victims is optax.victims
        assert ours.claims[0].printed == papers.claims[0].printed == optax.claims[0].printed
        torch_rmsprop, optax_rmsprop = (each.attack.fitting.optimizer for each in (papers, optax))
        assert optax_rmsprop == replace(torch_rmsprop, eps_in_root=True) != torch_rmsprop


@pytest.mark.parametrize(("name", "shadows"), [("balle2022.mnist", 58 / 59), ("balle2022.cifar10", 700 / 54_000)])
def test_full_scale_states_the_fraction_of_the_papers_budget(name: str, shadows: float) -> None:
    for experiment in RECIPES[name]("full"):
        assert experiment.budget.fractions()["shadows"] == pytest.approx(shadows)
