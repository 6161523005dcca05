"""Membership in a stand-in, by the test that shows most of it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from remanence.auditing.answer.report import Evidence
from remanence.auditing.checks.outputs import endpoints
from remanence.auditing.evidence.membership import (
    Scored,
    by_gradient,
    by_loss,
    by_loss_drop,
    by_span,
    membership_rows,
)
from remanence.errors import BadInput
from remanence.releases import KnowsUpdate
from remanence.seeds import derive_seed
from remanence.types import Data

_MAX_SCORED = 2000  # records


def strongest_membership(
    release: Any, truth: Data, held_out: Data, *, seed: int
) -> tuple[Evidence | None, Evidence | None]:
    """The rows of the membership test with the largest AUC, whose p is multiplied by the number of tests."""
    truth, held_out = (data.take(slice(0, _MAX_SCORED)) for data in (truth, held_out))
    tests: dict[str, Callable[[Any, Data, Data], Scored]] = {"membership by loss": by_loss, "span": by_span}
    if isinstance(release, KnowsUpdate):
        tests = {"membership by gradient": by_gradient, "span": by_span}
    if endpoints(release)[0] is not None:
        tests["membership by loss drop"] = by_loss_drop
    found = []
    for name, test in tests.items():
        try:
            scored = test(release, truth, held_out)
        except BadInput:
            continue
        labels = truth.y.cpu(), held_out.y.cpu()
        [tpr, auc], _ = membership_rows(name, "membership", scored, *labels, seed=derive_seed(seed, name))
        found.append((tpr, replace(auc, p=None if auc.p is None else min(1.0, len(tests) * auc.p))))
    return max(found, key=lambda rows: rows[1].value or 0.0, default=(None, None))
