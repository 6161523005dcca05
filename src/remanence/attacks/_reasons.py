"""Why a closed form for some networks and trainings does not hold for others: the first reason, in a sentence."""

from collections.abc import Iterator, Sequence
from itertools import chain

from torch import nn

from remanence.engine import cnn_structure, mlp
from remanence.models.structure import CNN, MLP, parse
from remanence.releases import KnowsFinal
from remanence.search.distances import ByProducts, Distance
from remanence.training import SGD, Adam, AdamW, CrossEntropy, Logistic, RMSProp, SquaredError, Training


def why_not_smooth(release: KnowsFinal, training: Training, distance: Distance, count: int, *, whitened: bool) -> str:
    """Why gates cannot take the place of ReLU's steps or, of so many records, layers not be whitened."""
    structure = parse(release.model, release.shape)
    convolved = not whitened and isinstance(structure, CNN)
    refusal = cnn_structure.refusal(structure) if convolved else mlp.refusal(structure)
    net = iter([refusal] if refusal else [])
    if isinstance(structure, MLP):
        net = chain(net, _of_count(structure, count, whitened=whitened))
    return next(chain(_of_training(training, distance, convolved=convolved), net))


def why_no_mlp(model: nn.Module, shape: Sequence[int], *, standardised: bool = True) -> str:
    """Why a network is no MLP with ReLU or, where it may not be `standardised`, one that normalises its records; empty
    where it is."""
    structure = parse(model, shape)
    if refusal := mlp.refusal(structure):
        return refusal
    assert isinstance(structure, MLP)
    norm = structure.record_norm or structure.flat_norm
    if not standardised and norm is not None and (structure.record_norm or norm.std):
        return f"the net normalises its records by `{norm.buffers[0]}`"
    return ""


def _of_training(training: Training, distance: Distance, *, convolved: bool) -> Iterator[str]:
    if training.privacy:
        yield "DP-GD clips the gradient of each record by itself"
    if training.clip is not None and not convolved:
        yield "gradients are clipped (`clip`)"
    if not isinstance(training.optimizer, (SGD, Adam, AdamW, RMSProp) if convolved else SGD):
        yield f"the optimiser is {type(training.optimizer).__name__}"
    if not isinstance(training.loss, CrossEntropy | Logistic | SquaredError):
        yield "the loss is none of CrossEntropy, Logistic and SquaredError"
    if not isinstance(distance, ByProducts):
        yield "the distance is neither `L2()` nor `Cosine()`"


def _of_count(structure: MLP, count: int, *, whitened: bool) -> Iterator[str]:
    """What speaks against an MLP that was trained on so many records."""
    first = structure.layers[0]
    if count >= first.in_features:
        yield f"there are {count} records, and a record has only {first.in_features} numbers"
    if whitened and count >= first.out_features:
        yield f"there are {count} records, and the first layer has only {first.out_features} neurons"
    yield "the net has no hidden layer"
