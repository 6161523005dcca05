"""Was a record trained on? A test at 1 % false positives, by any score that is larger for records that were."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.metrics.evaluation import FPR
from remanence.metrics.statistics import Interval, Roc, auc, binomial_share, bootstrap_statistic, p_values, roc
from remanence.seeds import derive_seed


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Membership:
    """`told` marks the records that are called trained on, with p <= 0.01 against one half of the held-out records."""

    null: int  # the held-out records of that half
    p: Tensor
    told: Tensor
    share_told: Interval
    false_positives: Interval  # the share of the other half that is called so too
    auc: Interval  # against all held-out records
    roc: Roc


def membership(scores: Tensor, held_out: Tensor, *, seed: int = 0) -> Membership:
    """Test each of `scores` against those of records of the same kind that were not trained on."""
    if len(held_out) < 2 or not len(scores):
        raise BadInput(f"membership needs a record and two held-out ones or more, got {len(scores)}, {len(held_out)}")
    scores, held_out = scores.detach().double().cpu(), held_out.detach().double().cpu()
    drawn = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(derive_seed(seed, "halves")))
    null, others = held_out[drawn].tensor_split(2)
    p, by_chance = (p_values(each, null, distinct=len(null)) for each in (scores, others))
    told, wrong = p <= FPR, by_chance <= FPR

    def resampled(rows: Tensor, null_rows: Tensor) -> float:
        return auc(scores[rows], held_out[null_rows])

    return Membership(
        null=len(null),
        p=p,
        told=told,
        share_told=binomial_share(int(told.sum()), len(told)),
        false_positives=binomial_share(int(wrong.sum()), len(wrong)),
        auc=bootstrap_statistic(resampled, (len(scores), len(held_out)), seed=derive_seed(seed, "auc")),
        roc=roc(scores, held_out, distinct=len(held_out)),
    )
