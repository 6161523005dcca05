"""What a model says of records: logits, the loss of each record, whether it is classified correctly."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from remanence.errors import BadInput
from remanence.models import apply, layer_of
from remanence.releases import KnowsFinal
from remanence.training import CrossEntropy, SquaredError
from remanence.types import Data, Params

_BATCH = 256
_SUM = 1e-3  # of probabilities, from 1
_FAR, _LEVEL = 1.5, 1e-4  # of the targets' variance: the squared error of outputs; of the test that they are targets


def checked_logits(model: Any, params: Params, x: Tensor) -> Tensor:
    """(records, outputs): the logits of records `x`, refused with the way out where the model takes no batch of
    records, or gives anything but a row of numbers for each."""
    shape = tuple(x.shape[1:])
    try:
        with torch.no_grad():
            given: Any = apply(model, params, x)
    except BadInput:
        raise
    except Exception as fault:  # the forward pass is the user's, and may raise anything
        message = (
            f"The model does not take records of the shape {shape}: {str(fault).partition(chr(10))[0]}. Give records "
            "as the model takes them, or the model that was trained on them; one of several inputs needs a wrapper "
            "whose `forward(x)` takes one tensor."
        )
        raise BadInput(message, code="shape-mismatch", argument="model") from fault
    got = f"the shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
    if isinstance(given, Tensor) and given.ndim == 1 and len(given) == len(x):
        return given[:, None]
    if not isinstance(given, Tensor) or given.ndim != 2 or len(given) != len(x):
        message = (
            f"The model must put out one row of logits for each record, a tensor of the shape ({len(x)}, classes), got "
            f"{got}: only classifiers are audited. Name a function that returns a wrapper whose `forward(x)` gives "
            "the logits alone."
        )
        raise BadInput(message, code="unsupported-model", argument="model")
    return given


def logits_of(model: Any, params: Params, x: Tensor) -> Tensor:
    """(records, outputs): the logits of records `x`, without gradients."""
    with torch.no_grad():
        return torch.cat([apply(model, params, some) for some in x.split(_BATCH)])


def activation_of(outputs: Tensor, loss: Any = None) -> Literal["softmax", "sigmoid"] | None:
    """What made these (records, outputs) probabilities; None where they are not, as those of a regression."""
    inside = bool((outputs >= 0).all() and (outputs <= 1).all())
    if isinstance(loss, SquaredError) or not inside:
        return None
    if outputs.shape[1] == 1:
        return "sigmoid"
    return None if bool(((outputs.sum(1) - 1).abs() > _SUM).any()) else "softmax"


def before_activation(outputs: Tensor, activation: Literal["softmax", "sigmoid"] | None) -> Tensor:
    """(records, outputs): the logits of which the `activation` makes the outputs, of a softmax up to their sum."""
    if activation is None:
        return outputs
    eps = torch.finfo(outputs.dtype).eps
    return outputs.logit(eps) if activation == "sigmoid" else outputs.clamp_min(eps).log()


def losses(model: Any, params: Params, data: Data, loss: Any = None) -> Tensor:
    """(records,): the loss of each record, see `losses_of`."""
    return losses_of(logits_of(model, params, data.x), data.y, loss)


def losses_of(logits: Tensor, labels: Tensor, loss: Any = None) -> Tensor:
    """(records,): the squared error where that is the `loss` of the training, otherwise the cross-entropy, with its
    label smoothing, in which one output is the log odds of class 1."""
    if isinstance(loss, SquaredError):
        return loss.grad_logits(logits, labels)[..., 0].square() / 4
    if logits.shape[-1] == 1:
        return softplus(torch.where(labels == 1, -logits[:, 0], logits[:, 0]))
    smoothing = loss.label_smoothing if isinstance(loss, CrossEntropy) else 0.0
    return cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)


def is_correct(logits: Tensor, labels: Tensor, loss: Any = None) -> Tensor:
    """(records,): whether the class with the largest logit, or the nearest target of a squared error, is the label."""
    if isinstance(loss, SquaredError):
        targets = logits.new_tensor(loss.values)
        return (logits[:, :1] - targets).abs().argmin(1) == labels
    predicted = (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)
    return predicted == labels


def released_loss(release: Any) -> Any:
    """The loss that the release was trained with, None where it does not tell."""
    training = getattr(release, "training", None)
    return getattr(release, "loss", None) if training is None else training.loss


def fitted_loss(release: Any, outputs: Tensor, labels: Tensor) -> Any:
    """The loss that the release was trained with, by what it tells; but where its one output is plainly no log odds,
    the squared error from the targets 0 and 1. So it is where the `outputs` are not as far from these as log odds are,
    and a limit of 1/2 between the classes is right more often than one of 0 (McNemar's test).

    The records are private and held-out ones alike: chosen by the private ones alone, a loss would favour them."""
    from scipy.stats import binomtest

    loss, of_targets = released_loss(release), SquaredError(values=(0.0, 1.0))
    stated = isinstance(loss, SquaredError) and loss != SquaredError()
    if stated or outputs.shape[1] != 1 or int(labels.max()) > 1 or activation_of(outputs) is not None:
        return loss
    if losses_of(outputs, labels, of_targets).mean() > _FAR * labels.to(outputs).var(correction=0):
        return loss
    usual, other = (is_correct(outputs, labels, each) for each in (None, of_targets))
    gained, lost = int((other & ~usual).sum()), int((usual & ~other).sum())
    if not gained or binomtest(gained, gained + lost, 0.5, alternative="greater").pvalue > _LEVEL:
        return loss
    return of_targets


def endpoints(release: Any) -> tuple[Params | None, Params | None]:
    """The weights before and after training, each None where the release does not show it, or not all of it; a gradient
    has no end."""
    if isinstance(release, KnowsFinal):
        return None if unknown_layers(release) else getattr(release, "initial", None), release.final
    before, update = release.at, getattr(release, "update", None)
    if update is None:
        return before, None
    return before, before | {name: before[name] + u for name, u in update.items()} | (release.statistics or {})


def unknown_layers(release: Any) -> tuple[str, ...]:
    """The layers of which a release shows no initial weights, though it shows those of others: re-initialised ones."""
    initial = getattr(release, "initial", None)
    if initial is None:
        return ()
    return tuple(dict.fromkeys(layer_of(name) for name, _ in release.model.named_parameters() if name not in initial))
