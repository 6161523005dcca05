"""Two-sample tests within classes: are private and held-out records of one kind, whatever a model says of them?

Where one set is darker, noisier, shifted or of other people, its records are distinguished without any leak, and a test
that rests on exchangeability (`exchangeability`) takes that for one. Records are permuted within their classes: rank
sums of statistics of single records (van Elteren 1960), and the number of private records whose nearest neighbour is
private (Schilling 1986; Henze 1988).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

_FIRST, _DRAWS = 999, 19999  # permutations; the first ones suffice where they show no difference
_AT_ONCE = 2**23  # random numbers


@final
@dataclass(frozen=True, kw_only=True)
class Difference:
    """What a test says: `observed`, which is `expected` of exchangeable records, and `p`, that they are."""

    observed: float
    expected: float
    p: float


def shift_test(private: Tensor, held_out: Tensor, private_labels: Tensor, held_out_labels: Tensor) -> list[Difference]:
    """For each column of (records, statistics) the fraction of pairs of a class in which the private record has the
    larger value (the AUC, classes weighted as their rank sums are), with the two-sided p-value of van Elteren's test.

    The variance is that of a permutation, ties included; the tail is normal, which is too large for few records.
    """
    from scipy.stats import norm, rankdata

    columns = private.shape[1]
    excess, variance = (torch.zeros(columns, dtype=torch.double) for _ in range(2))
    pairs = 0.0
    for ours, theirs in _by_class(private, held_out, private_labels, held_out_labels):
        n, m = len(ours), len(theirs)
        total, pool = n + m, torch.cat([ours, theirs]).cpu()
        ranks = torch.from_numpy(rankdata(pool.numpy(), axis=0)).double()
        excess += (ranks[:n].sum(0) - n * (total + 1) / 2) / (total + 1)
        variance += n * m / total * ranks.var(0) / (total + 1) ** 2
        pairs += n * m / (total + 1)
    if not pairs:
        return [Difference(observed=0.5, expected=0.5, p=1.0)] * columns
    z = torch.where(variance > 0, excess / variance.clamp_min(1e-300).sqrt(), 0.0)
    return [
        Difference(observed=0.5 + float(each) / pairs, expected=0.5, p=float(2 * norm.sf(abs(float(deviation)))))
        for each, deviation in zip(excess, z, strict=True)
    ]


def neighbour_test(
    private: Tensor, held_out: Tensor, private_labels: Tensor, held_out_labels: Tensor, *, seed: int
) -> Difference:
    """The fraction of private records whose nearest neighbour of their class is private, with the p-value of so many
    by permutation within classes, one-sided."""
    generator = torch.Generator().manual_seed(seed)
    classes = []
    total, count, expected = 0, 0, 0.0
    for ours, theirs in _by_class(private, held_out, private_labels, held_out_labels):
        n, pool = len(ours), torch.cat([ours, theirs])
        if n < 2:
            continue
        distance = torch.cdist(pool, pool)
        nearest = distance.fill_diagonal_(torch.inf).argmin(1).cpu()
        classes.append((n, nearest))
        total, count = total + n, count + int((nearest[:n] < n).sum())
        expected += n * (n - 1) / (len(pool) - 1)
    if not total:
        return Difference(observed=0.0, expected=0.0, p=1.0)
    done, above = 0, 0
    for draws in (_FIRST, _DRAWS - _FIRST):
        sampled = sum((_sampled(*each, draws, generator) for each in classes), torch.zeros(draws, dtype=torch.long))
        above, done = above + int((sampled >= count).sum()), done + draws
        if above >= 10:
            break
    return Difference(observed=count / total, expected=expected / total, p=(1 + above) / (1 + done))


def _sampled(private: int, nearest: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """(draws,): how many of so many records, sampled at random, have one of these as their nearest."""
    size, counts = len(nearest), []
    for block in torch.arange(draws).split(max(1, _AT_ONCE // size)):
        order = torch.rand(len(block), size, generator=generator).topk(private, dim=1).indices
        chosen = torch.zeros(len(block), size, dtype=torch.bool).scatter_(1, order, value=True)
        counts.append((chosen & chosen[:, nearest]).sum(1))
    return torch.cat(counts)


def _by_class(
    private: Tensor, held_out: Tensor, private_labels: Tensor, held_out_labels: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """The private and the held-out records of each class that has both."""
    for label in private_labels.unique():
        ours, theirs = private[private_labels == label], held_out[held_out_labels == label]
        if len(theirs):
            yield ours, theirs
