"""Losses with the gradient of each record's loss with respect to its logits, exact to the last digit also where it is
nearly zero, and the product of that loss's Hessian with a direction of the logits.

Logits have the shape (..., records, outputs), labels (..., records); for `CrossEntropy` labels may be probabilities of
classes, of the shape of the logits.
"""

from dataclasses import dataclass
from functools import cache
from math import log
from typing import Protocol, TypeAlias, final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid, softplus

from remanence.errors import BadInput


class Loss(Protocol):
    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor: ...


@final
@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """The mean over the batch."""

    label_smoothing: float = 0.0  # as torch's: this probability is spread over all classes

    def __post_init__(self) -> None:
        if not isinstance(self.label_smoothing, float | int) or not 0 <= self.label_smoothing < 1:
            message = f"`label_smoothing` of CrossEntropy must be a number in [0, 1), got {self.label_smoothing!r}"
            raise BadInput(message, code="out-of-range", argument="label_smoothing")

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels, label_smoothing=self.label_smoothing)

    def grad_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The softmax minus one at the label: there it is minus the sum of the other classes, which 1 - p would round
        off. With probabilities in place of labels, the softmax minus these."""
        if self.label_smoothing:
            targets = labels if labels.is_floating_point() else _is_label(logits, labels).to(logits)
            return logits.softmax(-1) - targets.lerp(
                torch.full_like(targets, 1 / logits.shape[-1]), self.label_smoothing
            )
        if labels.is_floating_point():
            return logits.softmax(-1) - labels
        is_label = _is_label(logits, labels)
        others = logits.softmax(-1).masked_fill(is_label, 0.0)
        return torch.where(is_label, -others.sum(-1, keepdim=True), others)

    def log_odds(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The log odds of all other classes against the label, shape (..., records)."""
        others = logits.masked_fill(_is_label(logits, labels), -torch.inf).logsumexp(-1)
        return others - logits.gather(-1, labels[..., None])[..., 0]

    def hvp_logits(self, logits: Tensor, labels: Tensor, direction: Tensor) -> Tensor:
        probabilities = logits.softmax(-1)
        return probabilities * (direction - (probabilities * direction).sum(-1, keepdim=True))


@final
@dataclass(frozen=True, kw_only=True)
class Logistic:
    """The cross-entropy of one output, the log odds of class 1 against class 0; the mean over the batch."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return softplus(_signs(labels, logits) * -logits[..., 0]).mean()

    def grad_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        signs = _signs(labels, logits)
        return (-signs * torch.sigmoid(-signs * logits[..., 0]))[..., None]

    def log_odds(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The log odds of the other class against the label, shape (..., records)."""
        return -_signs(labels, logits) * logits[..., 0]

    def hvp_logits(self, logits: Tensor, labels: Tensor, direction: Tensor) -> Tensor:
        return torch.sigmoid(logits) * torch.sigmoid(-logits) * direction


@final
@dataclass(frozen=True, kw_only=True)
class SquaredError:
    """The squared error of one output, mean over the batch; class k stands for the target `values[k]`."""

    values: tuple[float, ...] = (-1.0, 1.0)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits[:, 0] - self._targets(labels, logits)).square().mean()

    def grad_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        return 2 * (logits - self._targets(labels, logits)[..., None])

    def hvp_logits(self, logits: Tensor, labels: Tensor, direction: Tensor) -> Tensor:
        return 2 * direction

    def _targets(self, labels: Tensor, like: Tensor) -> Tensor:
        return _table(self.values, like.dtype, like.device)[labels]


@final
@dataclass(frozen=True, kw_only=True)
class LogOf:
    """The log of a mean loss, also where the loss itself is below the smallest float: its gradient is that of the loss
    divided by the loss, however small."""

    loss: CrossEntropy | Logistic

    def __post_init__(self) -> None:
        if isinstance(self.loss, CrossEntropy) and self.loss.label_smoothing:
            message = "`loss` must be without label smoothing, with which it does not fall to zero"
            raise BadInput(message, code="unsupported-training", argument="loss")

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        per_example = _log_softplus(self.loss.log_odds(logits, labels))
        return per_example.logsumexp(-1) - log(per_example.shape[-1])

    def grad_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The gradient for each record, scaled as if the log of the mean were a mean too."""
        odds = self.loss.log_odds(logits, labels)
        magnitudes = (logsigmoid(odds) - self(logits, labels)[..., None]).exp()[..., None]
        if isinstance(self.loss, Logistic):
            return -_signs(labels, logits)[..., None] * magnitudes
        is_label = _is_label(logits, labels)
        return torch.where(is_label, -magnitudes, magnitudes * logits.masked_fill(is_label, -torch.inf).softmax(-1))


KnownLoss: TypeAlias = CrossEntropy | Logistic | SquaredError


def count_classes(loss: Loss, outputs: int) -> int:
    """How many labels there are under `loss` for a network of so many outputs: one for each value of a squared error,
    two under a logistic loss, under any other as many as outputs."""
    if isinstance(loss, SquaredError):
        return len(loss.values)
    return 2 if isinstance(loss, Logistic) else outputs


def _is_label(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether a class is the label, shape (..., records, classes)."""
    return labels[..., None] == torch.arange(logits.shape[-1], device=logits.device)


def _log_softplus(x: Tensor) -> Tensor:
    """log(log(1 + e^x)), which is x itself where e^x is lost next to one."""
    low = log(torch.finfo(x.dtype).eps)
    return torch.where(x < low, x, softplus(x.clamp_min(low)).log())


@cache
def _table(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The targets as a tensor, created once and on the device: a captured CUDA graph cannot copy it there."""
    return torch.stack([torch.full((), value, dtype=dtype, device=device) for value in values])


def _signs(labels: Tensor, like: Tensor) -> Tensor:
    """-1 for class 0, 1 for class 1."""
    return 2 * labels.to(like) - 1
