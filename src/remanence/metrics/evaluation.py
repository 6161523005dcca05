"""The evaluation of a reconstruction against the truth: every score together with its null levels.

A record is *found* when it stands on the list of a test at a false-discovery rate of 5 %, by its rank among held-out
records of its class, or is an exact copy (`leakage`). See docs/evidence.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from remanence.data.splits import check_disjoint
from remanence.errors import BadInput
from remanence.metrics.base import Metric
from remanence.metrics.exchangeability import Likeness, likeness
from remanence.metrics.leakage import LeakTest, Releases, leak_test
from remanence.metrics.lpips import LPIPS
from remanence.metrics.matching import NONE, Matching, hungarian
from remanence.metrics.nulls import (
    Null,
    Values,
    held_out,
    matched,
    mean_image,
    nearest_neighbour,
    neighbours,
    noise,
    unrelated_images,
)
from remanence.metrics.pixel import COSINE, MAE, MSE, NCC, PSNR
from remanence.metrics.similarity import similarities
from remanence.metrics.ssim import SKIMAGE, SSIM, SSIM3
from remanence.metrics.statistics import Interval, binomial_proportion, bootstrap_mean
from remanence.progress import track
from remanence.types import Data, Reconstruction

FPR = 0.01


@final
@dataclass(frozen=True, kw_only=True)
class Labels:
    """The accuracy of the labels that an attack returned with its reconstructions, and that of the commonest label."""

    accuracy: Interval
    chance: float


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """The scores of each record, in the order of the truth, with intervals and null levels, and the test that decides
    which records are found."""

    matching: str
    metrics: tuple[Metric, ...]
    candidates: int
    index: Tensor  # the candidate of each record, -1 where there is none
    values: Values
    means: dict[str, Interval]
    nulls: dict[str, Null]
    test: LeakTest
    likeness: Likeness  # of the private records, where every record is its own subject
    closer: Tensor  # which reconstructions are closer to their record than its nearest neighbour is
    fraction_closer: Interval
    chance_closer: float  # of held-out records: how many are closer to their match than to their nearest neighbour
    labels: Labels | None  # None where the attack returned none
    lookalike: Tensor  # the nearest neighbour of each record among those that the attacker could own

    @property
    def found(self) -> Tensor:
        """(records,): which records are found."""
        return self.test.found

    @property
    def fraction_found(self) -> Interval:
        """The fraction of the records, or of their subjects, that are found."""
        return self.test.fraction

    @property
    def primary(self) -> Metric:
        """The metric that comes first, by which records are compared with their nearest neighbour."""
        return self.metrics[0]

    @property
    def unmatched(self) -> int:
        """How many records have no candidate."""
        return int((self.index == NONE).sum())

    def matched(self, candidates: Tensor) -> Tensor:
        """(records, ...): the candidate (m, ...) of each record, zeros for those that have none."""
        has = self.index != NONE
        found = candidates.new_zeros(len(self.index), *candidates.shape[1:])
        found[has] = candidates[self.index[has]]
        return found


def evaluate(
    reconstruction: Reconstruction,
    truth: Data,
    *,
    unrelated: Data,
    known: Data | None = None,
    matching: Matching = hungarian,
    metrics: Sequence[Metric] | None = None,
    releases: Releases | None = None,
    seed: int = 0,
) -> Scores:
    """Score `reconstruction` against `truth`, with its null levels, and test which records are found.

    `unrelated` are records of the same distribution that were never trained on; `known` the records that the attacker
    could own, for the mean image and the nearest neighbour (`unrelated` where not given). `releases` says which
    candidates and records belong together, where there are several releases.
    """
    if len(truth) == 0:
        raise BadInput("`truth` is empty: give the records to compare with", code="empty", argument="truth")
    if truth.is_image:  # rows of a table may well be equal
        check_disjoint({"truth": truth, "unrelated": unrelated})
    metrics = tuple(metrics or default_metrics(truth))
    known = known if known is not None and len(known) else unrelated
    truth, unrelated, known = (
        data.to(reconstruction.x.device, reconstruction.x.dtype) for data in (truth, unrelated, known)
    )
    x = reconstruction.x.detach()
    index, values = matched(x, truth.x, matching, metrics, releases)
    lookalike, neighbour = nearest_neighbour(truth, known, metrics)
    levels: dict[str, Callable[[], Null]] = {
        "held_out": lambda: held_out(x, truth, unrelated, matching, metrics, seed=seed),
        "unrelated": lambda: unrelated_images(len(x), truth, unrelated, matching, metrics, seed=seed + 1),
        "noise": lambda: noise(len(x), truth, known, matching, metrics, seed=seed + 2),
        "mean_image": lambda: mean_image(truth, known, metrics),
        "nearest_neighbour": lambda: neighbour,
    }
    nulls = {name: compute() for name, compute in track(levels.items(), total=len(levels), label="levels of chance")}
    score, neighbour_score = (oriented(metrics[0], v[metrics[0].name]) for v in (values, neighbour.values))
    closer = score > neighbour_score  # False for a record without a score (NaN)
    by = similarities(truth, perceptual=LPIPS in metrics)
    return Scores(
        matching=matching.name,
        metrics=metrics,
        candidates=len(x),
        index=index,
        values=values,
        means={m.name: bootstrap_mean(values[m.name], seed=seed) for m in metrics},
        nulls=nulls,
        test=leak_test(x, truth, unrelated, releases=releases, by=by, seed=seed),
        likeness=likeness(truth.x, unrelated.x, truth.y, unrelated.y),
        closer=closer,
        fraction_closer=binomial_proportion(int(closer.sum()), len(truth)),
        chance_closer=_chance_closer(nulls["held_out"], unrelated, known, metrics[0]),
        labels=_labels(reconstruction, truth, index),
        lookalike=lookalike,
    )


def _chance_closer(null: Null, unrelated: Data, known: Data, metric: Metric) -> float:
    """The fraction of held-out records, matched as the truth is, that are closer than their nearest neighbour."""
    if null.records is None or not len(null.records):
        return float("nan")
    records, position = null.records.unique(return_inverse=True)
    x = unrelated.x[records]
    neighbour = oriented(metric, metric.paired(known.x[neighbours(x, known.x, metric)], x))
    return float((oriented(metric, null.values[metric.name]) > neighbour[position]).double().mean())


def _labels(reconstruction: Reconstruction, truth: Data, index: Tensor) -> Labels | None:
    if reconstruction.y is None:
        return None
    has = index != NONE
    right = int((reconstruction.y.to(truth.y.device)[index[has]] == truth.y[has]).sum())
    commonest = int(truth.y.bincount().max())
    return Labels(accuracy=binomial_proportion(right, len(truth)), chance=commonest / len(truth))


def quantities(metrics: Sequence[Metric]) -> dict[str, bool]:
    """The quantities of an evaluation that a claim can be about, and whether higher is better."""
    named = {f"{kind} {m.name}": m.higher_is_better for kind in ("mean", "median") for m in metrics}
    return named | {"share found": True, "share closer than the nearest neighbour": True}


def oriented(metric: Metric, values: Tensor) -> Tensor:
    """The values of a metric, negated where lower is better, so that larger is better."""
    return values if metric.higher_is_better else -values


def default_metrics(truth: Data) -> tuple[Metric, ...]:
    """The metrics for these records: SSIM first where its window fits, MSE first for table rows and tiny images; in
    another box than [0, 1] cosine similarity first, and no metric that takes the range of values for one."""
    if not truth.is_unit:
        return (COSINE, MSE, MAE, NCC)
    pixels = (MSE, MAE, PSNR, NCC)
    if truth.is_image and min(truth.shape[1:]) >= SKIMAGE.window:
        return (SSIM, SSIM3, *pixels)
    return pixels
