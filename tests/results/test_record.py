"""The numbers of a record against numpy's on the same scores, and its words against what was run."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from tiny_cells import Guess, made_data, tiny_cell, tiny_outcome, tiny_study
from torch import Tensor, nn

from remanence import (
    Claim,
    Clipping,
    Data,
    Finding,
    GaussianNoise,
    GradientMatching,
    Reconstruction,
    evaluate,
    gradient_at_initial,
)
from remanence.checks import caveats
from remanence.errors import BadInput
from remanence.experiment import CellResult, Figure, Measure, Outcome, Point, Series, run_cell, run_study
from remanence.metrics import MSE, PSNR, Interval, Metric, Scores, hungarian
from remanence.metrics.limit import Limit
from remanence.results import Record, as_pixels, images, parse_records, record, rows

MODULE = sys.modules["remanence.results.record"]  # by attribute one gets the function of that name
PROVENANCE = sys.modules["remanence.results.provenance"]
PRIVATE = 40
LOST = 4  # withheld records that got no candidate


@pytest.fixture(scope="module")
def result() -> CellResult:
    """Reconstructions in reverse order: half exact, half worse and worse, four missing, one broken."""
    data = made_data(200)
    truth, unrelated = data.take(slice(0, PRIVATE)), data.take(slice(PRIVATE, 200))
    noise = torch.rand(truth.x.shape, generator=torch.Generator().manual_seed(1))
    share = torch.linspace(-1, 1, PRIVATE).clamp(min=0).reshape(-1, 1, 1, 1)
    x = ((1 - share) * truth.x + share * noise).flip(0)[LOST:]
    x[0] = torch.nan
    return made_result(truth, unrelated, x)


def made_result(truth: Data, unrelated: Data, x: Tensor, *, metrics: tuple[Metric, ...] = (MSE, PSNR)) -> CellResult:
    cell = tiny_cell("made")
    found = Reconstruction(x=x)
    finding = Finding(
        release=run_cell(cell).finding.release,
        attack=Guess(grey=0.25),
        public=unrelated.take(slice(0, 7)),
        truth=truth,
        reconstruction=found,
        scores=evaluate(found, truth, unrelated=unrelated, matching=hungarian, metrics=metrics),
        seconds=1.0,
    )
    doubts = tuple(caveats(finding))
    return CellResult(cell=cell, finding=finding, caveats=doubts, seconds=1.23456, device=torch.device("cpu"))


def made(result: CellResult, **changes: Any) -> Record:
    fields = {"recipe": "made.up", "scale": "smoke", "seed": 7, "command": "remanence run made.up"}
    return record(result, **(fields | changes))


def finite(values: Tensor) -> np.ndarray[Any, Any]:
    array = values.double().numpy()
    return array[np.isfinite(array)]


def test_a_record_says_what_was_run(result: CellResult) -> None:
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
    assert [caveat["code"] for caveat in said["caveats"]] == [caveat.code for caveat in result.caveats]
    assert "unmatched-records" in {caveat["code"] for caveat in said["caveats"]}


def test_a_record_is_json_that_passes_its_own_check(result: CellResult) -> None:
    said = made(result)
    assert parse_records(json.dumps([said], allow_nan=False), where="here") == [said]


def test_what_the_attacker_saw_is_in_words(result: CellResult) -> None:
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


def test_the_counts(result: CellResult) -> None:
    scores = made(result)["scores"]
    assert (scores["records"], scores["candidates"], scores["unmatched"]) == (PRIVATE, PRIVATE - LOST, LOST)
    found = result.finding.scores.found
    assert PRIVATE // 2 <= scores["found"]["count"] == int(found.sum()) < PRIVATE
    assert scores["found"]["share"] == scores["found"]["count"] / PRIVATE
    assert scores["found"]["low"] < scores["found"]["share"] < scores["found"]["high"]
    assert scores["found"]["fpr"] == 0.01


@pytest.mark.parametrize("metric", [MSE, PSNR])
def test_the_numbers_of_a_metric(result: CellResult, metric: Metric) -> None:
    said, values = made(result)["scores"]["metrics"][metric.name], finite(result.finding.scores.values[metric.name])
    assert len(values) == PRIVATE - LOST - 1
    assert said["mean"] == pytest.approx(values.mean(), rel=1e-5)
    assert [said["p10"], said["median"], said["p90"]] == pytest.approx(np.percentile(values, [10, 50, 90]), rel=1e-5)
    assert said["low"] < said["mean"] < said["high"]
    assert said["higher_is_better"] is (metric is PSNR)


@pytest.mark.parametrize("null", ["held_out", "unrelated", "noise", "mean_image", "nearest_neighbour"])
def test_the_numbers_of_a_null(result: CellResult, null: str) -> None:
    said, scored = made(result)["nulls"][null], result.finding.scores.nulls[null]
    assert said["meaning"] == scored.meaning
    assert said["count"] == len(scored.values["mse"])
    for metric, at in ((MSE, 1), (PSNR, 99)):
        values = finite(scored.values[metric.name])
        assert said["metrics"][metric.name]["mean"] == pytest.approx(values.mean(), rel=1e-5)
        level = said["metrics"][metric.name]["at_1_percent"]
        assert level == pytest.approx(np.percentile(values, at), rel=1e-5)


def test_the_first_metric_is_counted_in_the_histogram(result: CellResult) -> None:
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


def test_the_curve_is_that_of_the_scores(result: CellResult) -> None:
    said, scores = made(result)["scores"]["roc"], result.finding.scores
    assert said["fpr"] == pytest.approx(scores.roc.fpr, rel=1e-3)
    assert said["tpr"] == pytest.approx(scores.roc.tpr, rel=1e-3)
    p = scores.p_held_out.numpy()
    assert said["tpr_at_1_percent"] == (p <= 0.01).mean()
    assert scores.nulls["held_out"].distinct < 999
    assert said["tpr_at_0.1_percent"] is None  # fewer than 999 different comparisons cannot show it


@pytest.mark.parametrize(
    ("scale", "printed", "holds"),
    [("smoke", 9.0, None), ("small", 9.0, None), ("paper", 9.0, True), ("paper", 0.0, False)],
)
def test_a_claim_is_judged_at_the_scale_of_the_paper(
    result: CellResult, scale: str, printed: float, holds: bool | None
) -> None:
    cell = replace(result.cell, claims=(Claim.mean(MSE, printed=printed, where="table 2"),))
    said = made(replace(result, cell=cell), scale=scale)
    mean = said["scores"]["metrics"]["mse"]["mean"]
    (claim,) = said["claims"]
    assert claim == {
        "quantity": "mean mse",
        "printed": printed,
        "target": None,
        "where": "table 2",
        "measured": mean,
        "holds": holds,
        "reached": None,
    }


@pytest.mark.parametrize(
    ("quantity", "up", "expected"),
    [
        ("mean MSE", False, lambda scores: float(finite(scores.values["mse"]).mean())),
        ("median psnr", True, lambda scores: float(np.median(finite(scores.values["psnr"])))),
        ("share found", True, lambda scores: float(scores.found.float().mean())),
        ("share closer than the nearest neighbour", True, lambda scores: float(scores.closer.float().mean())),
    ],
)
def test_a_claim_may_be_about_each_named_quantity(
    result: CellResult, quantity: str, up: bool, expected: Callable[[Scores], float]
) -> None:
    claim = Claim(quantity=quantity, higher_is_better=up, target=1e9 if up else -1.0, where="ours")
    (said,) = made(replace(result, cell=replace(result.cell, metrics=None, claims=(claim,))), scale="paper")["claims"]
    assert said["measured"] == pytest.approx(expected(result.finding.scores), rel=1e-4)
    assert (said["printed"], said["holds"], said["reached"]) == (None, None, False)


def test_a_claim_about_nothing_known_is_refused_before_any_work() -> None:
    wrong = Claim(quantity="mean mes", higher_is_better=False, printed=1.0, where="nowhere")
    with pytest.raises(
        BadInput, match=r"did you mean `mean mse`\? known: mean mse, median mse, share closer .*share found"
    ):
        tiny_cell(claims=(wrong,))
    upside_down = Claim(quantity="mean mse", higher_is_better=True, printed=1.0, where="nowhere")
    with pytest.raises(BadInput, match="`higher_is_better` of the claim about `mean mse` must be False, got True"):
        tiny_cell(claims=(upside_down,))
    with pytest.raises(BadInput, match="unknown quantity of a claim `mean mes`"):
        run_cell(tiny_cell(metrics=None, claims=(wrong,), model=None))
    with pytest.raises(BadInput, match="needs `printed` or `target`, got neither"):
        Claim(quantity="mean mse", higher_is_better=False, where="nowhere")


@pytest.mark.parametrize(
    ("up", "printed", "measured", "holds"),
    [(False, 1.0, 1.1, True), (False, 1.0, 1.2, False), (True, 1.0, 0.9, True), (True, -1.0, -1.05, True)],
)
def test_a_claim_holds_within_its_tolerance_and_a_target_without(
    up: bool, printed: float, measured: float, holds: bool
) -> None:
    claim = Claim(quantity="x", higher_is_better=up, printed=printed, target=printed, where="nowhere")
    assert (claim.holds(measured), claim.reached(measured), claim.reached(printed)) == (holds, False, True)


def test_the_records_closer_than_their_neighbours_are_counted(result: CellResult) -> None:
    scores = result.finding.scores
    neighbour = scores.nulls["nearest_neighbour"].values["mse"].numpy()
    closer = [bool(ours < theirs) for ours, theirs in zip(scores.values["mse"].numpy(), neighbour, strict=True)]
    said = made(result)["scores"]["closer"]
    assert PRIVATE // 2 <= said["count"] == sum(closer) < PRIVATE
    exact = binomtest(sum(closer), PRIVATE).proportion_ci(0.95, "exact")
    assert (said["share"], said["low"], said["high"]) == pytest.approx((sum(closer) / PRIVATE, exact.low, exact.high))
    assert [row["closer"] == "yes" for row in rows(result)] == closer


def test_labels_and_objective_are_told_where_the_attack_gave_them(result: CellResult) -> None:
    said = made(result)["scores"]
    assert (said["labels"], said["objective"]) == (None, None)
    data = made_data(200)
    truth = data.take(slice(0, 20))
    guess = Reconstruction(x=truth.x, y=torch.zeros(20, dtype=torch.int64), objective=0.5)  # half are of class 0
    told = made_result(truth, data.take(slice(20, 200)), guess.x)
    finding = replace(told.finding, reconstruction=guess)
    scores = evaluate(guess, truth, unrelated=data.take(slice(20, 200)), matching=hungarian, metrics=(MSE,))
    said = made(replace(told, finding=replace(finding, scores=scores)))["scores"]
    assert (said["labels"]["share"], said["labels"]["chance"], said["objective"]) == (0.5, 0.5, 0.5)
    assert said["labels"]["low"] < 0.5 < said["labels"]["high"]


def test_a_cell_says_where_it_stands_and_what_privacy_allows(result: CellResult) -> None:
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
    placed = replace(result.cell, point=Point(axis="epsilon", value=2.0, log=True))
    said = made(replace(result, cell=placed, finding=replace(result.finding, limit=limit)))
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


@pytest.mark.parametrize(("value", "log"), [(float("inf"), False), (float("nan"), True), (0.0, True), (-1.0, True)])
def test_a_point_that_no_axis_can_show_is_refused(value: float, log: bool) -> None:
    with pytest.raises(BadInput, match=r"on the axis `epsilon` must be a (positive|finite) number or a text, got"):
        Point(axis="epsilon", value=value, log=log)


def test_a_study_says_what_it_measured() -> None:
    study = tiny_study(claims=(Claim(quantity="mean grey", higher_is_better=True, target=0.1, where="ours"),))
    result = run_study(study, seed=5)
    said, outcome = made(result, scale="paper"), tiny_outcome(5, torch.device("cpu"))
    assert parse_records(json.dumps([said], allow_nan=False), where="here") == [said]
    assert (said["kind"], said["cell"], said["about"]) == ("study", "a study", "How grey pictures are.")
    (measure,) = said["measures"]
    assert measure["value"] == pytest.approx(outcome.measures[0].value, rel=1e-5)
    assert (measure["low"], measure["high"], measure["chance"]) == (0.0, 1.0, 0.5)
    assert [series["x"] for series in said["figures"][0]["series"]] == [[0, 1]]
    assert (said["claims"][0]["measured"], said["claims"][0]["reached"]) == (measure["value"], True)
    assert rows(result) == []
    assert images(result).keys() == {"greys"}


def test_a_claim_about_what_a_study_does_not_measure_is_refused() -> None:
    claim = Claim(quantity="mean gray", higher_is_better=True, target=0.1, where="ours")
    with pytest.raises(BadInput, match="did you mean `mean grey`"):
        run_study(tiny_study(claims=(claim,)))


def test_values_that_are_not_finite_become_gaps() -> None:
    nan = float("nan")
    series = Series(name="a", x=(0, 1), y=(1.0, nan), low=(nan, 0.0), high=(2.0, float("inf")))
    outcome = Outcome(
        measures=(Measure(name="m", value=nan, meaning="Nothing."),),
        figures=(Figure(title="t", x_label="x", y_label="y", series=(series,)),),
    )
    said = made(run_study(tiny_study(run=lambda seed, device: outcome)))
    assert said["measures"][0]["value"] is None
    (drawn,) = said["figures"][0]["series"]
    assert (drawn["y"], drawn["low"], drawn["high"]) == ([1.0, None], [None, 0.0], [2.0, None])
    assert parse_records(json.dumps([said], allow_nan=False), where="here") == [said]


BAD_FIGURES: dict[str, tuple[Callable[[], object], str]] = {
    "unequal lengths": (lambda: Series(name="a", x=(1, 2), y=(1.0,)), "must be equally long, got .*'x': 2, 'y': 1"),
    "half an interval": (lambda: Series(name="a", x=(1,), y=(1.0,), low=(0.0,)), "must be equally long"),
    "mixed x": (lambda: Series(name="a", x=(1, "b"), y=(1.0, 2.0)), "finite numbers, or texts only"),  # type: ignore[arg-type]
    "infinite x": (lambda: Series(name="a", x=(float("inf"),), y=(1.0,)), "finite numbers, or texts only"),
    "a role": (lambda: Series(name="a", x=(1,), y=(1.0,), role="our"), "did you mean `ours`"),  # type: ignore[arg-type]
    "a kind": (lambda: Figure(title="t", x_label="", y_label="", series=(), kind="bar"), "did you mean `bars`"),  # type: ignore[arg-type]
    "texts on a line": (
        lambda: Figure(title="t", x_label="", y_label="", series=(Series(name="a", x=("b",), y=(1.0,)),)),
        "lines need numbers: make it bars",
    ),
    "pictures": (lambda: Outcome(measures=(), pictures={"p": torch.zeros(3, 4)}), r"`p` must be \(n, channels"),
}


@pytest.mark.parametrize("case", BAD_FIGURES)
def test_a_figure_that_cannot_be_drawn_is_refused(case: str) -> None:
    make, message = BAD_FIGURES[case]
    with pytest.raises(BadInput, match=message):
        make()


def test_there_is_a_row_for_each_record(result: CellResult) -> None:
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


def test_the_pictures_are_in_the_order_of_the_rows(result: CellResult) -> None:
    shown, truth = images(result), result.finding.truth.x
    assert shown.keys() == {"truth", "reconstruction", "lookalike"}
    for picture in shown.values():
        assert (picture.dtype, picture.shape) == (torch.uint8, truth.shape)
    assert torch.equal(shown["truth"], (truth * 255).round().to(torch.uint8))
    assert torch.equal(shown["reconstruction"][: PRIVATE // 2], shown["truth"][: PRIVATE // 2])
    for i, row in enumerate(rows(result)):
        if not row["mse"]:  # unmatched, or broken
            assert not shown["reconstruction"][i].any()


def test_an_attack_that_returns_nothing_gives_a_record(result: CellResult) -> None:
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


def git(folder: Path, *words: str) -> str:
    name = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_that_of_our_checkout(
    result: CellResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "src" / "remanence" / "results"
    place.mkdir(parents=True)
    (place / "provenance.py").write_text("one")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    monkeypatch.setattr(PROVENANCE, "__file__", str(place / "provenance.py"))
    head = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert made(result)["commit"] == head
    (place / "provenance.py").write_text("two")
    assert made(result)["commit"] == f"{head}-dirty"
    # an installed copy inside the checkout of another project does not claim that project's commit
    installed = tmp_path / "lib" / "site-packages" / "remanence" / "results"
    installed.mkdir(parents=True)
    monkeypatch.setattr(PROVENANCE, "__file__", str(installed / "provenance.py"))
    assert made(result)["commit"] is None


def test_there_is_no_commit_without_git(result: CellResult, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert made(result)["commit"] is None


def test_a_record_states_the_defences_of_a_gradient() -> None:
    attack = GradientMatching(steps=2, restarts=1)
    defences = (Clipping(norm=1.0), GaussianNoise(share=0.1))
    said = []
    for reveal in (gradient_at_initial, partial(gradient_at_initial, defences=defences)):
        result = run_cell(tiny_cell(reveal=reveal, attack=attack, per_victim=4))
        said.append(made(result)["release"]["shows"])
    assert [each["defences"] for each in said] == ["none", "Clipping(norm=1.0), GaussianNoise(share=0.1)"]
    assert said[0]["shape"] == "1x4x4"
