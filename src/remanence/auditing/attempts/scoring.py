"""How long it takes to score what an attack reconstructs: measured on a few candidates and records, and scaled.

The scores of digits and of photographs of 32 pixels take a start, a time for each record, private or held-out, and one
for each pair of a candidate and its record, which has levels of chance of its own: so far within half as much again.
"""

from dataclasses import dataclass, replace
from time import perf_counter
from typing import final

from remanence.auditing.attempts.applicability import Applicability
from remanence.auditing.attempts.running import MAX_NULL, MAX_SCORED
from remanence.auditing.checks.records import distinct, evenly
from remanence.metrics import evaluate
from remanence.types import Data, Reconstruction

_FEW, _MORE = 10, 100  # records
_PAIRS = 2, 12  # private ones among them, with a candidate for each
_QUICK, _SLOW = 0.15, 10.0  # seconds of the first measurement: outside there is no other, and that is the estimate


@final
@dataclass(frozen=True, kw_only=True)
class ScoringTime:
    """The seconds of scoring candidates against `private` and `held_out` records, so many of each."""

    start: float
    per_record: float
    per_pair: float
    private: int
    held_out: int

    @classmethod
    def measure(cls, private: Data, others: Data) -> "ScoringTime":
        """Score held-out records as if they were candidates; no time is expected where that is refused."""
        truth = distinct(private)
        sizes = {"private": min(len(truth), MAX_SCORED), "held_out": min(len(others), MAX_NULL)}
        few, more = _PAIRS
        try:
            first = _timed(truth, others, few, _FEW)
            if first > _QUICK:  # the first run also imports
                first = min(first, _timed(truth, others, few, _FEW))
            if not _QUICK < first < _SLOW:
                return cls(start=first, per_record=0.0, per_pair=0.0, **sizes)
            second, third = _timed(truth, others, few, _MORE), _timed(truth, others, more, _MORE)
        except Exception:
            return cls(start=0.0, per_record=0.0, per_pair=0.0, **sizes)
        per_record, per_pair = max(0.0, second - first) / (_MORE - _FEW), max(0.0, third - second) / (more - few)
        start = max(0.0, first - _FEW * per_record - few * per_pair)
        return cls(start=start, per_record=per_record, per_pair=per_pair, **sizes)

    def seconds(self, candidates: int) -> float:
        """The seconds that the scores of so many candidates are expected to take."""
        pairs = min(candidates, self.private)
        return self.start + self.per_record * (self.private + self.held_out) + self.per_pair * pairs

    def add_to(self, one: Applicability) -> Applicability:
        """The attack with the time of its scores, of as many candidates as private records where it does not say."""
        return replace(one, scoring=self.seconds(getattr(one.attack, "candidates", None) or self.private))


def _timed(private: Data, others: Data, pairs: int, records: int) -> float:
    """The seconds of scoring so many candidates, each of which has a record."""
    truth, unrelated = evenly(private, pairs), evenly(others, records - pairs)
    some = evenly(unrelated, pairs)
    start = perf_counter()
    evaluate(Reconstruction(x=some.x, y=some.y, objective=0.0), truth, unrelated=unrelated)
    return perf_counter() - start
