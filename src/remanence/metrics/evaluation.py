"""The evaluation of a reconstruction against the truth: every score together with its null levels.

A record is *found* when its matched score beats both nulls at a 1 % false-positive rate: (a) the same reconstructions
against held-out records, (b) unrelated records in place of the reconstructions. See docs/evidence.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import final

from torch import Tensor

from remanence.data.splits import check_disjoint
from remanence.errors import BadInput
from remanence.metrics.base import Metric
from remanence.metrics.matching import NONE, Matching, hungarian
from remanence.metrics.nulls import (
    Null,
    Values,
    held_out,
    matched,
    mean_image,
    nearest_neighbour,
    noise,
    unrelated_images,
)
from remanence.metrics.pixel import MAE, MSE, NCC, PSNR
from remanence.metrics.ssim import SKIMAGE, SSIM, SSIM3
from remanence.metrics.statistics import Interval, Roc, binomial_proportion, bootstrap_mean, p_values, roc
from remanence.progress import track
from remanence.types import Data, Reconstruction

FPR = 0.01


@final
@dataclass(frozen=True, kw_only=True)
class Scarcity:
    """The class with the fewest held-out records relative to those that one sample of a null needs."""

    label: int
    held_out: int
    needed: int


@final
@dataclass(frozen=True, kw_only=True)
class Labels:
    """The accuracy of the labels that an attack returned with its reconstructions, and that of the commonest label."""

    accuracy: Interval
    chance: float


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """The scores of each record, in the order of the truth, with intervals and null levels. The first metric decides
    which records are found."""

    matching: str
    metrics: tuple[Metric, ...]
    candidates: int
    scarcest: Scarcity
    index: Tensor  # the candidate of each record, -1 where there is none
    values: Values
    means: dict[str, Interval]
    nulls: dict[str, Null]
    p_held_out: Tensor
    p_unrelated: Tensor
    found: Tensor
    fraction_found: Interval
    closer: Tensor  # which reconstructions are closer to their record than its nearest neighbour is
    fraction_closer: Interval
    labels: Labels | None  # None where the attack returned none
    roc: Roc  # records against held-out records
    lookalike: Tensor  # the nearest neighbour of each record among those that the attacker could own

    @property
    def primary(self) -> Metric:
        """The metric that decides which records are found."""
        return self.metrics[0]

    @property
    def unmatched(self) -> int:
        """How many records have no candidate."""
        return int((self.index == NONE).sum())


def evaluate(
    reconstruction: Reconstruction,
    truth: Data,
    *,
    unrelated: Data,
    known: Data | None = None,
    matching: Matching = hungarian,
    metrics: Sequence[Metric] | None = None,
    seed: int = 0,
) -> Scores:
    """Score `reconstruction` against `truth`, with its null levels.

    `unrelated` are records of the same distribution that were never trained on; `known` the records that the attacker
    could own, for the mean image and the nearest neighbour (`unrelated` where not given).
    """
    if len(truth) == 0:
        raise BadInput("`truth` is empty: give the records to compare with", code="empty", argument="truth")
    check_disjoint({"truth": truth, "unrelated": unrelated})
    metrics = tuple(metrics or default_metrics(truth))
    known = known if known is not None and len(known) else unrelated
    truth, unrelated, known = (
        data.to(reconstruction.x.device, reconstruction.x.dtype) for data in (truth, unrelated, known)
    )
    x = reconstruction.x.detach()
    index, values = matched(x, truth.x, matching, metrics)
    lookalike, neighbour = nearest_neighbour(truth, known, metrics)
    levels: dict[str, Callable[[], Null]] = {
        "held_out": lambda: held_out(x, truth, unrelated, matching, metrics, seed=seed),
        "unrelated": lambda: unrelated_images(len(x), truth, unrelated, matching, metrics, seed=seed + 1),
        "noise": lambda: noise(len(x), truth, matching, metrics, seed=seed + 2),
        "mean_image": lambda: mean_image(truth, known, metrics),
        "nearest_neighbour": lambda: neighbour,
    }
    nulls = {name: compute() for name, compute in track(levels.items(), total=len(levels), label="levels of chance")}
    score, against_held_out, against_unrelated, neighbour_score = (
        oriented(metrics[0], v[metrics[0].name])
        for v in (values, nulls["held_out"].values, nulls["unrelated"].values, neighbour.values)
    )
    p_held_out = p_values(score, against_held_out, distinct=nulls["held_out"].distinct)
    p_unrelated = p_values(score, against_unrelated, distinct=nulls["unrelated"].distinct)
    found = (p_held_out <= FPR) & (p_unrelated <= FPR)
    closer = score > neighbour_score  # False for a record without a score (NaN)
    return Scores(
        matching=matching.name,
        metrics=metrics,
        candidates=len(x),
        scarcest=_scarcest(truth, unrelated, len(x)),
        index=index,
        values=values,
        means={m.name: bootstrap_mean(values[m.name], seed=seed) for m in metrics},
        nulls=nulls,
        p_held_out=p_held_out,
        p_unrelated=p_unrelated,
        found=found,
        fraction_found=binomial_proportion(int(found.sum()), len(truth)),
        closer=closer,
        fraction_closer=binomial_proportion(int(closer.sum()), len(truth)),
        labels=_labels(reconstruction, truth, index),
        roc=roc(score, against_held_out, distinct=nulls["held_out"].distinct),
        lookalike=lookalike,
    )


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


def _scarcest(truth: Data, unrelated: Data, candidates: int) -> Scarcity:
    per_record = max(1.0, candidates / len(truth))
    classes = [
        Scarcity(
            label=int(label),
            held_out=int((unrelated.y == label).sum()),
            needed=ceil(per_record * int((truth.y == label).sum())),
        )
        for label in truth.y.unique()
    ]
    return min(classes, key=lambda c: c.held_out / c.needed)


def oriented(metric: Metric, values: Tensor) -> Tensor:
    """The values of a metric, negated where lower is better, so that larger is better."""
    return values if metric.higher_is_better else -values


def default_metrics(truth: Data) -> tuple[Metric, ...]:
    """The metrics for these records: SSIM first where its window fits, MSE first for table rows and tiny images."""
    pixels = (MSE, MAE, PSNR, NCC)
    if truth.is_image and min(truth.shape[1:]) >= SKIMAGE.window:
        return (SSIM, SSIM3, *pixels)
    return pixels
