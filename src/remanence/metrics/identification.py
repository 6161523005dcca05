"""Re-identification: does a reconstruction pick its record out of held-out ones?

The rank needs no threshold: 1 where the candidate that singles a record out resembles no held-out record as much. What
chance reaches is counted in the same way: the rank of each held-out record among the others.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.metrics.statistics import Interval, binomial_proportion


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Identification:
    """How well records are picked out of held-out ones by their reconstructions, and how well held-out records are."""

    rank: Tensor  # (private records,): 1 is the best
    held_out: int  # records among which each is ranked
    median: float
    chance_median: float
    top1: Interval
    chance_top1: float
    top5: Interval
    chance_top5: float


def ranks_among(similar: Tensor, private: int) -> Tensor:
    """(candidates, records): the rank of each record, private ones first, by its similarity to the candidate among the
    held-out ones; a record that is as similar ranks before it."""
    held_out = similar[:, private:].sort(dim=1).values.contiguous()
    rank = held_out.shape[1] - torch.searchsorted(held_out, similar.contiguous()) + 1
    rank[:, private:] -= 1  # itself
    return rank


def identify(rank: Tensor, null: Tensor, labels: Tensor, null_labels: Tensor) -> Identification:
    """The summary of the ranks of private records, and of `null` (releases, held-out records), which are weighted to
    the classes of the private ones."""
    classes = torch.cat([labels, null_labels]).unique()
    ours, theirs = ((each[:, None] == classes).double().sum(0) for each in (labels, null_labels))
    weight = ((null_labels[:, None] == classes).double() * (ours / theirs.clamp_min(1))).sum(1)
    weight = weight.expand(null.shape).flatten()
    flat = null.flatten()

    def chance(top: int) -> float:
        total = float(weight.sum())
        return float(weight[flat <= top].sum()) / total if total else float("nan")

    def best(top: int) -> Interval:
        return binomial_proportion(int((rank <= top).sum()), len(rank))

    ordered = flat.sort()
    middle = torch.searchsorted(weight[ordered.indices].cumsum(0), weight.sum() / 2) if len(flat) else None
    return Identification(
        rank=rank,
        held_out=null.shape[1],
        median=float(rank.double().median()),
        chance_median=float("nan") if middle is None else float(ordered.values[middle.clamp_max(len(flat) - 1)]),
        top1=best(1),
        chance_top1=chance(1),
        top5=best(5),
        chance_top5=chance(5),
    )
