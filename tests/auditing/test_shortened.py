"""Attacks that the budget shortened, by steps or by the clock, are said to have been shortened wherever they count."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from gradients import release_of
from made_report import RAN, TOGETHER, null_answer
from torch import nn

from remanence.attacks import SPEAR, FirstLayer, GradientMatching
from remanence.auditing import Report
from remanence.auditing.answer.advice import advice
from remanence.auditing.answer.record import dump_record
from remanence.auditing.answer.severity import verdict
from remanence.auditing.attempts.applicability import UPDATE, Applicability
from remanence.auditing.attempts.resuming import Steps
from remanence.auditing.attempts.running import Attempt, attempt_test
from remanence.models import initial_params, mlp
from remanence.training import CrossEntropy
from remanence.types import Data

MANY = 10**9  # samples or steps: more than there is time for


def records(n: int, seed: int) -> Data:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.rand(n, 50, generator=generator), torch.arange(n) % 10
    return Data(x=x, y=y, num_classes=10)


def tried(
    attack: Any, seconds: float | None, *, allowed: float, reason: str | None = None, scoring: float = 0.0
) -> Attempt:
    """The attack on the gradient of 24 records, in at most the seconds `allowed`."""
    batch, model = records(24, 0), mlp((50,), 10, hidden=(200,), activation=nn.ReLU)
    release = release_of(model, initial_params(model, seed=0), batch, loss=CrossEntropy())
    one = Applicability(
        name=type(attack).__name__,
        status="weaker" if reason else "runs",
        reason=reason,
        knowledge=UPDATE,
        attack=attack,
        release=release,
        seconds=seconds,
        scoring=scoring,
    )
    return attempt_test(one, batch, records(60, 1), allowed, Steps(None), 0)


def test_an_attack_that_the_clock_stopped_says_so() -> None:
    one = tried(SPEAR(samples=MANY), None, allowed=1.0)
    assert (one.row.status, one.stopped, one.row.shortened) == ("ran", True, True)
    assert one.row.reason == "stopped early, to keep the budget"


def test_an_attack_that_ends_in_time_is_not_shortened() -> None:
    one = tried(FirstLayer(), None, allowed=60, reason="three local steps are taken for one")
    assert (one.stopped, one.row.shortened) == (False, False)
    assert one.row.reason == "three local steps are taken for one"


@pytest.mark.parametrize("told", [None, "three local steps are taken for one"])
def test_a_search_with_fewer_steps_says_so_beside_what_makes_it_weaker(told: str | None) -> None:
    attack = GradientMatching()
    one = tried(attack, 30.0, allowed=1.5, reason=told)
    assert (one.row.status, one.row.shortened) == ("ran", True)
    before, _, words = (one.row.reason or "").rpartition("; ")
    assert before == (told or "")
    assert words.startswith(f"{round(0.8 * 0.05 * attack.search.steps)} of {attack.search.steps} steps, ")
    assert words.endswith("to keep the budget")


@pytest.mark.parametrize(("scoring", "searching"), [(0.5, 1.5), (1.4, 1.0), (100.0, 1.0)])
def test_a_search_has_the_time_that_its_scores_leave_and_half_at_least(scoring: float, searching: float) -> None:
    attack = GradientMatching()
    one = tried(attack, 30.0, allowed=2.0, scoring=scoring)
    assert (one.row.reason or "").startswith(f"{int(0.8 * searching / 30 * attack.search.steps)} of ")


def test_what_was_shortened_is_said_wherever_the_attack_is_counted() -> None:
    row = replace(
        RAN, found=0, exact=0, low=0.0, high=3.5, p=0.4, shortened=True, reason="stopped early, to keep the budget"
    )
    nothing = replace(TOGETHER, found=0, copies=0, false=0.0, p=0.4)
    said = verdict((row, replace(row, name="Stein", shortened=False)), (), "none-found", nothing)
    assert "by the 2 attacks that ran, 1 of them shortened to keep the budget; a stronger" in said
    alone, both = (verdict((row,) * n, (), "none-found", nothing) for n in (1, 2))
    assert "by the 1 attack that ran, shortened to keep the budget; a stronger" in alone
    assert "by the 2 attacks that ran, all shortened to keep the budget; a stronger" in both
    assert "larger budget: FirstLayer did not run in full" in " ".join(advice("Gradient", "none-found", (row,)))
    answer = null_answer(attacks=(row,))
    [line] = [line for line in str(Report(answer=answer)).splitlines() if line.startswith("FirstLayer")]
    assert "p 0.4, shortened to keep the budget, " in line
    assert "stopped early, to keep the budget" in Report(answer=answer).to_html()
    record = json.loads(dump_record(answer))
    assert record["attacks"][0]["row"]["shortened"] is True
    assert "shortened to keep the budget" in json.dumps(record["documentation"])
    in_full = replace(row, shortened=False, reason=None)
    assert "shortened" not in verdict((in_full,), (), "none-found", nothing)
    assert "shortened" not in str(Report(answer=null_answer(attacks=(in_full,))))
