"""What a metric is: a name, the scores of given pairs and of all pairs, and whether higher is better."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, final

import torch
from torch import Tensor

from remanence.errors import BadInput

Comparison: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@final
@dataclass(frozen=True, kw_only=True)
class Metric:
    """A score of candidates (first argument) against true records (second), both floats."""

    name: str
    paired: Comparison = field(repr=False)  # (n, ...) and (n, ...) -> (n,)
    pairwise: Comparison = field(repr=False)  # (m, ...) and (n, ...) -> (m, n)
    higher_is_better: bool
    needs_images: bool = False
    good: float | None = None  # the level that the literature calls a success, if it names one


def paired(compare: Comparison) -> Comparison:
    """Check the arguments of a comparison of the i-th candidate with the i-th record; compute in float32 or more."""

    @functools.wraps(compare)
    def guarded(candidates: Tensor, truth: Tensor) -> Tensor:
        check_records(candidates, truth)
        if len(candidates) != len(truth):
            message = (
                f"`candidates` must be as many as the truth's {len(truth)} records to be compared one by one, "
                f"got {len(candidates)}: match them first, or use `pairwise`"
            )
            raise BadInput(message, code="shape-mismatch", argument="candidates")
        return _compare(compare, candidates, truth)

    return guarded


def pairwise(compare: Comparison) -> Comparison:
    """Check the arguments of a comparison of every candidate with every record; compute in float32 or more."""

    @functools.wraps(compare)
    def guarded(candidates: Tensor, truth: Tensor) -> Tensor:
        check_records(candidates, truth)
        return _compare(compare, candidates, truth)

    return guarded


def normalised(metric: Metric, *, mean: Sequence[float], std: Sequence[float]) -> Metric:
    """The metric on images standardised by channel, because some papers score the normalised inputs of their nets."""
    return replace(
        metric,
        name=f"normalised_{metric.name}",
        paired=functools.partial(_normalised, metric.paired, mean, std),
        pairwise=functools.partial(_normalised, metric.pairwise, mean, std),
    )


def _normalised(
    compare: Comparison, mean: Sequence[float], std: Sequence[float], candidates: Tensor, truth: Tensor
) -> Tensor:
    def standard(x: Tensor) -> Tensor:
        shift, scale = (torch.tensor(values).to(x).view(-1, 1, 1) for values in (mean, std))
        return (x - shift) / scale

    return compare(standard(candidates), standard(truth))


def check_records(candidates: Tensor, truth: Tensor) -> None:
    """Refuse candidates and true records that cannot be compared."""
    for name, x in (("candidates", candidates), ("truth", truth)):
        if not x.is_floating_point():
            message = f"`{name}` must hold floats, got {x.dtype}: divide 8-bit pixels by 255 first"
            raise BadInput(message, code="wrong-type", argument=name)
        if x.ndim not in (2, 4):
            message = (
                f"`{name}` must be (n, features) or (n, channels, height, width), got {tuple(x.shape)}: "
                "add the dimensions of size 1"
            )
            raise BadInput(message, code="shape-mismatch", argument=name)
    if candidates.shape[1:] != truth.shape[1:]:
        message = (
            f"`candidates` must hold records of the truth's shape {tuple(truth.shape[1:])}, "
            f"got {tuple(candidates.shape[1:])}: resize them to it"
        )
        raise BadInput(message, code="shape-mismatch", argument="candidates")


# A candidate still attached to its attack's graph would keep every intermediate of every pair alive.
@torch.no_grad()
def _compare(compare: Comparison, candidates: Tensor, truth: Tensor) -> Tensor:
    dtype = torch.promote_types(candidates.dtype, truth.dtype)
    # Sums over thousands of pixels overflow or stall in half precision, and several kernels lack it on the CPU.
    work = torch.promote_types(dtype, torch.float32)
    return compare(candidates.to(work), truth.to(work)).to(dtype)
