"""What the rank test can say at best: the lists and p-values that the held-out records allow, and how many it takes.

Ranks among few held-out records are coarse. Where all private records score above all held-out ones, which no
reconstruction exceeds, the p-value of all records is one over the number of ways to choose the private ones of each
class; if that is not small enough, or no list is possible, a test that finds nothing says nothing.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.metrics.exchangeability import Pool, smallest_list, smallest_p
from remanence.metrics.subjects import Subjects

_SAMPLED = 0.75  # of a level: permutations are drawn, and p-values a little off
_MAX_HELD_OUT = 2**20  # held-out records of a class: no level of an audit needs as many


@final
@dataclass(frozen=True, kw_only=True)
class Power:
    """What can be said of `records` private records: no list is shorter than `smallest_list`, no p-value of all records
    below `smallest_p`.

    Where that is not enough, it takes `needed` held-out records of each of their classes; 0 where it is. `lacking` are
    the classes that have fewer, where records are of several.
    """

    records: int
    smallest_list: int
    smallest_p: float
    needed: int
    lacking: tuple[int, ...]


def power_of(pool: Pool, *, fdr: float, level: float, subjects: Subjects | None = None) -> Power:
    """The power of the rank test of `pool`, whatever its scores, at the false-discovery rate `fdr` of its list and the
    `level` of its p-value. Of `subjects` the pool has one record each, of their class and number of records."""
    labels = pool.labels.cpu()
    needed = held_out_needed(labels[: pool.private], labels[pool.private :], fdr=fdr, level=level)
    counts = {label: int((labels[pool.private :] == label).sum()) for label in labels[: pool.private].unique().tolist()}
    several = len(labels.unique()) > 1
    lacking = torch.tensor([label for label, count in counts.items() if several and count < needed]).long()
    return Power(
        records=pool.private,
        smallest_list=smallest_list(pool, fdr),
        smallest_p=smallest_p(pool),
        needed=needed,
        lacking=tuple((lacking if subjects is None else subjects.classes(lacking)).unique().tolist()),
    )


def reaches(p: float, level: float) -> bool:
    """Whether a p-value that is `p` at best is at most `level` however its permutations fall."""
    return p <= _SAMPLED * level


def held_out_needed(private: Tensor, held_out: Tensor, *, fdr: float, level: float) -> int:
    """The least number of held-out records of each class of the `private` ones, given by their labels, with which a
    list of them is possible and their p-value can be at most `level`; classes with more keep those of `held_out`. 0
    where these are enough."""
    classes = private.unique()
    others = held_out[~torch.isin(held_out, classes)]
    counts = torch.stack([(held_out == label).sum() for label in classes]) if len(classes) else classes

    def enough(number: int) -> bool:
        labels = torch.cat([private, classes.repeat_interleave(counts.clamp_min(number)), others])
        pool = unscored(labels, private=len(private))
        return smallest_list(pool, fdr) <= len(private) and reaches(smallest_p(pool), level)

    highest = 1
    while not enough(highest) and highest < _MAX_HELD_OUT:
        highest *= 2
    return bisect_left(range(highest), True, lo=highest // 2, key=enough)


def unscored(labels: Tensor, *, private: int) -> Pool:
    """The pool of one release whose records, the `private` ones first, have the `labels`, and no scores yet."""
    release = torch.zeros(private, dtype=torch.int64)
    return Pool(scores=torch.zeros(1, len(labels)), labels=labels, release=release)
