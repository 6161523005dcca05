"""The numbers of a result against numpy's on the same scores, and its words against what was run."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from made_result import LOST, PRIVATE, finite, made, made_completed
from refusals import refused
from scipy.stats import binomtest
from tiny_experiments import Guess, made_data, tiny_experiment, tiny_measurement, tiny_outcome
from torch import nn

from remanence import Reconstruction, evaluate
from remanence.attacks import GradientMatching, with_search
from remanence.experiments import Budget, Claim, Completed, Figure, Measure, Outcome, Point, Series, run_experiment
from remanence.experiments.results import AttackSummary, dump_results, parse_results
from remanence.experiments.summary import as_pixels, images, rows
from remanence.metrics import MSE, PSNR, Interval, Metric, hungarian
from remanence.metrics.limit import Limit
from remanence.releases import gradient_at_initial
from remanence.releases.defenses import Clipping, Sign


def attack_of(completed: Completed) -> AttackSummary:
    """The attack of the result, after a walk through JSON."""
    result = made(completed)
    (parsed,) = parse_results(dump_results([result]), where="here")
    assert parsed == result
    assert parsed.attack is not None
    return parsed.attack


def test_a_result_says_what_was_run(completed: Completed) -> None:
    result = made(completed)
    assert (result.recipe, result.scale, result.seed, result.label) == ("made.up", "smoke", 7, "made")
    assert (result.command, result.seconds, result.kind) == ("remanence run made.up", 1.235, "attack")
    assert eval(attack_of(completed).call, {"Guess": Guess}) == Guess(grey=0.25)
    assert (result.hardware.torch, result.hardware.threads) == (torch.__version__, torch.get_num_threads())
    assert result.caveats == completed.outcome.caveats
    assert "unmatched-records" in {caveat.code for caveat in result.caveats}


def test_what_the_attacker_saw_is_described(completed: Completed) -> None:
    release = attack_of(completed).release
    assert (release.kind, release.records) == ("WeightsOnly", PRIVATE)
    assert release.withholds == "every training record, the initial weights and the training recipe"
    assert (release.data, release.owned) == ("made", "7 records of made, each 1x4x4")
    assert release.shows == {
        "model": "Flatten, Linear 16x3, ELU, Linear 3x2",
        "final": f"{16 * 3 + 3 + 3 * 2 + 2} numbers in 4 tensors",
        "shape": "1x4x4",
        "bounds": "0 to 1",
        "num_classes": "2",
    }


@pytest.mark.slow
def test_a_convolution_and_the_defenses_of_a_gradient_are_described() -> None:
    def net(_: object) -> nn.Module:
        with torch.device("meta"):
            return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ELU(), nn.Flatten(), nn.Linear(8, 2))

    shown = []
    for reveal in (gradient_at_initial, partial(gradient_at_initial, defenses=(Clipping(norm=1.0), Sign()))):
        attack = with_search(GradientMatching(), steps=2, restarts=1)
        shown.append(attack_of(run_experiment(tiny_experiment(reveal=reveal, attack=attack, per_victim=4, model=net))))
    assert [each.release.shows["defenses"] for each in shown] == ["none", "Clipping(norm=1.0), Sign()"]
    assert shown[0].release.shows["model"] == "Conv2d 3x3x1x2, ELU, Flatten, Linear 8x2"


def test_the_counts(completed: Completed) -> None:
    scores = attack_of(completed).scores
    assert (scores.records, scores.candidates, scores.unmatched) == (PRIVATE, PRIVATE - LOST, LOST)
    found = scores.found
    assert PRIVATE // 2 <= found.count == int(completed.finding.scores.found.sum()) < PRIVATE
    assert found.fraction.low < found.fraction.value == found.count / PRIVATE < found.fraction.high
    assert scores.test is not None
    assert scores.test.p == completed.finding.scores.test.together
    assert sum(scores.test.by.values()) == found.count
    assert scores.test.false == pytest.approx(0.05 * int(completed.finding.scores.test.listed.sum()))


@pytest.mark.parametrize("metric", [MSE, PSNR])
def test_the_numbers_of_a_metric(completed: Completed, metric: Metric) -> None:
    summary = attack_of(completed).scores.metrics[metric.name]
    values = finite(completed.finding.scores.values[metric.name])
    assert len(values) == PRIVATE - LOST - 1
    assert summary.mean == pytest.approx(values.mean(), rel=1e-5)
    assert [summary.p10, summary.median, summary.p90] == pytest.approx(np.percentile(values, [10, 50, 90]), rel=1e-5)
    assert (summary.low or 0.0) < values.mean() < (summary.high or 0.0)
    assert summary.higher_is_better is (metric is PSNR)


@pytest.mark.parametrize("null", ["held_out", "unrelated", "noise", "mean_image", "nearest_neighbour"])
def test_the_numbers_of_a_null(completed: Completed, null: str) -> None:
    summary, scored = getattr(attack_of(completed).nulls, null), completed.finding.scores.nulls[null]
    assert (summary.meaning, summary.count) == (scored.meaning, len(scored.values["mse"]))
    for metric, at in ((MSE, 1), (PSNR, 99)):
        values, level = finite(scored.values[metric.name]), summary.metrics[metric.name]
        assert level.mean == pytest.approx(values.mean(), rel=1e-5)
        assert level.at_1_percent == pytest.approx(np.percentile(values, at), rel=1e-5)


def test_the_first_metric_is_counted_in_the_histogram(completed: Completed) -> None:
    scores, summary = completed.finding.scores, attack_of(completed).scores
    assert summary.primary == "mse"
    nulls = {name: scores.nulls[name].values for name in ("held_out", "unrelated")}
    groups = {name: finite(values["mse"]) for name, values in {"records": scores.values, **nulls}.items()}
    pooled, edges = np.concatenate(list(groups.values())), summary.histogram.edges
    assert edges == pytest.approx(np.linspace(pooled.min(), pooled.max(), len(edges)))
    for name, values in groups.items():
        counts = np.array(getattr(summary.histogram, name))
        expected = np.histogram(values, bins=len(edges) - 1, range=(pooled.min(), pooled.max()))[0]
        assert counts.sum() == expected.sum()
        assert np.abs(counts - expected).max() <= 1  # a score on an edge


def test_the_curve_is_that_of_the_scores(completed: Completed) -> None:
    curve, scores = attack_of(completed).scores.roc, completed.finding.scores
    assert curve.fpr == pytest.approx(scores.test.roc.fpr, rel=1e-3)
    assert curve.tpr == pytest.approx(scores.test.roc.tpr, rel=1e-3)
    assert curve.tpr[-1] == 1.0
    assert scores.test.held_out < 999
    assert curve.tpr_at_01_percent is None  # fewer than 999 held-out records cannot show it


def test_the_records_closer_than_their_neighbours_are_counted(completed: Completed) -> None:
    scores = completed.finding.scores
    neighbour = scores.nulls["nearest_neighbour"].values["mse"].numpy()
    closer = [bool(ours < theirs) for ours, theirs in zip(scores.values["mse"].numpy(), neighbour, strict=True)]
    summary = attack_of(completed).scores.closer
    assert PRIVATE // 2 <= summary.count == sum(closer) < PRIVATE
    exact = binomtest(sum(closer), PRIVATE).proportion_ci(0.95, "exact")
    assert (summary.fraction.low, summary.fraction.high) == pytest.approx((exact.low, exact.high))
    assert [row["closer"] == "yes" for row in rows(completed)] == closer


def test_labels_and_objective_where_the_attack_gave_them(completed: Completed) -> None:
    scores = attack_of(completed).scores
    assert (scores.labels, scores.objective) == (None, None)
    data = made_data(200)
    truth, others = data.take(slice(0, 20)), data.take(slice(20, 200))
    guess = Reconstruction(x=truth.x, y=torch.zeros(20, dtype=torch.int64), objective=0.5)  # half are of class 0
    labelled = made_completed(truth, others, guess.x)
    scored = evaluate(guess, truth, unrelated=others, matching=hungarian, metrics=(MSE,))
    finding = replace(labelled.finding, reconstruction=guess, scores=scored)
    scores = attack_of(replace(labelled, outcome=Outcome(finding=finding))).scores
    assert (scores.labels.accuracy.value, scores.labels.chance, scores.objective) == (0.5, 0.5, 0.5)


def test_a_result_has_its_point_its_budget_and_what_privacy_allows(completed: Completed) -> None:
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
    point, budget = Point(axis="epsilon", value=2.0, log=True), Budget(epochs=(20_000, 1_000_000))
    experiment = replace(completed.experiment, point=point, budget=budget)
    outcome = Outcome(finding=replace(completed.finding, limit=limit))
    placed = replace(completed, experiment=experiment, outcome=outcome)
    assert attack_of(placed).limit == limit
    assert (made(placed).point, made(placed).budget) == (point, budget)
    assert budget.fractions() == {"epochs": 0.02}
    with refused("out-of-range", "epochs"):
        Budget(epochs=(1, 0))


def test_there_is_a_row_for_each_record(completed: Completed) -> None:
    made_rows, scores = rows(completed), completed.finding.scores
    assert [row["record"] for row in made_rows] == [str(i) for i in range(PRIVATE)]
    assert [row["label"] for row in made_rows] == [str(i % 2) for i in range(PRIVATE)]
    assert sum(row["found"] == "yes" for row in made_rows) == attack_of(completed).scores.found.count
    for i, row in enumerate(made_rows):
        assert row["candidate"] == ("" if scores.index[i] < 0 else str(int(scores.index[i])))
        value = float(scores.values["mse"][i])
        assert row["mse"] == "" if np.isnan(value) else float(row["mse"]) == pytest.approx(value, rel=1e-5)
    unmatched = [row for row in made_rows if not row["candidate"]]
    assert len(unmatched) == LOST
    assert {row["mse"] for row in unmatched} == {""}
    assert [float(row["p"]) for row in made_rows] == pytest.approx(scores.test.p.tolist(), rel=1e-3)


def test_the_pictures_are_in_the_order_of_the_rows(completed: Completed) -> None:
    shown, truth = images(completed), completed.finding.truth.x
    assert shown.keys() == {"truth", "reconstruction", "lookalike"}
    for picture in shown.values():
        assert (picture.dtype, picture.shape) == (torch.uint8, truth.shape)
    assert torch.equal(shown["truth"], (truth * 255).round().to(torch.uint8))
    assert torch.equal(shown["reconstruction"][: PRIVATE // 2], shown["truth"][: PRIVATE // 2])
    for i, row in enumerate(rows(completed)):
        if not row["mse"]:  # unmatched, or broken
            assert not shown["reconstruction"][i].any()


def test_an_attack_that_returns_nothing_gives_a_result() -> None:
    data, none = made_data(200), torch.zeros(0, 1, 4, 4)
    nothing = made_completed(data.take(slice(0, 20)), data.take(slice(20, 200)), none, metrics=(MSE,))
    scores = attack_of(nothing).scores
    assert (scores.unmatched, scores.metrics["mse"].mean) == (20, None)
    assert not images(nothing)["reconstruction"].any()
    assert {row["candidate"] for row in rows(nothing)} == {""}


def test_pixels_are_clamped_and_rows_of_tables_stay() -> None:
    pixels = as_pixels(torch.tensor([-1.0, 0.0, 0.2, 1.0, 7.0]).reshape(1, 1, 1, 5))
    assert pixels.flatten().tolist() == [0, 0, 51, 255, 255]
    assert torch.equal(as_pixels(torch.tensor([[0.5, 0.123]], dtype=torch.double)), torch.tensor([[0.5, 0.123]]))


def test_a_measurement_says_what_it_measured() -> None:
    claim = Claim(quantity="mean grey", higher_is_better=True, target=0.1, where="ours")
    completed = run_experiment(tiny_measurement(claims=(claim,)), seed=5)
    result, outcome = made(completed, scale="full"), tiny_outcome(5, torch.device("cpu"))
    assert (result.kind, result.label, result.about) == ("measurement", "a measurement", "How grey pictures are.")
    (measure,) = result.measures
    assert measure.value == pytest.approx(outcome.measures[0].value, rel=1e-5)
    assert (measure.low, measure.high, measure.chance) == (0.0, 1.0, 0.5)
    assert result.figures[0].series[0].x == (0, 1)
    assert (result.claims[0].measured, result.claims[0].reached) == (measure.value, True)
    assert rows(completed) == []
    assert images(completed).keys() == {"greys"}


def test_values_that_are_not_finite_become_gaps() -> None:
    nan = float("nan")
    series = Series(name="a", x=(0, 1), y=(1.0, nan), low=(nan, 0.0), high=(2.0, float("inf")))
    figures = (Figure(title="t", x_label="x", y_label="y", series=(series,)),)
    outcome = Outcome(measures=(Measure(name="m", value=nan, meaning="Nothing."),), figures=figures)
    result = made(run_experiment(tiny_measurement(run=lambda seed, device: outcome)))
    assert parse_results(dump_results([result]), where="here") == [result]
    (written,) = result.figures[0].series
    assert (written.y, written.low, written.high) == ((1.0, None), (None, 0.0), (2.0, None))
    assert result.measures[0].value is None


BAD_FIGURES: dict[str, tuple[Callable[[], object], str]] = {
    "unequal lengths": (lambda: Series(name="a", x=(1, 2), y=(1.0,)), "shape-mismatch"),
    "half an interval": (lambda: Series(name="a", x=(1,), y=(1.0,), low=(0.0,)), "shape-mismatch"),
    "mixed x": (lambda: Series(name="a", x=(1, "b"), y=(1.0, 2.0)), "wrong-type"),
    "infinite x": (lambda: Series(name="a", x=(float("inf"),), y=(1.0,)), "wrong-type"),
    "a role": (lambda: Series(name="a", x=(1,), y=(1.0,), role="our"), "unknown-name"),
    "a kind": (lambda: Figure(title="t", x_label="", y_label="", series=(), kind="bar"), "unknown-name"),
    "texts on a line": (
        lambda: Figure(title="t", x_label="", y_label="", series=(Series(name="a", x=("b",), y=(1.0,)),)),
        "wrong-type",
    ),
    "pictures": (lambda: Outcome(pictures={"p": torch.zeros(3, 4)}), "shape-mismatch"),
    "an axis": (lambda: Point(axis="epsilon", value=float("inf")), "out-of-range"),
    "a logarithmic axis": (lambda: Point(axis="epsilon", value=0.0, log=True), "out-of-range"),
}


@pytest.mark.parametrize("case", BAD_FIGURES)
def test_a_figure_that_cannot_be_rendered_is_refused(case: str) -> None:
    make, code = BAD_FIGURES[case]
    with refused(code):
        make()
