"""From a recognised CNN to the layers of its closed form."""

from collections.abc import Callable, Container, Iterator, Sequence

from torch import nn

from remanence.engine import cnn_layers
from remanence.engine.cnn_tape import Layer, ResidualSum
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
    """A branch must begin and end with a convolution, so that its output may be overwritten."""
    for branch in (operation.inner, operation.shortcut):
        yield from _refusals(branch)
        if branch and not (isinstance(branch[0], Conv) and isinstance(branch[-1], Conv | Norm)):
            yield "a branch of a residual sum does not begin and end with convolutions"
    if not operation.inner:
        yield "the net adds a value to itself"


def norms_by_conv(operations: Sequence[Operation]) -> dict[str, Norm]:
    """The frozen norm after each convolution that has one, by the path of the convolution."""
    found, before = dict[str, Norm](), operations[:1]
    for operation in operations:
        if isinstance(operation, Add):
            found |= norms_by_conv(operation.inner) | norms_by_conv(operation.shortcut)
        elif isinstance(operation, Norm) and isinstance(before[0], Conv):
            found[before[0].path] = operation
        before = [operation]
    return found


def closed_form_layers(
    operations: Sequence[Operation], folding: Container[str], *, first: bool = True
) -> tuple[Layer, ...]:
    """The layers of a network that is not refused; norms are folded into the convolutions in `folding`."""
    found, before = list[Layer](), ""
    for operation in operations:
        match operation:
            case Norm():
                found += [] if before in folding else [cnn_layers.Scaling(name=operation.path)]
            case Conv():
                joined = operation.path in folding
                found.append(cnn_layers.Convolution(conv=operation, first=first and not found, joined=joined))
            case Linear():
                found.append(cnn_layers.Dense(name=operation.path))
            case Activation():
                found.append(cnn_layers.Piecewise(piece=cnn_layers.Rectifier(name=operation.name)))
            case MaxPool():
                found.append(cnn_layers.Piecewise(piece=cnn_layers.MaxPooling(**vars(operation))))
            case GlobalMean():
                found.append(cnn_layers.Piecewise(piece=cnn_layers.GlobalAverage(name=operation.name)))
            case Flatten():
                found.append(cnn_layers.Piecewise(piece=cnn_layers.Flattening(name=operation.name)))
            case Add():
                inner = closed_form_layers(operation.inner, folding, first=False)
                shortcut = closed_form_layers(operation.shortcut, folding, first=False)
                found.append(ResidualSum(inner=inner, shortcut=shortcut))
        before = operation.path if isinstance(operation, Conv) else ""
    return tuple(found)


def convolutions(layers: Sequence[Layer]) -> Iterator[cnn_layers.Convolution]:
    """The convolutions in turn."""
    for layer in layers:
        if isinstance(layer, ResidualSum):
            yield from convolutions((*layer.inner, *layer.shortcut))
        elif isinstance(layer, cnn_layers.Convolution):
            yield layer


def relu_names(layers: Sequence[Layer]) -> Iterator[str]:
    """The names of the ReLUs in turn."""
    for layer in layers:
        if isinstance(layer, ResidualSum):
            yield from relu_names((*layer.inner, *layer.shortcut))
        elif isinstance(layer, cnn_layers.Piecewise) and isinstance(layer.piece, cnn_layers.Rectifier):
            yield layer.piece.name


def replace_relus(layers: Sequence[Layer], make: Callable[[str], Layer]) -> tuple[Layer, ...]:
    """The layers with `make(name)` in place of each ReLU."""

    def replaced(layer: Layer) -> Layer:
        if isinstance(layer, ResidualSum):
            inner, shortcut = (replace_relus(branch, make) for branch in (layer.inner, layer.shortcut))
            return ResidualSum(inner=inner, shortcut=shortcut)
        if isinstance(layer, cnn_layers.Piecewise) and isinstance(layer.piece, cnn_layers.Rectifier):
            return make(layer.piece.name)
        return layer

    return tuple(map(replaced, layers))
