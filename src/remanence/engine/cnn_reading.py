"""A convolutional net with ReLU and frozen BatchNorm as layers whose passes are written out."""

from collections.abc import Callable, Container, Iterator, Sequence

from torch import nn

from remanence.engine.cnn_layers import Convolution, Dense, Scaling
from remanence.engine.cnn_pieces import Flat, Maximum, Mean, Piecewise, Rectifier
from remanence.engine.cnn_tape import Beside, Layer
from remanence.models.operations import Activation, Add, Conv, Flatten, GlobalMean, Linear, MaxPool, Norm, Operation
from remanence.models.structure import MLP, Structure, Unsupported


def refusal(structure: Structure) -> str | None:
    """Why the closed form does not hold for a network; None where it does."""
    if isinstance(structure, Unsupported):
        return structure.reason
    if isinstance(structure, MLP):
        return "the net has no convolutions"
    if not isinstance(structure.operations[0], Conv):
        return "the net does not begin with a convolution"
    return next(_refusals(structure.operations), None)


def _refusals(operations: Sequence[Operation]) -> Iterator[str]:
    before: Operation | None = None
    for operation in operations:
        if isinstance(operation, Norm):
            if not isinstance(before, Conv):
                yield f"the BatchNorm `{operation.path}` does not follow a convolution"
            elif before.has_bias:
                yield f"the convolution `{before.path}` before a BatchNorm has a bias: leave it out (`bias=False`)"
            elif not operation.affine:
                yield f"the BatchNorm `{operation.path}` has no scale and shift of its own"
        elif isinstance(operation, Conv) and operation.groups != 1:
            yield f"the convolution `{operation.path}` has groups"
        elif isinstance(operation, Activation) and type(operation.module) is not nn.ReLU:
            yield f"the activation `{operation.name}` of the net is {type(operation.module).__name__}, not ReLU"
        elif isinstance(operation, Add):
            yield from _refusals_of_branches(operation)
        before = operation


def _refusals_of_branches(operation: Add) -> Iterator[str]:
    """A branch must begin and end with a convolution, so that what it puts out is overwritten by nobody else."""
    for branch in (operation.inner, operation.shortcut):
        yield from _refusals(branch)
        if branch and not (isinstance(branch[0], Conv) and isinstance(branch[-1], Conv | Norm)):
            yield "a branch of a residual sum does not begin and end with convolutions"
    if not operation.inner:
        yield "the net adds a value to itself"


def norms_of(operations: Sequence[Operation]) -> dict[str, Norm]:
    """The frozen norm after each convolution that has one, by the path of the convolution."""
    found, before = dict[str, Norm](), operations[:1]
    for operation in operations:
        if isinstance(operation, Add):
            found |= norms_of(operation.inner) | norms_of(operation.shortcut)
        elif isinstance(operation, Norm) and isinstance(before[0], Conv):
            found[before[0].path] = operation
        before = [operation]
    return found


def layers_of(operations: Sequence[Operation], light: Container[str], *, first: bool = True) -> tuple[Layer, ...]:
    """The layers of a network that is not refused, norms folded into the convolutions before them that are `light`."""
    found, before = list[Layer](), ""
    for operation in operations:
        match operation:
            case Norm():
                found += [] if before in light else [Scaling(name=operation.path)]
            case Conv():
                found.append(_convolution(operation, first=first and not found, joined=operation.path in light))
            case Linear():
                found.append(Dense(name=operation.path))
            case Activation():
                found.append(Piecewise(piece=Rectifier(name=operation.name)))
            case MaxPool():
                found.append(Piecewise(piece=Maximum.from_operation(operation)))
            case GlobalMean():
                found.append(Piecewise(piece=Mean(name=operation.name)))
            case Flatten():
                found.append(Piecewise(piece=Flat(name=operation.name)))
            case Add():
                branches = (layers_of(each, light, first=False) for each in (operation.inner, operation.shortcut))
                found.append(Beside(**dict(zip(("inner", "shortcut"), branches, strict=True))))
        before = operation.path if isinstance(operation, Conv) else ""
    return tuple(found)


def _convolution(conv: Conv, *, first: bool, joined: bool) -> Convolution:
    shape = {"stride": conv.stride, "padding": conv.padding, "dilation": conv.dilation}
    return Convolution(name=conv.path, first=first, joined=joined, **shape)


def rectified(layers: Sequence[Layer]) -> Iterator[str]:
    """The names of what is a ReLU."""
    for layer in layers:
        if isinstance(layer, Beside):
            yield from rectified((*layer.inner, *layer.shortcut))
        elif isinstance(layer, Piecewise) and isinstance(layer.piece, Rectifier):
            yield layer.piece.name


def in_place_of_kinks(layers: Sequence[Layer], made: Callable[[str], Layer]) -> tuple[Layer, ...]:
    """With what is made for the name of each ReLU."""

    def exchanged(layer: Layer) -> Layer:
        if isinstance(layer, Beside):
            inner, shortcut = (in_place_of_kinks(way, made) for way in (layer.inner, layer.shortcut))
            return Beside(inner=inner, shortcut=shortcut)
        if isinstance(layer, Piecewise) and isinstance(layer.piece, Rectifier):
            return made(layer.piece.name)
        return layer

    return tuple(map(exchanged, layers))
