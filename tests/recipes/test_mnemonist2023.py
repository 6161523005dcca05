"""Every recipe of the paper at smoke scale, from its cells to the page, and what each must show even there."""

from dataclasses import replace

import pytest
import torch
from smoke import measures, results
from torch import nn

from remanence.attacks import FittedRecoNN, RecoNN
from remanence.shadow import ShadowBank
from remanence.shadow.rows import unstack_weights
from remanence_recipes import RECIPES
from remanence_recipes.mnemonist2023.rates import Found, _apart
from remanence_recipes.mnemonist2023.setting import Readings, runs

NAMES = [name for name in RECIPES if name.startswith("mnemonist2023.")]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_from_its_cells_to_the_page(name: str) -> None:
    assert list(results(name)) == [cell.label for cell in RECIPES[name]("smoke")]


@pytest.mark.parametrize("name", NAMES)
def test_every_record_says_that_the_victims_rate_was_chosen_by_the_truth(name: str) -> None:
    for record in results(name).values():
        assert "tuned-on-truth" in {caveat.code for caveat in record.caveats}


def test_all_readings_of_a_run_see_the_same_releases() -> None:
    made = results("mnemonist2023.table3")
    errors = {label: r.attack.scores.metrics["mae+mse"].mean for label, r in made.items()}
    for place in (1, 2):
        readings = [r for label, r in made.items() if label.startswith(f"run {place}")]
        assert len(readings) == 3
        assert all(r.attack.release == readings[0].attack.release and "mean_image" in r.attack.nulls for r in readings)
        assert errors[f"run {place}, RecoNN"] != errors[f"run {place}, Mnemonist-RecoNN"]
    assert errors["run 1, RecoNN"] != errors["run 2, RecoNN"]  # other first weights


def test_a_gain_is_that_of_the_errors_it_stands_beside() -> None:
    (record,) = results("mnemonist2023.figure1_initialisations").values()
    (figure,), found = record.figures, measures(record)
    lines = {series.name: series.y for series in figure.series}
    pairs = zip(lines["RecoNN, ReLU"], lines["Mnemonist-RecoNN, ReLU"], strict=True)
    gains = [1 - after / before for before, after in pairs]
    assert found["gain of Mnemonist-RecoNN"] == pytest.approx(sum(gains) / len(gains), abs=1e-5)
    assert found["starts in which it gains"] == sum(gain > 0 for gain in gains) / len(gains)
    assert lines["RecoNN, ReLU"] == sorted(lines["RecoNN, ReLU"])
    assert len(set(lines["mean image"])) == 1


def test_a_gain_at_a_rate_is_that_of_the_errors_it_stands_beside() -> None:
    record = results("mnemonist2023.rates")["rate 0.1"]
    gains, errors = ({s.name: s.y for s in figure.series} for figure in record.figures)
    found = measures(record)
    for end in ("", ", no floor"):
        for name in (f"Mnemonist-RecoNN{end}", f"all rows, later layers dropped{end}"):
            pairs = zip(errors[f"RecoNN{end}"], errors[name], strict=True)
            assert sorted(gains[name]) == pytest.approx(sorted(1 - after / before for before, after in pairs), abs=1e-4)
            assert found[f"gain of {name}"] == pytest.approx(sum(gains[name]) / 2, abs=1e-4)
        assert found[f"RecoNN{end}"] == pytest.approx(sum(errors[f"RecoNN{end}"]) / 2, abs=1e-4)
        wins = sum(gain > 0 for gain in gains[f"Mnemonist-RecoNN{end}"])
        assert found[f"starts in which Mnemonist-RecoNN{end} gains"] == wins / 2
    chosen, drawn = (
        errors[f"{rows}, later layers dropped, no floor"] for rows in ("Mnemonist-RecoNN", "as many rows drawn")
    )
    over = [1 - after / before for after, before in zip(chosen, drawn, strict=True)]
    assert found["gain of chosen rows over drawn ones"] == pytest.approx(sum(over) / 2, abs=1e-4)


@pytest.mark.slow
def test_a_floor_that_hides_nothing_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fits, fit = [], RecoNN.fit

    def watched(self: RecoNN, bank: ShadowBank, *, seed: int) -> FittedRecoNN:
        fits.append((self, bank.weights.shape, seed))
        return fit(self, bank, seed=seed)

    monkeypatch.setattr(RecoNN, "fit", watched)
    for hidden, floors in ((0.0, 1), (0.5, 2)):
        fits.clear()
        found = Found()
        (run,) = runs("smoke", nn.ReLU, 1, 0, torch.device("cpu"), lr=0.1)
        monkeypatch.setattr("remanence_recipes.mnemonist2023.rates._hidden", lambda run, share=hidden: share)
        found.add(run)
        same = torch.equal(found.errors["RecoNN"][0], found.errors["RecoNN, no floor"][0])
        assert same is (floors == 1)
        assert len({attack.features.min_std_ratio for attack, *_ in fits}) == floors
        # the judged reader, RecoNN, Mnemonist's two and all rows; drawn, quiet and RecoNN again without the floor
        assert len(fits) <= 5 * floors + 3


@pytest.mark.slow
def test_twins_stay_together_in_a_calm_training_and_not_in_a_chaotic_one() -> None:
    apart = []
    for lr in (0.1, 0.3):
        (run,) = runs("smoke", nn.ReLU, 1, 0, torch.device("cpu"), lr=lr)
        apart.append(_apart(replace(run, training=replace(run.training, epochs=60))))
    calm, chaotic = apart
    assert calm < 1e-3
    assert chaotic > 0.01


def test_quiet_rows_are_those_that_the_shadows_agree_about() -> None:
    (run,) = runs("smoke", nn.ReLU, 1, 0, torch.device("cpu"), lr=0.1)
    rows, spread = Readings.of(run).quietest(3).tolist(), []
    for row in range(10):
        name = next(name for name in run.initial if name.endswith("weight"))
        weights = torch.stack([unstack_weights(run.model, each)[name][row] for each in run.bank.weights])
        spread.append(float(weights.std(0).median()))
    assert (
        sorted(rows, key=spread.__getitem__)
        == sorted((row for row in range(10) if spread[row] > 0), key=spread.__getitem__)[:3]
    )


def test_every_row_stores_every_record_with_a_sigmoid_and_some_do_with_a_relu() -> None:
    made = results("mnemonist2023.figure5_storage")
    relu, sigmoid = made["ReLU"], made["sigmoid"]
    assert measures(sigmoid)["rows that store a record, step 1"] == 10
    assert 0 < measures(relu)["rows that store a record, step 1"] < 10
    histogram = relu.figures[0].series[0]
    mean = sum(int(rows) * share for rows, share in zip(histogram.x, histogram.y, strict=True))
    assert mean == pytest.approx(measures(relu)["rows that store a record, step 1"], rel=1e-4)


def test_the_surrogate_of_all_masks_is_drawn_with_every_row_and_every_mask() -> None:
    (record,) = results("mnemonist2023.figure7_importance").values()
    figures = {figure.title: figure.series[0] for figure in record.figures}
    assert len(figures["Importance"]["y"]) == len(figures["Storage"]["y"]) == 10
    assert len(figures["Every mask"]["y"]) == 1024
    assert figures["Rows kept"]["x"] == list(range(11))
    whole, none = figures["Rows kept"]["y"][-1], figures["Rows kept"]["y"][0]
    assert whole < none  # a reader misses rows that are put back
    assert 0 < measures(record)["linear surrogate, R²"] <= 1
