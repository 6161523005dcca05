"""Intervals of membership tests that hold for few records: of the rate at a false-positive rate, and of the AUC."""

from dataclasses import replace

from torch import Tensor

from remanence.metrics import Interval
from remanence.metrics.evaluation import FPR
from remanence.metrics.statistics import binomial_proportion, p_values


def identified_at_fpr(private: Tensor, held_out: Tensor) -> Interval:
    """The fraction of `private` scores above the threshold that 1 % of `held_out` ones pass, with its 95 % interval.

    The threshold is that of a sample, and 1 % of all others may pass a lower or a higher one. Each end of the interval
    is that of the nearest threshold that is certain to lie on its side. Where there are too few held-out records for
    one, the lower end is in proportion to how many others may pass, as a ROC is concave.
    """
    from scipy.stats import beta

    p, total = p_values(private, held_out, distinct=len(held_out)), len(held_out)
    last = int(FPR * (1 + total) + 1e-9)

    def passing(rank: int) -> Interval:
        return binomial_proportion(int((p <= (rank + 0.5) / (1 + total)).sum()), len(private))

    def others(rank: int, quantile: float) -> float:
        return float(beta.ppf(quantile, rank, total + 1 - rank))

    found = passing(last)
    if not last:
        return found
    strict = next((rank for rank in range(last, 0, -1) if others(rank, 0.975) <= FPR), 0)
    loose = next((rank for rank in range(last, total + 1) if others(rank, 0.025) >= FPR), total)
    low = max(found.low * min(1.0, FPR / others(last, 0.975)), passing(strict).low if strict else 0.0)
    return replace(found, low=low, high=passing(loose).high)


def auc_of_few(area: float, fewest: int) -> Interval:
    """The AUC `area` with its 95 % interval where one sample has no more than `fewest` records, of which a bootstrap
    knows too little: that of a proportion of as many records, which has the largest variance that an AUC can have."""
    from scipy.stats import beta

    hits, misses = area * fewest, (1 - area) * fewest
    low = float(beta.ppf(0.025, hits, misses + 1)) if hits > 0 else 0.0
    return Interval(value=area, low=low, high=float(beta.ppf(0.975, hits + 1, misses)) if misses > 0 else 1.0)
