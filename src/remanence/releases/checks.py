"""Checks of releases before an attack: weights, training and outputs must fit each other."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from remanence.errors import BadInput
from remanence.models import apply
from remanence.releases.protocols import KnowsFinal, KnowsTraining
from remanence.training import CrossEntropy, Logistic, Loss, SquaredError, Training


def check_endpoints(release: KnowsTraining) -> None:
    """Refuse initial and final weights between which the release's training cannot be simulated."""
    check_training(release.training)
    trained = [name for name, _ in release.model.named_parameters()]
    _check_weights(release, trained)
    _check_statistics(release)
    for path, layer in release.model.named_modules():
        if isinstance(layer, _DropoutNd) and layer.training and layer.p:
            raise BadInput(
                f"the model drops out at `{path}`, and what it dropped is not released: a training with dropout cannot "
                "be simulated (`model.eval()` if it was switched off)",
                code="unsupported-model",
                argument="model",
            )
    outputs = _outputs(release, like=release.final[trained[0]])
    check_outputs(release.training.loss, outputs, release.num_classes)


def check_training(given: object) -> None:
    """Refuse what is no `Training`."""
    if not isinstance(given, Training):
        message = f"`training` must be a Training, got {type(given).__name__}: write the recipe as one"
        raise BadInput(message, code="wrong-type", argument="training")


def _check_weights(release: KnowsTraining, trained: list[str]) -> None:
    if names := _differing(release, lambda p: tuple(p.shape)):
        raise BadInput(
            f"`initial` and `final` must hold weights of one net, and differ in {', '.join(names)}: is one of them "
            "another model's, or are initial weights of layers that were re-initialised left out?",
            code="shape-mismatch",
            argument="initial",
        )
    if missing := [name for name in trained if name not in release.initial]:
        message = f"`initial` and `final` lack the model's {', '.join(missing)}: give the weights of this model"
        raise BadInput(message, code="shape-mismatch", argument="initial")
    if names := _differing(release, lambda p: p.dtype):
        first, last = (params[names[0]].dtype for params in (release.initial, release.final))
        message = f"`initial` and `final` must be of one dtype, got {first} and {last}: convert one of them"
        raise BadInput(message, code="wrong-type", argument="initial")
    if not all(bool(release.final[name].isfinite().all()) for name in trained):
        message = "`final` holds weights that are not finite: the victim's training diverged"
        raise BadInput(message, code="not-finite", argument="final")
    if all(torch.equal(release.initial[name], release.final[name]) for name in trained):
        message = "`initial` and `final` are the same weights: nothing was trained, and nothing can be reconstructed"
        raise BadInput(message, code="conflict", argument="final")


def _differing(release: KnowsTraining, property_of: Callable[[Tensor], object]) -> list[str]:
    first, last = ({name: property_of(p) for name, p in params.items()} for params in (release.initial, release.final))
    return sorted(name for name in first | last if first.get(name) != last.get(name))


def _check_statistics(release: KnowsTraining) -> None:
    buffers = {name for name, _ in release.model.named_buffers()}
    frozen = [name for name, p in release.initial.items() if name in buffers and p.is_floating_point()]
    if names := [name for name in frozen if not torch.equal(release.initial[name], release.final[name])]:
        raise BadInput(
            f"`initial` and `final` differ in `{names[0]}`, which a training with frozen statistics leaves alone: what "
            "changed it cannot be simulated. To go on nevertheless, give both the same",
            code="unsupported-training",
            argument="initial",
        )


def _outputs(release: KnowsFinal, *, like: Tensor) -> int:
    """The number of outputs that the model has for a record of the release's shape."""
    try:
        with torch.no_grad():
            logits = apply(release.model, release.final, like.new_zeros(2, *release.shape))
    except BadInput:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        said = str(error).partition("\n")[0]
        message = f"the model does not take records of the release's `shape` {release.shape}: {said}"
        raise BadInput(message, code="shape-mismatch", argument="shape") from error
    return logits.shape[-1] if logits.ndim > 1 else 1


def check_outputs(loss: Loss, outputs: int, classes: int) -> None:
    """Refuse a loss that does not fit the number of the network's outputs, or of the release's classes."""
    if isinstance(loss, CrossEntropy) and outputs == 1:
        problem = "`loss` CrossEntropy() compares outputs, and the net has one: give Logistic() or SquaredError()"
        raise BadInput(problem, code="conflict", argument="loss")
    if isinstance(loss, Logistic | SquaredError) and outputs != 1:
        problem = f"`loss` {type(loss).__name__}() takes one output, the net has {outputs}: give CrossEntropy()"
        raise BadInput(problem, code="conflict", argument="loss")
    if isinstance(loss, SquaredError):
        fits, expected = classes <= len(loss.values), f"at most {len(loss.values)}, the `values` of its loss"
    elif outputs == 1:
        fits, expected = classes == 2 or not isinstance(loss, Logistic), "2, as the net has one output"
    else:
        fits, expected = classes == outputs, f"{outputs}, the number of the net's outputs"
    if not fits:
        problem = f"`num_classes` of the release must be {expected}, got {classes}"
        raise BadInput(problem, code="shape-mismatch", argument="num_classes")
