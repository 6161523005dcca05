"""The time of an attack's scores: estimated from a few records, and taken from the time of its search."""

from typing import Any

import pytest
import torch
from auditing.nets import as_images, fitted, published, seeded, small_mlp

from remanence.attacks import GradientMatching
from remanence.auditing.attempts import scoring
from remanence.auditing.attempts.applicability import UPDATE, Applicability
from remanence.auditing.attempts.scoring import ScoringTime
from remanence.auditing.pipeline import audit
from remanence.data import split
from remanence.errors import BadInput
from remanence.types import Data

KNOWN = Applicability(
    name="GradientMatching", status="runs", reason=None, knowledge=UPDATE, attack=GradientMatching(), seconds=50.0
)


def records(n: int, seed: int) -> Data:
    x = torch.rand(n, 6, generator=torch.Generator().manual_seed(seed))
    return Data(x=x, y=torch.arange(n) % 2, num_classes=2)


def test_the_time_of_few_records_is_scaled_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that take 0.3 s, 10 ms for each record, and 50 ms for each candidate that has one."""
    clock = [0.0]

    def evaluate(found: Any, truth: Data, *, unrelated: Data) -> None:
        clock[0] += 0.3 + 0.01 * (len(truth) + len(unrelated)) + 0.05 * min(len(found.x), len(truth))

    monkeypatch.setattr(scoring, "evaluate", evaluate)
    monkeypatch.setattr(scoring, "perf_counter", lambda: clock[0])
    time = ScoringTime.measure(records(40, 0), records(700, 1))
    assert time.seconds(30) == pytest.approx(0.3 + 7.4 + 1.5)
    assert time.seconds(400) == pytest.approx(0.3 + 7.4 + 2.0)  # as many as there are records
    assert clock[0] < 5
    assert time.add_to(KNOWN).total == pytest.approx(50 + 0.3 + 7.4 + 2.0)  # where the attack does not say how many


def test_scores_that_are_refused_are_expected_to_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **kwargs: Any) -> None:
        raise BadInput("no scores", code="empty", argument="truth")

    monkeypatch.setattr(scoring, "evaluate", refused)
    assert ScoringTime.measure(records(4, 0), records(20, 1)).seconds(4) == 0


def test_the_estimates_of_an_audit_hold_the_time_of_the_scores(digits: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = split(as_images(digits), private=20, fixed=0, public=0, test=100, seed=0)
    release = published(fitted(seeded(small_mlp), parts.private, epochs=1), parts.private)
    time = ScoringTime(start=1000.0, per_record=0.0, per_pair=0.0, private=20, held_out=100)
    monkeypatch.setattr(ScoringTime, "measure", lambda private, others: time)
    report = audit(release, truth=parts.private, held_out=parts.test, budget=4.0, attacks=("KKT",))
    (estimate,) = report.answer.preflight.estimates
    assert estimate.seconds is not None
    assert estimate.seconds > 1000
    (row,) = report.answer.attacks
    assert row.status in ("ran", "skipped")
