"""How a model fits the records: accuracy and loss, sets that are swapped, labels from 1, updates of other records."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from remanence.auditing.answer.report import Check
from remanence.auditing.checks.outputs import (
    activation_of,
    before_activation,
    endpoints,
    fitted_loss,
    is_correct,
    logits_of,
    losses_of,
    released_loss,
)
from remanence.auditing.checks.records import distinct, evenly
from remanence.errors import BadInput
from remanence.metrics.exchangeability import rank_sum_test
from remanence.metrics.statistics import auc
from remanence.models import running_statistics
from remanence.releases import KnowsUpdate, LocalUpdate
from remanence.training import SquaredError
from remanence.types import Data, Params

_MIN_RECORDS = 32  # with fewer an accuracy says little
_BETTER = 0.05  # than the accuracy of naming the commonest class: from it on a model knows a set
_MAX_CLASSES = 20  # targets of a squared error: with more it is a regression
_LEVEL = 1e-4  # of a test that stops an audit
_SWAPPED_AUC, _SWAPPED_LOSS = 0.35, 1.5
OPPOSITE = -0.3  # cosine of an update with that of the records
_EXPLAINED, _UNEXPLAINED = 0.9, 0.5
_LONGER = 3.0  # times its length: orders of mini-batches and dropout change it by less


def check_fit(
    release: Any,
    before: Params | None,
    after: Params | None,
    private: Data,
    held_out: Data,
    numbers: dict[str, float | None],
) -> list[Check]:
    """Accuracy and loss on both sets; whether they are swapped, the labels shifted, or the model knows neither."""
    params = after if after is not None else before
    assert params is not None
    private, held_out = distinct(private), distinct(held_out)
    outputs = [logits_of(release.model, params, data.x) for data in (private, held_out)]
    loss = fitted_loss(release, torch.cat(outputs), torch.cat([private.y, held_out.y]))
    activation = activation_of(torch.cat(outputs), loss)
    logits = [before_activation(z, activation) for z in outputs]
    right = [is_correct(z, data.y, loss) for z, data in zip(logits, (private, held_out), strict=True)]
    each = [losses_of(z, data.y, loss) for z, data in zip(logits, (private, held_out), strict=True)]
    accuracy = [float(r.double().mean()) for r in right]
    mean = [float(v.double().mean()) for v in each]
    chance = float(torch.cat([private.y, held_out.y]).bincount().max()) / (len(private) + len(held_out))
    numbers |= {
        "private_accuracy": accuracy[0],
        "held_out_accuracy": accuracy[1],
        "private_loss": mean[0],
        "held_out_loss": mean[1],
        "commonest_class": chance,
    }
    where = "" if after is not None else " at the weights before the update"
    said = f"private records {accuracy[0]:.0%}, loss {mean[0]:.3g}; held-out ones {accuracy[1]:.0%}, {mean[1]:.3g}"
    warned = [] if activation is None else [_probabilities(activation)]
    if after is not None and loss != released_loss(release):
        warned = [_targets()]
    given = [losses_of(z, data.y, loss) for z, data in zip(outputs, (private, held_out), strict=True)]  # as of a base
    regression = isinstance(loss, SquaredError) and len(loss.values) > _MAX_CLASSES
    better = min(_BETTER, (1 - chance) / 2)  # where one class is nearly all, half of the errors are fewer points
    knows_held_out = regression or accuracy[1] > chance + better
    if after is not None and knows_held_out and (stop := _swapped(release, before, private, held_out, given)):
        return [stop]
    if shifted := _from_one(logits, private, held_out, right):
        return [shifted]
    if regression:
        text = f"Squared error{where}: private records {mean[0]:.3g}, held-out ones {mean[1]:.3g}."
        return [Check(name="accuracy", status="ok", text=text)]
    if after is not None and max(accuracy) <= chance + better and len(private) + len(held_out) >= _MIN_RECORDS:
        text = f"The model is hardly better than naming the commonest class ({said}; commonest class {chance:.0%}): "
        if isinstance(release, KnowsUpdate):  # whose records are compared with what was sent
            return [Check(name="accuracy", status="note", text=f"{text}an update of the first rounds.")]
        text += (
            "these are not the weights, the labels or the preprocessing that belong together, or nothing was learnt."
        )
        return [*warned, Check(name="accuracy", status="warning", text=text)]
    return [*warned, Check(name="accuracy", status="ok", text=f"Accuracy{where}: {said}.")]


def check_descent(release: Any, before: Params, after: Params, private: Data) -> list[Check]:
    """A warning where most private records fit the base far better than the weights that were trained on them."""
    from scipy.stats import binomtest

    if not _same_names(before, after):
        return []
    loss = released_loss(release)
    first, last = (
        losses_of(logits_of(release.model, params, private.x), private.y, loss) for params in (before, after)
    )
    p = binomtest(int((last > first).sum()), len(private), 0.5, alternative="greater").pvalue
    if p > _LEVEL or float(last.mean()) < _SWAPPED_LOSS * float(first.mean()):
        return []
    text = (
        f"The private records fit the base far better than the weights (mean loss {float(first.mean()):.3g} and "
        f"{float(last.mean()):.3g}): the two are swapped (`--weights` is what you publish, `--base` what the training "
        "started from), or the training was of other records."
    )
    return [Check(name="base", status="warning", text=text)]


def _probabilities(activation: str) -> Check:
    """The warning of outputs that are probabilities: attacks compute losses and gradients from logits."""
    text = (
        f"The model puts out probabilities: attacks take outputs for logits, and with a {activation} at the end they "
        "search for the wrong thing and find less than an attacker would. Name a function that returns it without the "
        f"{activation}."
    )
    return Check(name="outputs", status="warning", text=text)


def _targets() -> Check:
    """The warning of one output that was trained to be 0 or 1 by a squared error."""
    text = (
        "The model's one output is near 0 or 1, the targets of a squared error: membership is measured by that, but "
        "attacks take the output for the log odds of class 1, or for targets of -1 and 1, and find less than an "
        "attacker would. Name a function that returns a wrapper whose `forward(x)` gives 2 * output - 1, and say "
        '`loss = "mse"` in the recipe, with all that it takes to simulate the training.'
    )
    return Check(name="outputs", status="warning", text=text)


def _swapped(
    release: Any, before: Params | None, private: Data, held_out: Data, each: Sequence[Tensor]
) -> Check | None:
    """A stop where held-out records fit far better than private ones; from a base, where training helped them more."""
    ours, theirs = each
    if before is not None and _same_names(before, endpoints(release)[1]):
        loss = released_loss(release)
        start = [losses_of(logits_of(release.model, before, d.x), d.y, loss) for d in (private, held_out)]
        scores = [first - last for first, last in zip(start, each, strict=True)]
    else:
        scores = [-ours, -theirs]
    area = auc(scores[0].double().cpu(), scores[1].double().cpu())
    p = rank_sum_test(scores[1].cpu(), scores[0].cpu(), held_out.y.cpu(), private.y.cpu())
    if area > _SWAPPED_AUC or p > _LEVEL or float(ours.mean()) < _SWAPPED_LOSS * float(theirs.mean()):
        return None
    text = (
        f"The held-out records fit the model far better than the private ones (mean loss {float(theirs.mean()):.3g} "
        f"and {float(ours.mean()):.3g}): the two are swapped, or the private labels are not those of the training. "
        "`--data` holds what was trained on, with the labels it was trained with, `--held-out` others."
    )
    return Check(name="held-out", status="stop", text=text)


def _same_names(one: Params, other: Params | None) -> bool:
    return other is not None and all(name in one and one[name].shape == p.shape for name, p in other.items())


def _from_one(logits: Sequence[Tensor], private: Data, held_out: Data, right: Sequence[Tensor]) -> Check | None:
    """A stop where labels begin at 1 and one less fits far better."""
    from scipy.stats import binomtest

    labels, every = torch.cat([private.y, held_out.y]), torch.cat(list(logits))
    if int(labels.min()) != 1 or every.shape[1] == 1:
        return None
    stated, shifted = torch.cat(list(right)), is_correct(every, labels - 1)
    gained, lost = int((shifted & ~stated).sum()), int((stated & ~shifted).sum())
    if gained <= 2 * lost or binomtest(gained, gained + lost, 0.5, alternative="greater").pvalue > _LEVEL:
        return None
    text = (
        f"The labels count from 1: the model is right on {float(shifted.double().mean()):.0%} of the records if 1 is "
        f"subtracted, as given on {float(stated.double().mean()):.0%}. Subtract 1."
    )
    return Check(name="labels", status="stop", text=text)


def check_update(release: KnowsUpdate, private: Data, held_out: Data, numbers: dict[str, float | None]) -> list[Check]:
    """Whether the private records cause the update, as far as it can be simulated."""
    sent = torch.cat([g.flatten() for g in release.sent.values()])
    if not bool(sent.isfinite().all()) or not bool(sent.any()):
        text = "The update is zero or not finite: nothing was trained, or the training diverged. Give another."
        return [Check(name="update", status="stop", text=text)]
    checks = []
    if release.batch_size is not None and release.batch_size != len(private):
        text = f"The update is of {release.batch_size} records, and {len(private)} are given as private."
        checks.append(Check(name="data", status="warning", text=text))
    try:
        simulated = _simulated(release, private)
        ours, theirs = _cosine(sent, simulated), _cosine(sent, _simulated(release, evenly(held_out, len(private))))
    except (BadInput, RuntimeError) as refusal:
        return [*checks, Check(name="update", status="note", text=f"The update cannot be simulated: {refusal}")]
    numbers |= {"update_cosine": ours, "update_cosine_held_out": theirs}
    if theirs > max(ours, 0.0) + 0.3 and theirs > _UNEXPLAINED:
        text = (
            f"The held-out records explain the update (cosine {theirs:.2f}), the private ones do not ({ours:.2f}): the "
            "two are swapped."
        )
        return [*checks, Check(name="held-out", status="stop", text=text)]
    if ours < OPPOSITE:
        text = (
            f"The update points away from what the private records cause (cosine {ours:.2f}): the weights before and "
            "after it are swapped (`--before` is what the server sent, `--after` what came back), or it is one of "
            "other records."
        )
        return [*checks, Check(name="update", status="warning", text=text)]
    length = _check_length(release, sent, simulated) if ours >= _UNEXPLAINED else []
    checks += length
    if ours < _EXPLAINED:
        text = (
            f"Simulated on the private records, the update has a cosine of {ours:.2f} with the one that was sent: the "
            "weights before it, the records, their preprocessing or the local training are not quite those stated, "
            f"or a defense changed it.{_assumed_of_batch_norm(release)}"
        )
        return [*checks, Check(name="update", status="warning" if ours < _UNEXPLAINED else "note", text=text)]
    if length:
        return checks
    return [
        *checks,
        Check(name="update", status="ok", text=f"The private records explain the update (cosine {ours:.2f})."),
    ]


def _check_length(release: KnowsUpdate, sent: Tensor, simulated: Tensor) -> list[Check]:
    """A warning where the stated local training makes a far longer or shorter update than was sent."""
    times = float(sent.double().norm() / simulated.norm().clamp_min(1e-300))
    if not isinstance(release, LocalUpdate) or 1 / _LONGER < times < _LONGER:
        return []
    text = (
        f"The update that was sent is {times:.2g} times as long as the private records cause by the stated local "
        "training: the learning rate, momentum, epochs or batch size of `--local` are not those of the client, or a "
        "defense changed it. Give them as they were, or attacks may find less than possible."
    )
    return [Check(name="update", status="warning", text=text)]


def _assumed_of_batch_norm(release: KnowsUpdate) -> str:
    """What to do where no statistics say in which mode a client's BatchNorm was."""
    if release.statistics is not None or not running_statistics(release.model):
        return ""
    taken = "frozen, as no statistics that changed were sent"
    if release.batch_norm == "training":
        taken = "in training mode, as its weights were sent without its statistics"
    return (
        f" BatchNorm is taken to be {taken}: if it was not, give the whole state dict of the client, with its buffers."
    )


def _simulated(release: KnowsUpdate, data: Data) -> Tensor:
    simulated = release.simulate(data.x, data.y)
    return torch.cat([simulated[name].detach().flatten() for name in release.sent]).double()


def _cosine(sent: Tensor, simulated: Tensor) -> float:
    sent = sent.double()
    return float(torch.dot(sent, simulated) / (sent.norm() * simulated.norm()).clamp_min(1e-300))
