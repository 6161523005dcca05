"""Label inference from a client's gradient: how many records of each class a batch has.

For mean cross-entropy the gradient of the last bias is mean(softmax) - (fraction of each class), the mean being over
the batch; label smoothing s over C classes makes a fraction f into (1 - s) f + s / C. Zhao, Mopuri, Bilen, "iDLG"
(2020) infer the label of one record from its sign; Wainakh et al., "User-Level Label Leakage from Gradients in
Federated Learning" (PoPETs 2022), counts. One output under a logistic loss is the second of two classes, the first
having a logit of zero and minus its gradient.
"""

import itertools

import torch
from torch import Tensor

from remanence.engine import batch_gradient, loss_gradient
from remanence.errors import NotEnoughKnowledge
from remanence.models import apply, apply_to_batch
from remanence.progress import SOON, track
from remanence.releases import KnowsGradient, KnowsUpdate
from remanence.training import CrossEntropy, Logistic
from remanence.types import Params

_ROUNDING = 16  # times the precision of the dtype


def infer_labels(release: KnowsUpdate, looks_like: Tensor) -> Tensor:
    """The labels of the batch, sorted, one for each of its `batch_size` records.

    A class with an entry below -s / C is in the batch, whatever the weights, for a softmax is positive; without
    smoothing that is the answer for one record. Where a defense adds noise or rounds, or an optimizer normalises steps,
    it is likely, no longer certain, and still a good guess. The remaining labels go to the classes with the largest
    remaining counts, the mean softmax being that of the records `looks_like`: public ones, noise, or candidates. Where
    the client took several steps, in which the softmax follows the labels, these are then simulated.
    """
    if release.batch_size is None:
        message = "inferring labels needs `batch_size`, the number of labels: give it"
        raise NotEnoughKnowledge(message, code="not-enough-knowledge", argument="batch_size")
    loss = release.loss
    last = _output_bias(release, looks_like[:2]) if isinstance(loss, CrossEntropy | Logistic) else None
    if last is None or not isinstance(loss, CrossEntropy | Logistic):
        message = (
            "labels are inferred from the gradient of the last layer's bias under cross-entropy or a "
            "logistic loss, which this release lacks: it must show `labels`"
        )
        raise NotEnoughKnowledge(message, code="not-enough-knowledge", argument="labels")
    bias, looks_like = _by_class(release, release.sent[last]), looks_like.to(release.at[last])
    logits = _logits(release, release.at, looks_like)
    if isinstance(loss, Logistic):
        logits = torch.cat([torch.zeros_like(logits), logits], dim=-1)
    softmax = logits.softmax(dim=-1, dtype=_wide(bias)).mean(dim=0)
    given = softmax, loss.label_smoothing if isinstance(loss, CrossEntropy) else 0.0, release.batch_size
    present, counts = _present_and_counts(bias, *given)
    if not isinstance(release, KnowsGradient):
        counts = _exchanged(release, last, looks_like, counts, present)
    elif release.defenses:
        ratio = _defense_ratio(release, last, looks_like, _labels(counts))
        counts = _present_and_counts(bias / ratio, *given)[1]
    return _labels(counts)


def _by_class(release: KnowsUpdate, bias: Tensor) -> Tensor:
    """(classes,): the gradient or update of the last bias for each class."""
    return torch.cat([-bias, bias]) if isinstance(release.loss, Logistic) else bias


def _wide(bias: Tensor) -> torch.dtype:
    return torch.promote_types(bias.dtype, torch.float32)


def _present_and_counts(bias: Tensor, softmax: Tensor, smoothing: float, batch_size: int) -> tuple[Tensor, Tensor]:
    """The classes whose entry shows that they are in the batch, and the number of records of each class."""
    uniform = smoothing / len(bias)
    below = bias < -uniform * (1 + _ROUNDING * torch.finfo(bias.dtype).eps)
    present = bias.argsort()[: int(below.sum())][:batch_size]
    return present, _counts((softmax - bias - uniform) / (1 - smoothing), present, batch_size)


def _output_bias(release: KnowsUpdate, x: Tensor) -> str | None:
    """The name of the parameter that is added to the logits, wherever the network holds it; None where none was sent.

    Nothing else shifts the logits of every record by as much as it is shifted itself, but for one number for all
    classes, which a log-softmax takes away. The shift is as large as the logits, which are rounded: those of float32 as
    those of float16, for networks that compute in TF32.
    """
    for name, bias in release.at.items():
        if name in release.sent and bias.ndim == 1:
            logits = _logits(release, release.at, x.to(bias))
            if logits.shape[-1] == len(bias):
                size = 1 + logits.abs().max()
                shift = (size * torch.linspace(1, 2, len(bias)).to(bias)).to(bias)
                change = _logits(release, {**release.at, name: bias + shift}, x.to(bias)) - logits - shift
                if isinstance(release.loss, CrossEntropy):
                    change = change - change.mean(-1, keepdim=True)
                rounding = max(torch.finfo(bias.dtype).eps, torch.finfo(torch.float16).eps)
                if float(change.abs().max() / size) < _ROUNDING * rounding:
                    return name
    return None


def _logits(release: KnowsUpdate, params: Params, x: Tensor) -> Tensor:
    """As the client's network computes them: with BatchNorm in training mode by the statistics of these records."""
    if release.batch_norm == "training":
        return apply_to_batch(release.model, params, x)[0]
    return apply(release.model, params, x)


def _counts(fractions: Tensor, present: Tensor, batch_size: int) -> Tensor:
    """(classes,): the number of records of each class, at least one of those that are `present`."""
    counts = torch.zeros_like(fractions, dtype=torch.int64)
    counts[present] += 1
    for _ in range(batch_size - len(present)):
        counts[(fractions * batch_size - counts).argmax()] += 1
    return counts


def _defense_ratio(release: KnowsGradient, last: str, looks_like: Tensor, labels: Tensor) -> Tensor:
    """By which factor the defenses scale the gradient of the last bias, for records such as `looks_like`."""
    count = min(len(looks_like), len(labels))
    x, labels = looks_like[:count], labels[:count]
    defended = release.simulate(x, labels)[last]
    given = release.model, release.at, x, labels
    by_batch = release.batch_norm == "training"
    plain = batch_gradient(*given, loss=release.loss)[0] if by_batch else loss_gradient(*given, loss=release.loss)
    ratio: Tensor = defended.norm() / (plain[last] * (defended != 0)).norm()
    return ratio.nan_to_num(nan=1.0)


def _exchanged(release: KnowsUpdate, last: str, looks_like: Tensor, counts: Tensor, present: Tensor) -> Tensor:
    """The counts after exchanging one label for another as long as the simulated update of the last bias gets closer to
    the one that was sent."""
    missing = _missing(release, last, looks_like, counts)
    for _ in track(itertools.count(), total=int(counts.sum()), label="labels", after=SOON, may_stop=True):
        spare, other = counts.clone(), counts.clone()
        spare[present] -= 1
        if not bool(spare.any()):
            break
        other[missing.where(spare > 0, torch.inf).argmin()] -= 1
        other[missing.argmax()] += 1
        then = _missing(release, last, looks_like, other)
        if not then.norm() < missing.norm():
            break
        counts, missing = other, then
    return counts


def _missing(release: KnowsUpdate, last: str, looks_like: Tensor, counts: Tensor) -> Tensor:
    """(classes,): how many records of each class are missing, by the update that these labels would send."""
    labels = _labels(counts)
    times = max(1, len(looks_like) // len(labels))
    x = looks_like[torch.arange(times * len(labels), device=looks_like.device) % len(looks_like)]
    away = release.simulate(x, labels.repeat(times))[last] - release.sent[last]
    return _by_class(release, away) * len(labels)


def _labels(counts: Tensor) -> Tensor:
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
