"""Why what is written out for some nets and trainings cannot be used for others; the first reason is told."""

from collections.abc import Iterator
from itertools import chain

from torch import nn

from remanence.engine import mlp as plain_mlp
from remanence.engine.cnn_reading import Named, inside, layers_of, norms_of, parts
from remanence.models import Centre, Standardise
from remanence.search.distances import ByProducts, Distance
from remanence.training import SGD, Adam, AdamW, CrossEntropy, Logistic, RMSProp, SquaredError, Training


def why_not_smooth(model: nn.Module, training: Training, distance: Distance, count: int, *, whitened: bool) -> str:
    """Why gates cannot take the place of ReLU's steps or, of so many records, layers not be whitened."""
    convolved = not whitened and any(isinstance(layer, nn.Conv2d) for layer in model.modules())
    net = _of_cnn(model) if convolved else chain(why_no_mlp(model), _of_count(model, count, whitened=whitened))
    return next(chain(_of_training(training, distance, convolved=convolved), net))


def why_no_mlp(model: nn.Module, *, standardised: bool = True) -> Iterator[str]:
    """With ReLU; `standardised` are such that read images so."""
    read = plain_mlp.of(model, CrossEntropy())
    if read is None:
        yield from _of_any(model, "Flatten, Linear and ReLU")
        for path, layer in parts("", model):
            if type(layer) not in (nn.Flatten, nn.Linear, nn.ReLU, Centre, Standardise):
                yield f"the net has a layer `{path}`, {_told(layer)}"
        yield "the net is not Flatten, then Linear and ReLU in turn"
    elif read.standard is not None and not standardised:
        yield f"the net standardises its records at `{read.standard}`"


def _of_cnn(model: nn.Module) -> Iterator[str]:
    yield from _of_any(model, "its layers")
    before: Named = "", nn.Identity()
    for path, layer in inside(list(parts("", model))):
        conv = before[1]
        if isinstance(layer, nn.BatchNorm2d) and isinstance(conv, nn.Conv2d) and conv.bias is not None:
            yield f"the convolution `{before[0]}` in front of a BatchNorm has a bias: leave it out (`bias=False`)"
        named = path, layer
        if type(layer) is not Standardise and not norms_of([before, named]) and layers_of([named], ()) is None:
            yield f"the net has a layer `{path}`, {_told(layer)}"
        before = named
    yield "the layers of the net come in another order than convolutions, Flatten and linear layers"


def _of_any(model: nn.Module, layers: str) -> Iterator[str]:
    if type(model) is not nn.Sequential:
        yield f"the net is a class of its own, {type(model).__name__}: write it as an `nn.Sequential` of {layers}"
    for path, layer in model.named_modules():
        if type(layer).__module__ == nn.ReLU.__module__ and type(layer) is not nn.ReLU:
            yield f"the activation `{path}` of the net is {type(layer).__name__}, not ReLU"


def _of_training(training: Training, distance: Distance, *, convolved: bool) -> Iterator[str]:
    if training.privacy:
        yield "DP-GD cuts the gradient of each record by itself"
    if training.clip is not None and not convolved:
        yield "gradients are cut (`clip`)"
    if not isinstance(training.optimizer, (SGD, Adam, AdamW, RMSProp) if convolved else SGD):
        yield f"the optimiser is {type(training.optimizer).__name__}"
    if not isinstance(training.loss, CrossEntropy | Logistic | SquaredError):
        yield "the loss is none of CrossEntropy, Logistic and SquaredError"
    if not isinstance(distance, ByProducts):
        yield "the distance is neither `L2()` nor `Cosine()`"


def _of_count(model: nn.Module, count: int, *, whitened: bool) -> Iterator[str]:
    """Of records that an MLP was trained on."""
    first = next(layer for layer in model.modules() if isinstance(layer, nn.Linear))
    if count >= first.in_features:
        yield f"there are {count} records, and a record has only {first.in_features} numbers"
    if whitened and count >= first.out_features:
        yield f"there are {count} records, and the first layer has only {first.out_features} neurons"
    yield "the net has no hidden layer"


def _told(layer: nn.Module) -> str:
    return type(layer).__name__ if list(layer.children()) else repr(layer)
