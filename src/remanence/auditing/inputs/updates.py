"""What a federated client sends, from the weights before and after its training.

    shown = update_release(net, before, after, training, batch_size=16, shape=(1, 28, 28), num_classes=10)
    audit(shown.release, truth=..., held_out=...)

Where the client's training can be simulated step by step, the release is a `LocalUpdate`. Otherwise its update is taken
for one gradient, and `weaker` says why: attacks then find less than an attacker could who knows more.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from remanence.bounds import UNIT, Bounds, centre, sample
from remanence.engine import loss_gradient, updated_names
from remanence.errors import BadInput
from remanence.models import apply, running_statistics
from remanence.releases import Gradient, LocalUpdate
from remanence.releases.releases import BatchNormMode
from remanence.search import balanced
from remanence.training import CrossEntropy, Logistic, Loss, Training
from remanence.types import Params

_NOISE_RECORDS = 16  # whose gradient gives the length of one that is known up to its length


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class UpdateRelease:
    """A release, and why it says less than what was sent; None where it does not."""

    release: LocalUpdate | Gradient
    weaker: str | None


def update_release(
    model: nn.Module,
    before: Params,
    after: Params,
    training: Training | None,
    *,
    batch_size: int | None,
    labels: Tensor | None = None,
    shape: tuple[int, ...],
    num_classes: int,
    bounds: Bounds = UNIT,
) -> UpdateRelease:
    """The release of a client that trained on `batch_size` records; `training` is None where it is not known. What is
    not in `after` was not sent: a client may train a head or adapters alone. BatchNorm is taken to be in training mode
    where its statistics changed, or were not sent with its weights."""
    mode, statistics = _batch_norm(model, before, after)
    after = before | after
    _check_weights(model, before, after)
    update = {name: after[name] - before[name] for name in updated_names(model, before, after)}
    if not update:
        message = "the weights before and after are the same: the client sent nothing, give those of another round"
        raise BadInput(message, code="conflict", argument="after")
    common = {"model": model, "at": before, "labels": labels, "batch_size": batch_size}
    common |= {"shape": shape, "bounds": bounds, "batch_norm": mode}
    if training is not None:
        with suppress(BadInput):  # the class says which trainings can be simulated
            known = {"update": update, "training": training, "statistics": statistics}
            return UpdateRelease(release=LocalUpdate(**common, **known), weaker=None)  # type: ignore[arg-type]
    loss = _loss(model, before, shape) if training is None else training.loss
    length = _typical_length(model, before, list(update), shape, num_classes, loss, bounds)
    factor = length / float(torch.stack([u.norm() for u in update.values()]).norm())
    gradient = {name: -factor * u for name, u in update.items()}
    release = Gradient(**common, gradient=gradient, loss=loss)  # type: ignore[arg-type]
    unused = [] if statistics is None else ["BatchNorm's statistics are those of many batches, and are not compared"]
    return UpdateRelease(release=release, weaker="; ".join([_reason(training), *unused]))


def _check_weights(model: nn.Module, before: Params, after: Params) -> None:
    for argument, params in (("before", before), ("after", after)):
        for name, p in model.named_parameters():
            got = tuple(params[name].shape) if name in params else None
            if got != tuple(p.shape):
                message = f"`{argument}` must hold the weights of the model: `{name}` is {tuple(p.shape)}, got {got}"
                raise BadInput(message, code="shape-mismatch", argument=argument)
            if not bool(params[name].isfinite().all()):
                message = f"`{argument}` holds NaN or infinite values in `{name}`: the client's training diverged"
                raise BadInput(message, code="not-finite", argument=argument)


def _batch_norm(model: nn.Module, before: Params, sent: Params) -> tuple[BatchNormMode, Params | None]:
    """The mode of the client's BatchNorm, and its running statistics where it sent them and they changed."""
    names = running_statistics(model)
    if not names or not all(name in before for name in names):
        return "frozen", None
    if all(name in sent for name in names):
        changed = any(not torch.equal(before[name], sent[name]) for name in names)
        return ("training", {name: sent[name] for name in names}) if changed else ("frozen", None)
    weights = {f"{name.rpartition('.')[0]}.weight" for name in names}
    trained = any(name in sent and not torch.equal(before[name], sent[name]) for name in weights)
    return ("training" if trained and not any(name in sent for name in names) else "frozen"), None


def _reason(training: Training | None) -> str:
    if training is None:
        return "the client's training is not known (give it with --local): its update is taken for one gradient"
    return "the client's training cannot be simulated: its update is taken for a gradient of unknown length"


def _loss(model: nn.Module, params: Params, shape: tuple[int, ...]) -> Loss:
    with torch.no_grad():
        logits = apply(model, params, _like(params).new_zeros(2, *shape))
    return CrossEntropy() if logits.ndim > 1 and logits.shape[-1] > 1 else Logistic()


def _typical_length(
    model: nn.Module,
    params: Params,
    names: list[str],
    shape: tuple[int, ...],
    num_classes: int,
    loss: Loss,
    bounds: Bounds,
) -> float:
    """The norm of the gradient of records of noise, one of each class or more."""
    count = max(_NOISE_RECORDS, num_classes)
    x = sample(count, *shape, bounds=bounds, generator=torch.Generator().manual_seed(0)).to(_like(params))
    labels = balanced(count, num_classes).to(x.device)
    try:
        grads = loss_gradient(model, params, x, labels, loss=loss)
    except Exception:  # of a forward pass that takes no noise, as embeddings of categories do not
        grads = loss_gradient(model, params, torch.full_like(x, centre(bounds)), labels, loss=loss)
    return float(torch.stack([grads[name].norm() for name in names]).norm())


def _like(params: Params) -> Tensor:
    return next(p for p in params.values() if p.is_floating_point())
