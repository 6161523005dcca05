"""Membership inference: a test at a false-positive rate of 1 %, by any score that is larger for training records."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.metrics.evaluation import FPR
from remanence.metrics.statistics import Interval, Roc, auc, binomial_proportion, bootstrap_statistic, p_values, roc
from remanence.seeds import derive_seed


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Membership:
    """The outcome of a membership test: which records are identified as training records, and how sure that is."""

    null: int  # held-out records that the p-values compare with: one half of them
    p: Tensor  # (records,)
    identified: Tensor  # (records,): p <= 0.01
    fraction_identified: Interval
    false_positives: Interval  # fraction of the other half of the held-out records that is identified too
    auc: Interval  # against all held-out records
    roc: Roc


def membership_test(scores: Tensor, held_out: Tensor, *, seed: int = 0) -> Membership:
    """Test each of `scores` (records,) against those of `held_out` records of the same distribution, which were not
    trained on."""
    if len(held_out) < 2 or not len(scores):
        message = (
            f"`scores` must hold one record or more and `held_out` two or more, got {len(scores)} and {len(held_out)}: "
            "give more records"
        )
        raise BadInput(message, code="too-few", argument="held_out" if len(scores) else "scores")
    scores, held_out = scores.detach().double().cpu(), held_out.detach().double().cpu()
    order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(derive_seed(seed, "halves")))
    null, others = held_out[order].tensor_split(2)
    p, p_others = (p_values(each, null, distinct=len(null)) for each in (scores, others))
    identified, false = p <= FPR, p_others <= FPR

    def resampled(rows: Tensor, null_rows: Tensor) -> float:
        return auc(scores[rows], held_out[null_rows])

    return Membership(
        null=len(null),
        p=p,
        identified=identified,
        fraction_identified=binomial_proportion(int(identified.sum()), len(identified)),
        false_positives=binomial_proportion(int(false.sum()), len(false)),
        auc=bootstrap_statistic(resampled, (len(scores), len(held_out)), seed=derive_seed(seed, "auc")),
        roc=roc(scores, held_out, distinct=len(held_out)),
    )
