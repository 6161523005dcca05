"""The record of a study, and figures that no page can draw."""

import json
from collections.abc import Callable

import pytest
import torch
from made_result import made
from tiny_experiments import tiny_measurement, tiny_outcome

from remanence.errors import BadInput
from remanence.experiments import Claim, Figure, Measure, Outcome, Point, Series, run_experiment
from remanence.experiments.results import images, parse_records, rows


def test_a_study_says_what_it_measured() -> None:
    study = tiny_measurement(claims=(Claim(quantity="mean grey", higher_is_better=True, target=0.1, where="ours"),))
    result = run_experiment(study, seed=5)
    said, outcome = made(result, scale="full"), tiny_outcome(5, torch.device("cpu"))
    assert parse_records(json.dumps([said], allow_nan=False), where="here") == [said]
    assert (said["kind"], said["cell"], said["about"]) == ("study", "a measurement", "How grey pictures are.")
    (measure,) = said["measures"]
    assert measure["value"] == pytest.approx(outcome.measures[0].value, rel=1e-5)
    assert (measure["low"], measure["high"], measure["chance"]) == (0.0, 1.0, 0.5)
    assert [series["x"] for series in said["figures"][0]["series"]] == [[0, 1]]
    assert (said["claims"][0]["measured"], said["claims"][0]["reached"]) == (measure["value"], True)
    assert rows(result) == []
    assert images(result).keys() == {"greys"}


def test_values_that_are_not_finite_become_gaps() -> None:
    nan = float("nan")
    series = Series(name="a", x=(0, 1), y=(1.0, nan), low=(nan, 0.0), high=(2.0, float("inf")))
    outcome = Outcome(
        measures=(Measure(name="m", value=nan, meaning="Nothing."),),
        figures=(Figure(title="t", x_label="x", y_label="y", series=(series,)),),
    )
    said = made(run_experiment(tiny_measurement(run=lambda seed, device: outcome)))
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


@pytest.mark.parametrize(("value", "log"), [(float("inf"), False), (float("nan"), True), (0.0, True), (-1.0, True)])
def test_a_point_that_no_axis_can_show_is_refused(value: float, log: bool) -> None:
    with pytest.raises(BadInput, match=r"on the axis `epsilon` must be a (positive|finite) number or a text, got"):
        Point(axis="epsilon", value=value, log=log)
