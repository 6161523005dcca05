"""Every recipe at smoke scale, from its cells to the page, and what each must show even there."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from smoke import measures, results

from remanence.attacks import SimuDy
from remanence.models import initial_params
from remanence_recipes import RECIPES
from remanence_recipes.tian2025.resnets import NETS, built, deep, leaping, pretrained, started, with_new_head
from remanence_recipes.tian2025.scaling import scaling
from remanence_recipes.tian2025.setting import DIGITS, PAPERS, cut
from remanence_recipes.tian2025.unknowns import RATES, drawn_rate, told

NAMES = [name for name in RECIPES if name.startswith("tian2025.")]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_from_its_cells_to_the_page(name: str) -> None:
    assert list(results(name)) == [cell.label for cell in RECIPES[name]("smoke")]


def test_digits_come_back_better_than_look_alikes() -> None:
    for record in results("tian2025.mlp_100").values():
        score, nulls = record.attack.scores.metrics["normalised_ssim"].mean, record.attack.nulls
        assert score > nulls.unrelated.metrics["normalised_ssim"].mean + 0.1


def test_digits_come_back_one_for_every_three_neurons() -> None:
    (record,) = results("tian2025.mlp_500").values()
    assert "whitening=Whitening(power=0.5)" in record.attack.call
    score, nulls = record.attack.scores.metrics["normalised_ssim"].mean, record.attack.nulls
    assert score > nulls.unrelated.metrics["normalised_ssim"].mean + 0.3


def test_of_any_classes_more_come_back_where_labels_are_moved_too() -> None:
    even, moved = (record.attack.scores for record in results("tian2025.unknown_labels").values())
    assert moved.objective < 0.5 * even.objective
    assert moved.metrics["normalised_ssim"].mean > even.metrics["normalised_ssim"].mean + 0.1


def test_private_records_have_as_many_of_each_class_and_follow_the_seed() -> None:
    one, other = (cut("smoke", 20, seed, public=100) for seed in (0, 1))
    assert one.private.y.bincount().tolist() == [2] * 10
    assert len(one.public) == 100
    assert not torch.equal(one.private.x, other.private.x)


def test_wider_nets_are_more_linear() -> None:
    found = measures(results("tian2025.table_linearity")["linearity"])
    assert 0 < found["MLP 16"] < found["MLP 64"] < 1


def test_victims_have_rates_of_the_whole_grid_and_chance_is_that_of_a_drawn_answer() -> None:
    assert {drawn_rate(RATES["small"], 0, place) for place in range(100)} == set(RATES["small"])
    grid = (0.0025, 0.005, 0.01, 0.02, 0.04)
    rates, found = (0.0025, 0.01, 0.04, 0.01), (0.005, 0.01, 0.01, 0.0025)
    within, exact = told(grid, rates, found)
    assert (within.value, exact.value) == (0.5, 0.25)
    near = [sum(abs(i - grid.index(rate)) <= 1 for i in range(5)) for rate in rates]
    assert within.chance == pytest.approx(sum(near) / 20)
    assert exact.chance == pytest.approx(0.2)


def test_candidates_that_no_record_needs_pull_less() -> None:
    found = measures(results("tian2025.unknown_size")["number of records"])
    assert found["matched pull more than unmatched"] > 0.7


def test_scaling_changes_one_thing_at_a_time() -> None:
    smoke, *larger = ([c for c in scaling(scale) if c.point] for scale in ("smoke", "small", "full"))
    for cells in larger:
        places = {(c.point.series, c.point.axis, c.point.value) for c in cells if c.point}
        assert len(places) == len(cells)
        for series in ("MLP", "ResNet"):
            assert {axis for name, axis, _ in places if name == series} == {"images", "epochs", "width", "batch"}
    for cell in smoke:
        assert isinstance(cell.attack, SimuDy)
        assert cell.victims
        assert len(cell.victims.split(0).private) == cell.attack.candidates


def test_deep_nets_are_simulated_in_short_first_and_in_full_at_last() -> None:
    chain: SimuDy | None = deep(20, 400, leaping(PAPERS))
    simulated = []
    while chain:
        training = chain.simulation.training or PAPERS
        assert training.epochs * training.optimizer.lr == pytest.approx(PAPERS.epochs * PAPERS.optimizer.lr)  # as far
        simulated.append((training.epochs, chain.search.steps))
        chain = chain.start
    assert simulated == [(20, 10), (8, 133), (4, 400)]
    assert leaping(replace(PAPERS, epochs=4)) == []
    assert deep(20, 400, []).start is None


def test_the_start_is_pretrained_on_other_images() -> None:
    (measure,) = results("tian2025.resnet_20")["the start"].measures
    assert measure.value > measure.chance
    parts = cut("smoke", 10, 0, public=100)
    model = built(NETS["smoke"])(parts.public)
    initial = DIGITS.shown(initial_params(model, seed=0))
    before = torch.get_rng_state()
    one, again = (pretrained(model, initial, parts.public, epochs=1, seed=0) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(p, again[name]) for name, p in one.items())
    kept = {name for name, p in one.items() if torch.equal(p, initial[name])}
    assert kept == {"0.mean", "0.std"}  # BatchNorm's statistics are those of the images


def test_a_new_head_changes_nothing_else() -> None:
    net, parts = NETS["smoke"], partial(cut, "smoke", 10, public=50)
    trained = started(replace(net, epochs=1), DIGITS, parts)
    old, new = trained(0), with_new_head(net, DIGITS, parts, trained)(0)
    changed = {name for name, p in new.items() if not torch.equal(p, old[name])}
    assert changed == {name for name, _ in list(built(net)(parts(0).public).named_parameters())[-2:]}
