"""The recipes of Tian et al. at smoke scale, and what each must show even there."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from smoke import measures, results

from remanence.attacks import Linearised, SimuDy, with_search
from remanence.experiments import prepare, run_experiment
from remanence.models import initial_params
from remanence.search import solver
from remanence.shadow import Store
from remanence_recipes import RECIPES
from remanence_recipes.tian2025.linearity import MAX_IMAGES, NON_LINEAR, PRETRAINING
from remanence_recipes.tian2025.mlps import (
    DIGITS,
    RATES,
    TRAINING,
    image_split,
    rate_measures,
    sampled_rate,
)
from remanence_recipes.tian2025.resnets import NETS, curriculum, pretrain, scaling, shorter_trainings, with_new_head
from remanence_recipes.tian2025.unknowns import FACTORS

NAMES = [name for name in RECIPES if name.startswith("tian2025.")]
SSIM = "normalised_ssim"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_from_its_experiments_to_the_page(name: str) -> None:
    assert list(results(name)) == [experiment.label for experiment in RECIPES[name]("smoke")]


@pytest.mark.parametrize("name", NAMES)
def test_searches_state_what_they_spend_of_the_iterations_of_the_authors_code(name: str) -> None:
    for experiment in RECIPES[name]("full"):
        assert experiment.attack is None or experiment.budget
        assert experiment.budget is None or experiment.budget.fractions()["iterations"] <= 1


@pytest.mark.parametrize(
    ("name", "records", "clip", "tf32"), [("mlp_published", 100, None, False), ("resnet_published", 20, 10.0, True)]
)
def test_as_published_is_the_authors_search_at_their_length_in_their_units(
    name: str, records: int, clip: float | None, tf32: bool
) -> None:
    (experiment,) = RECIPES[f"tian2025.{name}"]("full")
    attack, published = experiment.attack, SimuDy.paper(candidates=records)
    assert isinstance(attack, SimuDy)
    assert (attack.whitening, attack.surrogate, attack.start, attack.search.scales) == (None, None, None, 0)
    assert (attack.distance, attack.prior, attack.labels) == (published.distance, published.prior, None)
    assert (attack.search.steps, attack.search.schedule) == (30_000, published.search.schedule)
    assert attack.simulation.training == replace(TRAINING, epochs=8)
    assert (attack.simulation.clip, attack.search.tf32) == (clip, tf32)  # clipped where the simulation may diverge
    (small,) = RECIPES[f"tian2025.{name}"]("smoke")
    assert small.victims
    low, high = prepare(small.victims, seed=0).cases[0].release.bounds
    assert (low + high) / 2 == 0.5
    assert attack.search.optimizer.lr * (high - low) == pytest.approx(0.01 * 0.2)  # of normalised pixels, of std 0.2
    assert attack.init_std * (high - low) == pytest.approx(0.5 * 0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "margin"), [("tian2025.mlp_100", 0.1), ("tian2025.mlp_500", 0.3)])
def test_digits_are_reconstructed_better_than_look_alikes(name: str, margin: float) -> None:
    for result in results(name).values():
        unrelated = result.attack.nulls.unrelated.metrics[SSIM].mean
        assert result.attack.scores.metrics[SSIM].mean > unrelated + margin


@pytest.mark.slow
def test_digits_are_reconstructed_where_the_batch_size_is_preset() -> None:
    found = {measure.name: measure for measure in results("tian2025.unknown_batch_size")["batch size"].measures}
    known, preset = found["mean SSIM, batch size known"], found["mean SSIM, full batch preset"]
    assert preset.value > 2 * preset.chance
    assert preset.value != known.value


@pytest.mark.slow
@pytest.mark.parametrize(("name", "searches"), [("unknown_batch_size", 8), ("unknown_size", 1)])
def test_searches_of_evaluations_are_resumed(
    name: str, searches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (experiment,) = RECIPES[f"tian2025.{name}"]("smoke")
    experiment = replace(experiment, attack=with_search(experiment.attack, steps=10))
    first = run_experiment(experiment, seed=3, store=Store(folder=tmp_path))
    assert len(list(tmp_path.glob("search-*"))) == searches
    monkeypatch.setattr(solver.Stack, "step", None)  # no step is left to be taken
    again = run_experiment(experiment, seed=3, store=Store(folder=tmp_path))
    assert again.outcome.measures == first.outcome.measures


@pytest.mark.slow
def test_every_learning_rate_of_the_grid_is_simulated() -> None:
    (result,) = results("tian2025.resnet_learning_rate").values()
    values = [measure.value for measure in result.measures]
    assert len(set(values)) == len(FACTORS)
    assert list(result.figures[0].series[0].y) == pytest.approx(values, abs=1e-4)


@pytest.mark.slow
def test_of_any_classes_more_is_reconstructed_where_labels_are_optimised_too() -> None:
    balanced, optimised = (result.attack.scores for result in results("tian2025.unknown_labels").values())
    assert optimised.objective < 0.5 * balanced.objective
    assert optimised.metrics[SSIM].mean > balanced.metrics[SSIM].mean + 0.1


def test_private_records_have_as_many_of_each_class_and_follow_the_seed() -> None:
    one, other = (image_split("smoke", 20, seed, public=100) for seed in (0, 1))
    assert one.private.y.bincount().tolist() == [2] * 10
    assert len(one.public) == 100
    assert not torch.equal(one.private.x, other.private.x)


@pytest.mark.slow
def test_wider_networks_are_more_linear() -> None:
    found = measures(results("tian2025.table_linearity")["linearity"])
    assert 0 < found["MLP 16"] < found["MLP 64"] < 1


@pytest.mark.slow
def test_a_grid_of_pretrainings_says_how_linear_and_how_stable_fine_tuning_is_under_either_head() -> None:
    rows = {label: measures(result) for label, result in results("tian2025.linearity_grid").items()}
    for row in rows.values():
        assert len(row) == 2 * 2 * 2  # epochs, heads, indices and losses
        assert all(value >= 1 if name.endswith("largest loss") else value < 1 for name, value in row.items())
    short, long = (rows["pre-trained on 400 images"][f"{epochs} epochs, head kept"] for epochs in (3, 10))
    assert long < short  # the longer it was pre-trained, the sharper the loss of new records


def test_a_grid_at_full_scale_leaves_out_what_takes_minutes_alone() -> None:
    sizes, lengths = PRETRAINING["full"]
    assert max(sizes) * max(lengths) > MAX_IMAGES >= max(sizes) * 20


def test_simudy_and_both_linear_theories_attack_the_same_non_linear_victim() -> None:
    experiments = RECIPES["tian2025.resnet_nonlinear"]("full")
    assert len({experiment.victims for experiment in experiments}) == 2 * len(NON_LINEAR["full"])  # 20 and 50 images
    for i in range(0, len(experiments), 3):
        three = experiments[i : i + 3]
        assert len({experiment.victims for experiment in three}) == 1
        attacks = [experiment.attack for experiment in three]
        assert [type(attack) for attack in attacks] == [SimuDy, Linearised, Linearised]
        assert [claim.printed for claim in three[0].claims][1] == 0.5988


def test_rates_are_sampled_from_all_of_the_grid_and_chance_is_that_of_a_sampled_answer() -> None:
    assert {sampled_rate(RATES["small"], 0, victim) for victim in range(100)} == set(RATES["small"])
    grid = (0.0025, 0.005, 0.01, 0.02, 0.04)
    rates, found = (0.0025, 0.01, 0.04, 0.01), (0.005, 0.01, 0.01, 0.0025)
    within, exact = rate_measures(grid, rates, found)
    assert (within.value, exact.value) == (0.5, 0.25)
    near = [sum(abs(i - grid.index(rate)) <= 1 for i in range(5)) for rate in rates]
    assert within.chance == pytest.approx(sum(near) / 20)
    assert exact.chance == pytest.approx(0.2)


@pytest.mark.slow
def test_candidates_that_no_record_needs_contribute_less() -> None:
    found = measures(results("tian2025.unknown_size")["number of records"])
    assert found["matched contribute more than unmatched"] > 0.7


def test_scaling_changes_one_thing_at_a_time() -> None:
    for scale in ("small", "full"):
        points = [(e.point.series, e.point.axis, e.point.value) for e in scaling(scale) if e.point]
        assert len(set(points)) == len(points)
        for series in ("MLP", "ResNet"):
            assert {axis for name, axis, _ in points if name == series} == {"images", "epochs", "width", "batch"}
    for experiment in scaling("smoke"):
        assert isinstance(experiment.attack, SimuDy)
        assert experiment.victims
        assert len(experiment.victims.split(0).private) == experiment.attack.candidates


def test_a_curriculum_simulates_short_trainings_first_and_the_victims_own_last() -> None:
    attack: SimuDy | None = curriculum(20, 400, shorter_trainings(TRAINING))
    simulated = []
    while attack:
        training = attack.simulation.training or TRAINING
        assert training.epochs * training.optimizer.lr == pytest.approx(TRAINING.epochs * TRAINING.optimizer.lr)
        simulated.append((training.epochs, attack.search.steps))
        attack = attack.start
    assert simulated == [(20, 10), (8, 133), (4, 400)]
    assert shorter_trainings(replace(TRAINING, epochs=4)) == []
    assert curriculum(20, 400, []).start is None


@pytest.mark.slow
def test_the_pretrained_network_has_learnt() -> None:
    (measure,) = results("tian2025.resnet_20")["the start"].measures
    assert measure.value > measure.chance


def test_pretraining_is_deterministic_and_a_new_head_changes_nothing_else() -> None:
    public = image_split("smoke", 10, 0, public=100).public
    model = NETS["smoke"].build(public)
    initial, state = DIGITS.standardised(initial_params(model, seed=0)), torch.get_rng_state()
    one, again = (pretrain(model, initial, public, epochs=1, seed=0) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(p, again[name]) for name, p in one.items())
    assert {name for name, p in one.items() if torch.equal(p, initial[name])} == {"0.mean", "0.std"}
    new = with_new_head(DIGITS, model, one, seed=0)
    changed = {name for name, p in new.items() if not torch.equal(p, one[name])}
    assert changed == {name for name, _ in list(model.named_parameters())[-2:]}
