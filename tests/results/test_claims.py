"""What a paper printed, beside what was measured."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from made_result import finite, made
from refusals import refused
from tiny_experiments import tiny_experiment, tiny_measurement

from remanence.experiments import Claim, Completed, run_experiment
from remanence.metrics import MSE, Scores


@pytest.mark.parametrize(
    ("scale", "printed", "holds"),
    [("smoke", 9.0, None), ("small", 9.0, None), ("full", 9.0, True), ("full", 0.0, False)],
)
def test_a_claim_is_compared_at_full_scale_only(
    completed: Completed, scale: str, printed: float, holds: bool | None
) -> None:
    experiment = replace(completed.experiment, claims=(Claim.mean(MSE, printed=printed, where="table 2"),))
    said = made(replace(completed, experiment=experiment), scale=scale)
    assert said.attack
    (claim,) = said.claims
    assert claim.measured == said.attack.scores.metrics["mse"].mean
    assert (claim.quantity, claim.printed, claim.where) == ("mean mse", printed, "table 2")
    assert (claim.target, claim.holds, claim.reached) == (None, holds, None)


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
    completed: Completed, quantity: str, up: bool, expected: Callable[[Scores], float]
) -> None:
    claim = Claim(quantity=quantity, higher_is_better=up, target=1e9 if up else -1.0, where="ours")
    experiment = tiny_experiment(metrics=None, claims=(claim,))
    (said,) = made(replace(completed, experiment=experiment), scale="full").claims
    assert said.measured == pytest.approx(expected(completed.finding.scores), rel=1e-4)
    assert (said.printed, said.holds, said.reached) == (None, None, False)


def test_a_claim_about_nothing_known_is_refused_before_any_work() -> None:
    wrong = Claim(quantity="mean mes", higher_is_better=False, printed=1.0, where="nowhere")
    with refused("unknown-name"):
        tiny_experiment(claims=(wrong,))
    upside_down = Claim(quantity="mean mse", higher_is_better=True, printed=1.0, where="nowhere")
    with refused("conflict", "higher_is_better"):
        tiny_experiment(claims=(upside_down,))
    with refused("unknown-name"):
        run_experiment(tiny_experiment(metrics=None, claims=(wrong,), model=None))
    with refused("empty"):
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


@pytest.mark.parametrize(("measured", "holds"), [(0.6, True), (0.65, True), (0.55, True), (0.93, False), (0.5, False)])
def test_where_neither_end_is_better_ours_must_be_near(measured: float, holds: bool) -> None:
    claim = Claim(quantity="x", higher_is_better=None, printed=0.6, where="nowhere")
    assert (claim.holds(measured), claim.reached(measured)) == (holds, None)
    with refused("conflict", "higher_is_better"):
        Claim(quantity="x", higher_is_better=None, target=0.6, where="nowhere")


def test_a_claim_about_what_is_not_measured_is_refused() -> None:
    claim = Claim(quantity="mean gray", higher_is_better=True, target=0.1, where="ours")
    with refused("unknown-name"):
        run_experiment(tiny_measurement(claims=(claim,)))
