"""Labels of candidates: balanced over the classes, given, or optimised with the records as probabilities (ours)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.errors import BadInput, check_min
from remanence.training import CrossEntropy, Loss

# Label logits over this factor are the variables of a search, so that the learning rate of pixels suits them too: of 1,
# 4, 8 and 16 chosen on 20 digits, seeds 0 to 2. The initial odds of a label that is given are e to 1.
_LOGIT_SCALE = 16.0


@final
@dataclass(frozen=True, kw_only=True)
class SoftLabels:
    """Labels that are optimised with the records: a probability of each class for each candidate."""

    initial: tuple[int, ...] | None = None  # the labels that are likeliest at first; None: all classes alike

    def __post_init__(self) -> None:
        check_min(self, initial=0)


def balanced(count: int, classes: int) -> Tensor:
    """Labels (count,) with as many candidates of each class, one class after the other."""
    return torch.arange(count) * classes // count


def given(labels: Sequence[int], candidates: int, classes: int) -> Tensor:
    """The labels of a field `labels` as a tensor (candidates,), refused where they do not fit."""
    wrong = sorted({label for label in labels if not 0 <= label < classes})
    if len(labels) != candidates or wrong:
        message = (
            f"`labels` must hold one of 0..{classes - 1} for each of the {candidates} candidates, got {len(labels)}"
            f"{f' with {wrong}' if wrong else ''}"
        )
        raise BadInput(message, code="out-of-range" if wrong else "shape-mismatch", argument="labels")
    return torch.tensor(labels)


def initial_logits(labels: Tensor | None, count: int, classes: int, loss: Loss, *, like: Tensor) -> Tensor:
    """Initial variables (count, classes) of soft labels: in favour of `labels`, or with None of no class."""
    if not isinstance(loss, CrossEntropy):
        message = (
            f"soft labels are probabilities of classes under CrossEntropy, got a training with {type(loss).__name__}: "
            "give `labels`"
        )
        raise BadInput(message, code="unsupported-training", argument="labels")
    return like.new_zeros(count, classes) if labels is None else one_hot(labels, classes).to(like) / _LOGIT_SCALE


def probabilities(logits: Tensor) -> Tensor:
    """The probabilities (count, classes) that the variables of soft labels stand for."""
    return (_LOGIT_SCALE * logits).softmax(-1)
