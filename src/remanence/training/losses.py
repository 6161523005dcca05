"""Losses; the slope of each record's own loss by its logits, to the last digit also where it is nearly zero; and how
that slope changes along a direction of the logits."""

from dataclasses import dataclass
from functools import cache
from math import log
from typing import Protocol, TypeAlias, final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid, softplus


class Loss(Protocol):
    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor: ...


@final
@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """Mean over the batch."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels)

    def slopes(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The softmax, less one at the label: there it is minus the sum of the others, which 1 - p would round off. Or
        less the shares of the classes that stand in place of labels."""
        if labels.is_floating_point():
            return logits.softmax(-1) - labels
        own = labels[..., None] == torch.arange(logits.shape[-1], device=logits.device)
        others = logits.softmax(-1).masked_fill(own, 0.0)
        return torch.where(own, -others.sum(-1, keepdim=True), others)

    def log_odds(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Of all other classes against the label."""
        own = labels[..., None] == torch.arange(logits.shape[-1], device=logits.device)
        others = logits.masked_fill(own, -torch.inf).logsumexp(-1)
        return others - logits.gather(-1, labels[..., None])[..., 0]

    def slopes_along(self, logits: Tensor, labels: Tensor, direction: Tensor) -> Tensor:
        shares = logits.softmax(-1)
        return shares * (direction - (shares * direction).sum(-1, keepdim=True))


@final
@dataclass(frozen=True, kw_only=True)
class Logistic:
    """Cross-entropy of one output, the log odds of class 1 against class 0; mean over the batch."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return softplus(_signs(labels, logits) * -logits[..., 0]).mean()

    def slopes(self, logits: Tensor, labels: Tensor) -> Tensor:
        signs = _signs(labels, logits)
        return (-signs * torch.sigmoid(-signs * logits[..., 0]))[..., None]

    def log_odds(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Of the other class against the label."""
        return -_signs(labels, logits) * logits[..., 0]

    def slopes_along(self, logits: Tensor, labels: Tensor, direction: Tensor) -> Tensor:
        return torch.sigmoid(logits) * torch.sigmoid(-logits) * direction


@final
@dataclass(frozen=True, kw_only=True)
class SquaredError:
    """Of one output, mean over the batch; class k stands for the number `values[k]`."""

    values: tuple[float, ...] = (-1.0, 1.0)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits[:, 0] - self._numbers(labels, logits)).square().mean()

    def slopes(self, logits: Tensor, labels: Tensor) -> Tensor:
        return 2 * (logits - self._numbers(labels, logits)[..., None])

    def slopes_along(self, logits: Tensor, labels: Tensor, direction: Tensor) -> Tensor:
        return 2 * direction

    def _numbers(self, labels: Tensor, like: Tensor) -> Tensor:
        return _table(self.values, like.dtype, like.device)[labels]


@final
@dataclass(frozen=True, kw_only=True)
class LogOf:
    """The log of a mean loss, also where the loss itself is below any number: records pull by their shares of it,
    however little is left."""

    loss: CrossEntropy | Logistic

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        own = _log_softplus(self.loss.log_odds(logits, labels))
        return own.logsumexp(-1) - log(own.shape[-1])

    def slopes(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Of each record as if the log of the mean were a mean too."""
        odds = self.loss.log_odds(logits, labels)
        pulls = (logsigmoid(odds) - self(logits, labels)[..., None]).exp()[..., None]
        if isinstance(self.loss, Logistic):
            return -_signs(labels, logits)[..., None] * pulls
        own = labels[..., None] == torch.arange(logits.shape[-1], device=logits.device)
        return torch.where(own, -pulls, pulls * logits.masked_fill(own, -torch.inf).softmax(-1))


def _log_softplus(x: Tensor) -> Tensor:
    """log(log(1 + e^x)), which is x itself where e^x is lost beside one."""
    least = log(torch.finfo(x.dtype).eps)
    return torch.where(x < least, x, softplus(x.clamp_min(least)).log())


@cache
def _table(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Made once, and on the device: a step that is captured cannot copy it there."""
    return torch.stack([torch.full((), value, dtype=dtype, device=device) for value in values])


KnownLoss: TypeAlias = CrossEntropy | Logistic | SquaredError


def _signs(labels: Tensor, like: Tensor) -> Tensor:
    """-1 for class 0 and 1 for class 1."""
    return 2 * labels.to(like) - 1
