"""Every recipe of the paper at smoke scale, from its experiments to the page, and what each must show even there."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from smoke import measures, results

from remanence.attacks import Mnemonist, RecoNN
from remanence.experiments import prepare
from remanence.seeds import derive_seed
from remanence.shadow.rows import unstack_weights
from remanence_recipes import RECIPES
from remanence_recipes.ablations.mnemonist import twin_distance
from remanence_recipes.mnemonist2023.setting import RECONSTRUCTORS, RowStudy, victims

RECONN = RECONSTRUCTORS["smoke"]
MNEMONIST = Mnemonist(reconstructor=RECONN, reset_to="initial")
NAMES = [name for name in RECIPES if name.startswith(("mnemonist2023.", "ablations.mnemonist_"))]


def study(*, lr: float, epochs: int = 20) -> RowStudy:
    usual = victims("smoke", lr=lr)
    changed = replace(usual, training=replace(usual.training, epochs=epochs))
    return RowStudy(victims=prepare(changed, seed=0), reconstructor=RECONSTRUCTORS["smoke"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_and_says_that_the_victims_rate_was_chosen_by_the_truth(name: str) -> None:
    made = results(name)
    assert list(made) == [experiment.label for experiment in RECIPES[name]("smoke")]
    for result in made.values():
        assert "tuned-on-truth" in {caveat.code for caveat in result.caveats}


@pytest.mark.slow
def test_attacks_of_a_run_get_the_same_releases() -> None:
    made = results("mnemonist2023.table3")
    errors = {label: r.attack.scores.metrics["mae+mse"].mean for label, r in made.items()}
    for run in ("run 1", "run 2"):
        attacks = [r.attack for label, r in made.items() if label.startswith(run)]
        assert len(attacks) == 3
        assert all(attack.release == attacks[0].release for attack in attacks)
        assert errors[f"{run}, RecoNN"] != errors[f"{run}, Mnemonist-RecoNN"]
    assert errors["run 1, RecoNN"] != errors["run 2, RecoNN"]  # other initial weights


def attack_errors(attack: RecoNN | Mnemonist) -> list[float]:
    """MAE + MSE of the attack itself, run on the victims of each initialisation, by numpy."""
    errors = []
    for i in range(2):
        made = prepare(victims("smoke", initialisation=i), seed=0)
        fitted = attack.fit(made.bank, seed=derive_seed(0, "selected") if isinstance(attack, RecoNN) else 0)
        found = torch.cat([fitted.run(case.release, seed=0).x for case in made.cases])
        off = (found - made.split.private.x).numpy()
        errors.append(float(np.abs(off).mean() + (off**2).mean()))
    return errors


@pytest.mark.slow
def test_a_gain_is_that_of_the_errors_in_its_figure() -> None:
    (result,) = results("mnemonist2023.figure1_initialisations").values()
    lines, found = {series.name: series.y for series in result.figures[0].series}, measures(result)
    pairs = zip(lines["RecoNN, ReLU"], lines["Mnemonist-RecoNN, ReLU"], strict=True)
    gains = [1 - after / before for before, after in pairs]
    errors = sorted(zip(*(attack_errors(attack) for attack in (RECONN, MNEMONIST)), strict=True))
    assert list(zip(lines["RecoNN, ReLU"], lines["Mnemonist-RecoNN, ReLU"], strict=True)) == [
        pytest.approx(pair, rel=1e-3) for pair in errors
    ]
    assert found["gain of Mnemonist-RecoNN"] == pytest.approx(sum(gains) / len(gains), abs=1e-5)
    assert found["starts in which it gains"] == sum(gain > 0 for gain in gains) / len(gains)
    assert list(lines["RecoNN, ReLU"]) == sorted(lines["RecoNN, ReLU"])
    assert len(set(lines["mean image"])) == 1


@pytest.mark.slow
def test_the_range_of_the_errors_is_that_of_the_figure_and_sigmoid_reads_single_targets_better() -> None:
    (result,) = results("mnemonist2023.figure1_initialisations").values()
    errors, found = result.figures[0].series[0].y, measures(result)
    assert found["smallest error, RecoNN, ReLU"] == pytest.approx(min(errors), abs=1e-4)
    assert found["largest error, RecoNN, ReLU"] == pytest.approx(max(errors), abs=1e-4)
    (result,) = results("mnemonist2023.figure2_activations").values()
    found = measures(result)
    assert found["error, ReLU"] == pytest.approx(attack_errors(RECONN)[0], rel=1e-3)
    assert (found["targets read better with sigmoid"] > 0.5) == (found["error, sigmoid"] < found["error, ReLU"])


@pytest.mark.slow
def test_a_table_of_more_shadow_models_differs_in_their_number_alone() -> None:
    usual, more = (RECIPES[f"mnemonist2023.{name}"]("full") for name in ("table3", "table3_shadows"))
    assert [each.label for each in usual] == [each.label for each in more]
    assert {each.budget.fractions()["shadows"] for each in usual if each.budget} == {0.5}
    assert all("shadows" not in each.budget.fractions() or each.budget.fractions()["shadows"] == 1 for each in more)


@pytest.mark.slow
def test_gains_at_a_rate_are_those_of_the_errors_in_its_figure() -> None:
    result = results("ablations.mnemonist_rates")["rate 0.1"]
    gains, errors = ({series.name: series.y for series in figure.series} for figure in result.figures)
    found = measures(result)
    for floor in ("", ", no floor"):
        for name in (f"Mnemonist-RecoNN{floor}", f"all rows, later layers dropped{floor}"):
            pairs = zip(errors[f"RecoNN{floor}"], errors[name], strict=True)
            assert sorted(gains[name]) == pytest.approx(sorted(1 - after / before for before, after in pairs), abs=1e-4)
            assert found[f"gain of {name}"] == pytest.approx(sum(gains[name]) / 2, abs=1e-4)
        assert found[f"RecoNN{floor}"] == pytest.approx(sum(errors[f"RecoNN{floor}"]) / 2, abs=1e-4)
    if not found["hidden weights"]:  # a floor that hides nothing changes nothing
        assert found["RecoNN"] == found["RecoNN, no floor"]


@pytest.mark.slow
def test_gains_of_both_readings_are_those_of_the_errors_in_their_figures() -> None:
    for result in results("ablations.mnemonist_readings").values():
        errors = {series.name: series.y for series in result.figures[0].series}
        found = measures(result)
        pairs = zip(errors["RecoNN"], errors["Mnemonist-RecoNN"], strict=True)
        ratios = [1 - after / before for before, after in pairs]
        assert found["gain of Mnemonist-RecoNN"] == pytest.approx(sum(ratios) / len(ratios), abs=1e-4)
        wins = sum(ratio > 0 for ratio in ratios) / len(ratios)
        assert found["starts in which Mnemonist-RecoNN gains"] == pytest.approx(wins)


@pytest.mark.slow
def test_twins_stay_close_in_a_stable_training_and_not_in_a_chaotic_one() -> None:
    assert twin_distance(study(lr=0.1, epochs=60)) < 1e-3
    assert twin_distance(study(lr=0.3, epochs=60)) > 0.01


def test_stable_rows_vary_least_over_the_shadow_models() -> None:
    rows = study(lr=0.1)
    bank, model = rows.victims.bank, rows.victims.model
    name = next(name for name in rows.victims.initial if name.endswith("weight"))
    weights = torch.stack([unstack_weights(model, each)[name] for each in bank.weights])
    std = weights.std(0).median(1).values
    order = [row for row in std.argsort().tolist() if std[row] > 0]
    assert rows.stable_rows(3).tolist() == sorted(order[:3])


def test_every_row_stores_every_record_with_a_sigmoid_and_some_do_with_a_relu() -> None:
    made, name = results("mnemonist2023.figure5_storage"), "rows that store a record, step 1"
    relu = measures(made["ReLU"])[name]
    assert measures(made["sigmoid"])[name] == 10
    assert 0 < relu < 10
    histogram = made["ReLU"].figures[0].series[0]
    mean = sum(int(rows) * fraction for rows, fraction in zip(histogram.x, histogram.y, strict=True))
    assert mean == pytest.approx(relu, rel=1e-4)


@pytest.mark.slow
def test_importance_has_every_row_and_every_mask() -> None:
    (result,) = results("mnemonist2023.figure7_importance").values()
    figures = {figure.title: figure.series[0] for figure in result.figures}
    assert len(figures["Importance"].y) == len(figures["Storage"].y) == 10
    assert len(figures["Every mask"].y) == 1024
    assert list(figures["Rows kept"].x) == list(range(11))
    assert figures["Rows kept"].y[-1] < figures["Rows kept"].y[0]  # the error rises as rows are reset
    assert 0 < measures(result)["linear surrogate, R²"] <= 1
