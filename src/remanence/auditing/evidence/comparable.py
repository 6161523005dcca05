"""What is left of an audit whose held-out records are of another kind than the private ones: exact copies.

Ranks, p-values and membership compare private with held-out records, and would tell them apart without any model. An
exact copy is far nearer to its record than chance brings anything, whatever was held out.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from remanence.auditing.answer.report import AttackRow, Evidence
from remanence.auditing.answer.severity import MEMBERSHIP
from remanence.auditing.attempts.running import Attempt
from remanence.metrics.exchangeability import rank_test
from remanence.metrics.leakage import LeakTest


def copies_alone(tried: Attempt) -> Attempt:
    """An attempt whose test finds exact copies alone."""
    if tried.test is None:
        return tried
    test, finding = _unranked(tried.test), tried.finding
    if finding is not None:
        finding = replace(finding, scores=replace(finding.scores, test=test))
    return replace(tried, test=test, finding=finding)


def _unranked(test: LeakTest) -> LeakTest:
    """The test with equal scores for all records, of which none is listed."""
    pool = replace(test.pool, scores=torch.zeros_like(test.pool.scores))
    return replace(test, pool=pool, ranks=rank_test(pool, seed=0))


def without_ranks(rows: Sequence[AttackRow]) -> list[AttackRow]:
    """The rows without what ranks among the held-out records say."""
    return [replace(row, ranks=None) if row.subject == "release" else row for row in rows]


def undecided_evidence(evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """The evidence, in which what compares private with held-out records is inconclusive."""
    return tuple(
        replace(row, value=None, low=None, high=None, chance=None, p=None) if row.group in MEMBERSHIP else row
        for row in evidence
    )
