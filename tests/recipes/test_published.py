"""KKT at the published length, at smoke scale."""

import pytest
import torch
from smoke import measures, results

from remanence_recipes.buzaglo2023.published import DIGITS, SQUARED, TEN, TWO, sample_runs
from remanence_recipes.buzaglo2023.published_scores import ALL, BY_AUTHORS, OBJECTIVE, OTHERS, PUBLISHED, ROWS, ranks_of


@pytest.mark.slow
def test_published_runs_at_smoke_scale() -> None:
    made = results("buzaglo2023.published")
    assert list(made) == [TWO, TEN, f"{TWO}, victim 2", f"{TEN}, victim 2", DIGITS, SQUARED]
    first, second = measures(made[TWO]), measures(made[f"{TWO}, victim 2"])
    for name in (PUBLISHED, OBJECTIVE, BY_AUTHORS, ALL):
        assert 0 <= first[f"share within rank 1 %, {name}"] <= 1
        assert 0 <= first[f"{OTHERS}, {name}"] <= 1
    assert first[f"best SSIM, {ALL}"] > 0
    assert f"share found, {OBJECTIVE}" not in second  # the second victim has the published runs alone
    squared = measures(made[SQUARED])
    assert squared[f"best SSIM, {ROWS}"] == first[f"best SSIM, {ROWS}"]  # of the same victim
    assert squared[f"best SSIM, {PUBLISHED}"] != first[f"best SSIM, {PUBLISHED}"]
    assert -1 <= first[f"SSIM against the margin, {PUBLISHED}"] <= 1
    budget = made[TWO].budget
    assert budget is not None
    assert budget.fractions() == {"epochs": 0.001, "iterations": 0.002, "restarts": 0.05, "records": 0.04}
    assert "tuned-on-truth" in {caveat.code for caveat in made[TWO].caveats}


def test_drawn_runs_lie_in_the_authors_ranges() -> None:
    for kind in (TWO, TEN):
        runs = sample_runs(200, 3, kind)
        assert all(1e-5 <= run.lr <= 1 and 1e-6 <= run.init_std <= 0.1 for run in runs)
        assert all(0.01 <= run.min_multiplier <= 0.5 and 10 <= run.alpha <= 500 for run in runs)
        assert len({run.multiplier_lr for run in runs}) == (200 if kind == TEN else 1)


def test_ranks_are_within_the_class() -> None:
    private, held_out = torch.tensor([0.9, 0.2]), torch.arange(200) / 200  # of classes 0 and 1 in turn
    labels = torch.cat([torch.tensor([0, 1]), torch.arange(200) % 2])
    found = ranks_of(torch.cat([private, held_out]), labels, 2, seed=0)
    above = [int((held_out[label::2] >= private[label]).sum()) for label in (0, 1)]
    assert found.records.tolist() == [(1 + count) / 101 for count in above]
