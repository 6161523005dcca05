"""Labels that are given, and labels that are moved with the records: of each the shares of the classes. Ours."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.errors import BadInput
from remanence.training import CrossEntropy, Loss

# Logs of a share that count as the whole range of a pixel, so that one rate suits both: of 1, 4, 8 and 16 chosen on 20
# digits, seeds 0 to 2. A label that is given begins with e times the share of another class.
_PACE = 16.0


def given(labels: Sequence[int], candidates: int, classes: int) -> Tensor:
    wrong = sorted({label for label in labels if not 0 <= label < classes})
    if len(labels) != candidates or wrong:
        raise BadInput(
            f"`labels` must hold one of 0..{classes - 1} for each of the {candidates} candidates, got {len(labels)}"
            f"{f' with {wrong}' if wrong else ''}"
        )
    return torch.tensor(labels)


def leanings(labels: Tensor | None, count: int, classes: int, loss: Loss, *, like: Tensor) -> Tensor:
    """To begin with, to these labels or to all classes alike: (record, class)."""
    if not isinstance(loss, CrossEntropy):
        raise BadInput(f"`soft_labels` are shares of classes under CrossEntropy, got {type(loss).__name__}")
    return like.new_zeros(count, classes) if labels is None else one_hot(labels, classes).to(like) / _PACE


def shares(leanings: Tensor) -> Tensor:
    return (_PACE * leanings).softmax(-1)
