"""All attacks of an audit taken together: one list of records and one p-value, without a correction for their number.

A record's score is the best of its standardised scores over the attacks, for private and held-out records alike, so
that the rank test holds as it does for one attack. Attacks that were given part of the held-out records have others
left for the test; they are tested apart, and the levels divided.
"""

from collections.abc import Sequence

import torch

from remanence.auditing.answer.report import AuditTest
from remanence.auditing.answer.undecided import level_of
from remanence.metrics.exchangeability import FDR, Pool, RankTest, discoveries, rank_test
from remanence.metrics.leakage import LeakTest
from remanence.metrics.power import power_of


def together(tests: Sequence[LeakTest], *, seed: int) -> AuditTest | None:
    """The test of all attacks on the same private records; None where there is none."""
    if not tests:
        return None
    groups: dict[tuple[int, ...], list[LeakTest]] = {}
    for test in tests:
        groups.setdefault(tuple(test.pool.labels.tolist()), []).append(test)
    ranks = [_ranks(group, seed) for group in groups.values()]
    listed = torch.stack([discoveries(each.records, FDR / len(ranks)) for each in ranks]).any(0)
    copied = torch.stack([test.units_copied for test in tests]).any(0)
    units, held_out = len(listed), min(test.held_out for test in tests)
    level = level_of(units, tests=min(2, len(tests))) / len(ranks)
    powers = [
        power_of(group[0].pool, fdr=FDR / len(ranks), level=level, subjects=group[0].subjects)
        for group in groups.values()
    ]
    best = min(powers, key=lambda each: (each.needed, each.smallest_list))
    return AuditTest(
        records=units,
        found=int((listed | copied).sum()),
        copies=int(copied.sum()),
        false=FDR * int(listed.sum()),
        fdr=FDR,
        p=min(1.0, len(ranks) * min(each.together for each in ranks)),
        held_out=held_out,
        smallest_list=min(each.smallest_list for each in powers),
        smallest_p=min(1.0, len(ranks) * min(each.smallest_p for each in powers)),
        needed=best.needed,
        lacking=best.lacking,
        untested=tuple(sorted({label for test in tests for label in test.untested})),
        subjects=any(test.subjects is not None for test in tests),
    )


def _ranks(tests: Sequence[LeakTest], seed: int) -> RankTest:
    first = tests[0].pool
    scores = torch.stack([test.pool.scores for test in tests]).amax(0)
    return rank_test(Pool(scores=scores, labels=first.labels, release=first.release), seed=seed)
