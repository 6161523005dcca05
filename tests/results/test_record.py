"""The numbers of a record against numpy's on the same scores, and its words against what was run."""

import json
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from made_result import LOST, PRIVATE, finite, made, made_result
from scipy.stats import binomtest
from tiny_experiments import Guess, made_data, tiny_experiment
from torch import nn

from remanence import Reconstruction, evaluate
from remanence.attacks import GradientMatching, with_search
from remanence.experiments import Completed, Outcome, Point, run_experiment
from remanence.experiments.results import as_pixels, images, parse_records, rows
from remanence.metrics import MSE, PSNR, Interval, Metric, hungarian
from remanence.metrics.limit import Limit
from remanence.releases import gradient_at_initial
from remanence.releases.defenses import Clipping, GaussianNoise

MODULE = sys.modules["remanence.experiments.results.record"]  # by attribute one gets the function of that name


def test_a_record_says_what_was_run(result: Completed) -> None:
    said = made(result)
    assert {name: said[name] for name in ("recipe", "scale", "seed", "command", "cell", "matching", "seconds")} == {  # type: ignore[literal-required]
        "recipe": "made.up",
        "scale": "smoke",
        "seed": 7,
        "command": "remanence run made.up",
        "cell": "made",
        "matching": "hungarian",
        "seconds": 1.235,
    }
    assert eval(said["attack"], {"Guess": Guess}) == Guess(grey=0.25)
    assert said["hardware"]["torch"] == torch.__version__
    assert said["hardware"]["threads"] == torch.get_num_threads()
    assert [caveat["code"] for caveat in said["caveats"]] == [caveat.code for caveat in result.outcome.caveats]
    assert "unmatched-records" in {caveat["code"] for caveat in said["caveats"]}


def test_a_record_is_json_that_passes_its_own_check(result: Completed) -> None:
    said = made(result)
    assert parse_records(json.dumps([said], allow_nan=False), where="here") == [said]


def test_what_the_attacker_saw_is_in_words(result: Completed) -> None:
    release = made(result)["release"]
    assert (release["kind"], release["records"]) == ("WeightsOnly", PRIVATE)
    assert release["withholds"] == "every training record, the initial weights and the training recipe"
    assert (release["data"], release["owned"]) == ("made", "7 records of made, each 1x4x4")
    parameters = 16 * 3 + 3 + 3 * 2 + 2
    assert release["shows"] == {
        "model": "Flatten, Linear 16x3, ELU, Linear 3x2",
        "final": f"{parameters} numbers in 4 tensors",
        "shape": "1x4x4",
        "num_classes": "2",
    }


def test_a_convolution_is_in_words() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 4), nn.ELU())
    assert MODULE._in_words(model) == "Conv2d 4x4x3x16, ELU"
    assert MODULE._in_words(made_data(1200)) == "1,200 records of made, each 1x4x4"


def test_the_counts(result: Completed) -> None:
    scores = made(result)["scores"]
    assert (scores["records"], scores["candidates"], scores["unmatched"]) == (PRIVATE, PRIVATE - LOST, LOST)
    found = result.finding.scores.found
    assert PRIVATE // 2 <= scores["found"]["count"] == int(found.sum()) < PRIVATE
    assert scores["found"]["share"] == scores["found"]["count"] / PRIVATE
    assert scores["found"]["low"] < scores["found"]["share"] < scores["found"]["high"]
    assert scores["found"]["fpr"] == 0.01


@pytest.mark.parametrize("metric", [MSE, PSNR])
def test_the_numbers_of_a_metric(result: Completed, metric: Metric) -> None:
    said, values = made(result)["scores"]["metrics"][metric.name], finite(result.finding.scores.values[metric.name])
    assert len(values) == PRIVATE - LOST - 1
    assert said["mean"] == pytest.approx(values.mean(), rel=1e-5)
    assert [said["p10"], said["median"], said["p90"]] == pytest.approx(np.percentile(values, [10, 50, 90]), rel=1e-5)
    assert said["low"] < said["mean"] < said["high"]
    assert said["higher_is_better"] is (metric is PSNR)


@pytest.mark.parametrize("null", ["held_out", "unrelated", "noise", "mean_image", "nearest_neighbour"])
def test_the_numbers_of_a_null(result: Completed, null: str) -> None:
    said, scored = made(result)["nulls"][null], result.finding.scores.nulls[null]
    assert said["meaning"] == scored.meaning
    assert said["count"] == len(scored.values["mse"])
    for metric, at in ((MSE, 1), (PSNR, 99)):
        values = finite(scored.values[metric.name])
        assert said["metrics"][metric.name]["mean"] == pytest.approx(values.mean(), rel=1e-5)
        level = said["metrics"][metric.name]["at_1_percent"]
        assert level == pytest.approx(np.percentile(values, at), rel=1e-5)


def test_the_first_metric_is_counted_in_the_histogram(result: Completed) -> None:
    scores, said = result.finding.scores, made(result)["scores"]
    assert said["primary"] == "mse"
    groups = {"records": scores.values, "held_out": scores.nulls["held_out"].values}
    groups["unrelated"] = scores.nulls["unrelated"].values
    pooled = np.concatenate([finite(values["mse"]) for values in groups.values()])
    edges = said["histogram"]["edges"]
    assert edges == pytest.approx(np.linspace(pooled.min(), pooled.max(), len(edges)))
    for name, values in groups.items():
        expected = np.histogram(finite(values["mse"]), bins=len(edges) - 1, range=(pooled.min(), pooled.max()))[0]
        assert sum(said["histogram"][name]) == expected.sum()
        assert np.abs(np.array(said["histogram"][name]) - expected).max() <= 1  # a score on an edge


def test_the_curve_is_that_of_the_scores(result: Completed) -> None:
    said, scores = made(result)["scores"]["roc"], result.finding.scores
    assert said["fpr"] == pytest.approx(scores.roc.fpr, rel=1e-3)
    assert said["tpr"] == pytest.approx(scores.roc.tpr, rel=1e-3)
    p = scores.p_held_out.numpy()
    assert said["tpr_at_1_percent"] == (p <= 0.01).mean()
    assert scores.nulls["held_out"].distinct < 999
    assert said["tpr_at_0.1_percent"] is None  # fewer than 999 different comparisons cannot show it


def test_the_records_closer_than_their_neighbours_are_counted(result: Completed) -> None:
    scores = result.finding.scores
    neighbour = scores.nulls["nearest_neighbour"].values["mse"].numpy()
    closer = [bool(ours < theirs) for ours, theirs in zip(scores.values["mse"].numpy(), neighbour, strict=True)]
    said = made(result)["scores"]["closer"]
    assert PRIVATE // 2 <= said["count"] == sum(closer) < PRIVATE
    exact = binomtest(sum(closer), PRIVATE).proportion_ci(0.95, "exact")
    assert (said["share"], said["low"], said["high"]) == pytest.approx((sum(closer) / PRIVATE, exact.low, exact.high))
    assert [row["closer"] == "yes" for row in rows(result)] == closer


def test_labels_and_objective_are_told_where_the_attack_gave_them(result: Completed) -> None:
    said = made(result)["scores"]
    assert (said["labels"], said["objective"]) == (None, None)
    data = made_data(200)
    truth = data.take(slice(0, 20))
    guess = Reconstruction(x=truth.x, y=torch.zeros(20, dtype=torch.int64), objective=0.5)  # half are of class 0
    told = made_result(truth, data.take(slice(20, 200)), guess.x)
    finding = replace(told.finding, reconstruction=guess)
    scores = evaluate(guess, truth, unrelated=data.take(slice(20, 200)), matching=hungarian, metrics=(MSE,))
    said = made(replace(told, outcome=replace(told.outcome, finding=replace(finding, scores=scores))))["scores"]
    assert (said["labels"]["share"], said["labels"]["chance"], said["objective"]) == (0.5, 0.5, 0.5)
    assert said["labels"]["low"] < 0.5 < said["labels"]["high"]


def test_a_cell_says_where_it_stands_and_what_privacy_allows(result: Completed) -> None:
    said = made(result)
    assert (said["point"], said["limit"]) == (None, None)
    limit = Limit(
        mu=1.0,
        epsilon=2.0,
        delta=1e-5,
        metric="mse",
        threshold=0.01,
        prior=0.02,
        bound=0.3,
        success=Interval(value=0.1, low=0.05, high=0.2),
    )
    placed = replace(result.experiment, point=Point(axis="epsilon", value=2.0, log=True))
    said = made(replace(result, experiment=placed, outcome=Outcome(finding=replace(result.finding, limit=limit))))
    assert said["point"] == {"axis": "epsilon", "value": 2.0, "series": "", "log": True}
    assert said["limit"] == {
        "mu": 1.0,
        "epsilon": 2.0,
        "delta": 1e-5,
        "metric": "mse",
        "threshold": 0.01,
        "prior": 0.02,
        "bound": 0.3,
        "success": {"value": 0.1, "low": 0.05, "high": 0.2},
    }
    assert parse_records(json.dumps([said], allow_nan=False), where="here") == [said]


def test_there_is_a_row_for_each_record(result: Completed) -> None:
    told, scores = rows(result), result.finding.scores
    assert [row["record"] for row in told] == [str(i) for i in range(PRIVATE)]
    assert [row["label"] for row in told] == [str(i % 2) for i in range(PRIVATE)]
    assert sum(row["found"] == "yes" for row in told) == made(result)["scores"]["found"]["count"]
    for i, row in enumerate(told):
        assert row["candidate"] == ("" if scores.index[i] < 0 else str(int(scores.index[i])))
        value = float(scores.values["mse"][i])
        assert row["mse"] == "" if np.isnan(value) else float(row["mse"]) == pytest.approx(value, rel=1e-5)
    exact = [row["candidate"] for row in told[: PRIVATE // 2]]
    assert exact == [str(PRIVATE - 1 - LOST - i) for i in range(PRIVATE // 2)]
    unmatched = [row for row in told if not row["candidate"]]
    assert len(unmatched) == LOST
    assert {(row["mse"], row["found"], row["p_held_out"]) for row in unmatched} == {("", "no", "1")}


def test_the_pictures_are_in_the_order_of_the_rows(result: Completed) -> None:
    shown, truth = images(result), result.finding.truth.x
    assert shown.keys() == {"truth", "reconstruction", "lookalike"}
    for picture in shown.values():
        assert (picture.dtype, picture.shape) == (torch.uint8, truth.shape)
    assert torch.equal(shown["truth"], (truth * 255).round().to(torch.uint8))
    assert torch.equal(shown["reconstruction"][: PRIVATE // 2], shown["truth"][: PRIVATE // 2])
    for i, row in enumerate(rows(result)):
        if not row["mse"]:  # unmatched, or broken
            assert not shown["reconstruction"][i].any()


def test_an_attack_that_returns_nothing_gives_a_record(result: Completed) -> None:
    data = made_data(200)
    nothing = made_result(data.take(slice(0, 20)), data.take(slice(20, 200)), torch.zeros(0, 1, 4, 4), metrics=(MSE,))
    said = made(nothing)
    assert parse_records(json.dumps([said], allow_nan=False), where="here") == [said]
    assert (said["scores"]["unmatched"], said["scores"]["metrics"]["mse"]["mean"]) == (20, None)
    assert not images(nothing)["reconstruction"].any()
    assert {row["candidate"] for row in rows(nothing)} == {""}


def test_pixels_are_clamped_and_rows_of_tables_kept() -> None:
    assert as_pixels(torch.tensor([-1.0, 0.0, 0.2, 1.0, 7.0]).reshape(1, 1, 1, 5)).flatten().tolist() == [
        0,
        0,
        51,
        255,
        255,
    ]
    assert torch.equal(as_pixels(torch.tensor([[0.5, 0.123]], dtype=torch.double)), torch.tensor([[0.5, 0.123]]))


def test_a_record_states_the_defences_of_a_gradient() -> None:
    attack = with_search(GradientMatching(), steps=2, restarts=1)
    defenses = (Clipping(norm=1.0), GaussianNoise(relative_std=0.1))
    said = []
    for reveal in (gradient_at_initial, partial(gradient_at_initial, defenses=defenses)):
        result = run_experiment(tiny_experiment(reveal=reveal, attack=attack, per_victim=4))
        said.append(made(result)["release"]["shows"])
    assert [each["defenses"] for each in said] == ["none", "Clipping(norm=1.0), GaussianNoise(relative_std=0.1)"]
    assert said[0]["shape"] == "1x4x4"
