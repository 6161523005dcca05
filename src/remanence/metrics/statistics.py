"""Intervals, p-values against null scores, AUC and ROC. Larger scores are better throughout (docs/decisions/0017)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import variance as variance_of
from typing import final

import torch
from torch import Tensor

from remanence.errors import BadInput


@final
@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def bootstrap_mean(values: Tensor, *, seed: int, resamples: int = 2000) -> Interval:
    """The mean of `values` without NaN, and its percentile bootstrap interval over records."""
    values = values[~values.isnan()].double().cpu()
    if len(values) == 0:
        return Interval(value=float("nan"), low=float("nan"), high=float("nan"))
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(values), (resamples, len(values)), generator=generator)
    low, high = values[rows].mean(dim=1).quantile(torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    return Interval(value=float(values.mean()), low=low, high=high)


def bootstrap_statistic(
    statistic: Callable[..., float], sizes: Sequence[int], *, seed: int, resamples: int = 500
) -> Interval:
    """A statistic of rows of several samples of these sizes, and its percentile bootstrap interval over all of them.

    `statistic` takes one tensor of row indices for each sample."""
    generator = torch.Generator().manual_seed(seed)
    resampled = [[torch.randint(size, (size,), generator=generator) for size in sizes] for _ in range(resamples)]
    values = torch.tensor([statistic(*rows) for rows in resampled], dtype=torch.double)
    low, high = values.nanquantile(torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    return Interval(value=statistic(*(torch.arange(size) for size in sizes)), low=low, high=high)


def rank_correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's rank correlation; NaN where one of the samples is constant."""
    from scipy.stats import spearmanr

    if not (one.unique().numel() > 1 and other.unique().numel() > 1):
        return float("nan")
    return float(spearmanr(one.cpu(), other.cpu()).statistic)


def binomial_proportion(count: int, total: int) -> Interval:
    """The proportion `count` of `total` with its exact (Clopper-Pearson) interval."""
    from scipy.stats import binomtest

    exact = binomtest(count, total).proportion_ci(confidence_level=0.95, method="exact")
    return Interval(value=count / total, low=float(exact.low), high=float(exact.high))


def clustered_proportion(counts: Sequence[int], size: int) -> Interval:
    """The proportion of records in clusters of `size`, such as batches or victims, of which `counts` were found in
    each. Its interval is the exact one for as many records as would vary as much if they were independent (Korn and
    Graubard 1998), at most all; where clusters do not differ and are whole or empty, as many as there are clusters.
    Of one cluster it is that of its records."""
    from scipy.stats import beta, t

    total, clusters = size * len(counts), len(counts)
    if clusters == 1:
        return binomial_proportion(counts[0], size)
    value, variance = sum(counts) / total, variance_of([count / size for count in counts]) / clusters
    if variance:
        students = float(t.ppf(0.975, total - 1) / t.ppf(0.975, clusters - 1))
        effective = min(float(total), value * (1 - value) / variance * students**2)
    else:
        effective = float(clusters if value in (0, 1) else total)
    found, missed = value * effective, (1 - value) * effective
    low = float(beta.ppf(0.025, found, missed + 1)) if found else 0.0
    return Interval(value=value, low=low, high=float(beta.ppf(0.975, found + 1, missed)) if missed else 1.0)


def p_values(scores: Tensor, null: Tensor, *, distinct: int) -> Tensor:
    """(records,): the fraction of null scores at least as good as each score, the score itself included.

    With that one added the test is exact for exchangeable scores. Null scores are resampled from a finite pool, so p is
    at least 1/(distinct + 1): k different comparisons cannot show less. A record without a score (NaN) has p = 1.
    """
    ordered = null[~null.isnan()].sort().values
    below = torch.searchsorted(ordered, scores.nan_to_num(nan=-torch.inf))
    p = (1 + len(ordered) - below).double() / (1 + len(ordered))  # in float32, 20 of 2000 would be above 1 %
    return torch.where(scores.isnan(), torch.ones_like(p), p.clamp(min=1 / (1 + distinct)))


def auc(scores: Tensor, null: Tensor) -> float:
    """The area under the ROC: the probability that a score exceeds a null score, ties counted half."""
    ordered = null.sort().values
    below, up_to = (torch.searchsorted(ordered, scores, right=right).double() for right in (False, True))
    return float((below + up_to).mean()) / (2 * len(ordered))


@final
@dataclass(frozen=True, kw_only=True)
class Roc:
    """True-positive rates of records by false-positive rates of null scores; the rates at a fixed false-positive rate
    are None with too few null scores."""

    fpr: tuple[float, ...]
    tpr: tuple[float, ...]
    tpr_at_1_percent: Interval | None
    tpr_at_01_percent: Interval | None  # at 0.1 %

    def __post_init__(self) -> None:
        check_lengths(fpr=self.fpr, tpr=self.tpr)


def check_lengths(**lists: Sequence[object]) -> None:
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        raise BadInput(f"lists must be equally long, got {lengths}", code="shape-mismatch")


def roc(scores: Tensor, null: Tensor, *, distinct: int, points: int = 200) -> Roc:
    """The ROC of `scores` against `null`, and its true-positive rates at false-positive rates of 1 % and 0.1 %."""
    return roc_of_p_values(p_values(scores, null, distinct=distinct), distinct=distinct, points=points)


def roc_of_p_values(p: Tensor, *, distinct: int, points: int = 200) -> Roc:
    """The ROC of a test by the p-values of the records, which rest on so many distinct null scores."""
    p = p.double().cpu()
    levels = torch.logspace(-torch.tensor(distinct + 1.0).log10().item(), 0, points, dtype=torch.double)
    tpr = (p[:, None] <= levels * (1 + 1e-12)).double().mean(dim=0)
    return Roc(
        fpr=tuple(levels.tolist()),
        tpr=tuple(tpr.tolist()),
        tpr_at_1_percent=_tpr_at(p, distinct, 0.01),
        tpr_at_01_percent=_tpr_at(p, distinct, 0.001),
    )


def _tpr_at(p: Tensor, distinct: int, level: float) -> Interval | None:
    """The fraction of p-values at most `level`; None where there are too few comparisons for one."""
    if 1 / (1 + distinct) > level:
        return None
    return binomial_proportion(int((p <= level).sum()), len(p))
