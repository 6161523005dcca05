"""The one place that recognises a network: `parse` says whether a model is an MLP, a CNN or neither.

It reads the forward pass (torch.fx), not the names or the classes of modules, so that an `nn.Sequential` with any
names, nested blocks and classes of the user's own come out alike. Whoever treats some networks in closed form, or reads
a layer's weights, takes the paths of parameters from here and refuses the others with the reason that is given here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, TypeAlias, final
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn

from remanence.models.normalisation import InputNormalisation
from remanence.models.operations import (
    Activation,
    Add,
    Conv,
    Flatten,
    Linear,
    Norm,
    Normalisation,
    Number,
    Operation,
    describe,
    parameter_names,
    walk,
)
from remanence.models.recognition import is_linear, operations_between
from remanence.models.tracing import NotRecognised, trace
from remanence.types import Params


@final
@dataclass(frozen=True, kw_only=True)
class MLP:
    """Linear layers with an element-wise activation between each two, of records that are flattened.

    Dropout in evaluation mode leaves no trace; where no activation stands between two layers there is an `nn.Identity`.
    """

    shape: tuple[int, ...]  # of a record
    record_norm: Normalisation | None  # of records in their own shape
    flat_norm: Normalisation | None  # of flattened records
    layers: tuple[Linear, ...]
    norms: tuple[Norm | None, ...]  # a frozen BatchNorm right after each layer
    activations: tuple[nn.Module, ...]  # one fewer than layers

    @property
    def normalised(self) -> bool:
        """Whether records are normalised before the first layer."""
        return self.record_norm is not None or self.flat_norm is not None

    @cached_property
    def normalisation(self) -> InputNormalisation:
        """How records enter the first layer, flat and normalised."""
        steps = (self.record_norm, Flatten(name=""), self.flat_norm)
        return InputNormalisation(shape=self.shape, steps=tuple(step for step in steps if step is not None))

    def inputs(self, params: Params, x: Tensor) -> Tensor:
        """What the first layer takes in for records `x`, shape (n, features)."""
        return self.normalisation.inputs(params, x)

    def records(self, params: Params, inputs: Tensor) -> Tensor:
        """The records (n, *shape) for which the first layer takes in `inputs` (n, features)."""
        return self.normalisation.records(params, inputs)

    def to_records(self, params: Params, directions: Tensor) -> Tensor:
        """Directions in the space of `inputs`, shape (n, features), as directions in the space of records."""
        return self.normalisation.to_records(params, directions)

    def __str__(self) -> str:
        series: list[Operation] = [norm for norm in (self.record_norm, self.flat_norm) if norm is not None]
        for index, layer in enumerate(self.layers):
            norm, after = self.norms[index], self.activations[index : index + 1]
            series += [layer, *([norm] if norm else []), *(Activation(name="", module=module) for module in after)]
        return f"MLP: {describe(series)}"


@final
@dataclass(frozen=True, kw_only=True)
class CNN:
    """A series of operations on images with at least one convolution, sums of branches among them, up to logits."""

    shape: tuple[int, ...]  # of a record
    norm: Normalisation | None  # of the images
    operations: tuple[Operation, ...]

    def inputs(self, params: Params, x: Tensor) -> Tensor:
        """What the first operation takes in for images `x`."""
        return x if self.norm is None else self.norm(params, x)

    def __str__(self) -> str:
        return f"CNN: {describe([*([self.norm] if self.norm else []), *self.operations])}"


@final
@dataclass(frozen=True, kw_only=True)
class Unsupported:
    """The network is neither; `reason` says why in a plain sentence."""

    reason: str

    def __str__(self) -> str:
        return f"not recognised: {self.reason}"


@final
@dataclass(frozen=True, kw_only=True)
class FirstLinear:
    """The first fully connected layer of a network, whatever follows it, and the operations `before` it."""

    shape: tuple[int, ...]  # of a record
    layer: Linear
    before: tuple[Operation, ...]

    @property
    def normalisation(self) -> InputNormalisation | None:
        """How records enter the layer; None where other layers are before it."""
        steps = tuple(each for each in self.before if isinstance(each, Flatten | Normalisation))
        return InputNormalisation(shape=self.shape, steps=steps) if len(steps) == len(self.before) else None


Structure: TypeAlias = MLP | CNN | Unsupported


def parse(model: nn.Module, shape: Sequence[int]) -> Structure:
    """Recognise `model` for records of `shape`.

    The answer is remembered for as long as the model lives and neither its modules nor their modes change.
    """
    found: Structure = _remembered(model, tuple(shape), _parsed)
    return found


def first_linear(model: nn.Module, shape: Sequence[int]) -> FirstLinear | Unsupported:
    """The first fully connected layer that records of `shape` come to. The network after it need not be recognised."""
    found: FirstLinear | Unsupported = _remembered(model, tuple(shape), _first_linear)
    return found


def input_normalisation(model: nn.Module, shape: Sequence[int]) -> InputNormalisation:
    """How records of `shape` enter the first layer of `model`; as they are where that is not recognised."""
    first = first_linear(model, shape)
    if not isinstance(first, Unsupported) and (found := first.normalisation) is not None:
        return found
    structure = parse(model, shape)
    steps = (structure.norm,) if isinstance(structure, CNN) and structure.norm is not None else ()
    return InputNormalisation(shape=tuple(shape), steps=steps)


_CACHE: WeakKeyDictionary[nn.Module, tuple[Any, dict[Any, Any]]] = WeakKeyDictionary()


def _remembered(model: nn.Module, shape: tuple[int, ...], make: Callable[[nn.Module, tuple[int, ...]], Any]) -> Any:
    """The answer for the model as it is now; those for what it was before are forgotten."""
    modules = tuple((ref(module), module.training) for module in model.modules())
    state = modules, tuple((name, p.shape) for name, p in model.named_parameters())
    if model not in _CACHE or _CACHE[model][0] != state:
        _CACHE[model] = state, {}
    answers, key = _CACHE[model][1], (make, shape)
    if key not in answers:
        answers[key] = make(model, shape)
    return answers[key]


def _parsed(model: nn.Module, shape: tuple[int, ...]) -> Structure:
    try:
        traced = trace(model, shape)
        operations = operations_between(traced, traced.input, traced.output)
        _check_parameters(model, operations)
        if any(isinstance(operation, Conv) for operation in walk(operations)):
            return _cnn(shape, operations)
        return _mlp(shape, operations)
    except NotRecognised as reason:
        return Unsupported(reason=str(reason))


def _first_linear(model: nn.Module, shape: tuple[int, ...]) -> FirstLinear | Unsupported:
    try:
        traced = trace(model, shape)
        node = next((node for node in traced.nodes if is_linear(traced, node)), None)
        if node is None:
            raise NotRecognised(traced.failure or "the net has no linear layer")
        *before, layer = operations_between(traced, traced.input, node)
    except NotRecognised as reason:
        return Unsupported(reason=str(reason))
    assert isinstance(layer, Linear)
    return FirstLinear(shape=shape, layer=layer, before=tuple(before))


def _check_parameters(model: nn.Module, operations: Sequence[Operation]) -> None:
    """Refuse a network with parameters that are used twice, or by nothing that is recognised."""
    used, held = parameter_names(operations), {name for name, _ in model.named_parameters()}
    if twice := [name for name in used if used.count(name) > 1]:
        raise NotRecognised(f"the net uses `{twice[0]}` twice")
    if shared := sorted(set(used) - held):
        raise NotRecognised(f"`{shared[0]}` is shared by two layers of the net")
    if unused := sorted(held - set(used)):
        raise NotRecognised(f"the net holds `{unused[0]}`, which no recognised layer uses")


def _mlp(shape: tuple[int, ...], operations: Sequence[Operation]) -> MLP:
    flat, remaining = len(shape) == 1, list(operations)
    record_norm, remaining = _normalisation(remaining) if not flat else (None, remaining)
    if remaining and isinstance(remaining[0], Flatten):
        flat, remaining = True, remaining[1:]
    flat_norm, remaining = _normalisation(remaining)
    layers, norms, activations = list[Linear](), list[Norm | None](), list[nn.Module | None]()
    for operation in remaining:
        if isinstance(operation, Linear):
            layers.append(operation)
            norms.append(None)
            activations.append(None)
        elif isinstance(operation, Norm) and layers and norms[-1] is None and activations[-1] is None:
            norms[-1] = operation
        elif isinstance(operation, Activation) and layers and activations[-1] is None:
            activations[-1] = operation.module
        else:
            raise NotRecognised(_misplaced(operation, layers))
    if not layers:
        raise NotRecognised("the net has no linear layer")
    if activations[-1] is not None or norms[-1] is not None:
        raise NotRecognised(f"the net does not end with a linear layer, but with {describe(remaining[-1:])}")
    return MLP(
        shape=shape,
        record_norm=record_norm,
        flat_norm=flat_norm,
        layers=tuple(layers),
        norms=tuple(norms),
        activations=tuple(module or nn.Identity() for module in activations[:-1]),
    )


def _misplaced(operation: Operation, layers: Sequence[Linear]) -> str:
    if isinstance(operation, Add):
        return "the net adds a shortcut around linear layers"
    after = f"after the layer `{layers[-1].path}`" if layers else "before its first layer"
    return f"the net has {describe([operation])} {after}, where an MLP has none"


def _cnn(shape: tuple[int, ...], operations: Sequence[Operation]) -> CNN:
    norm, remaining = _normalisation(operations)
    if any(isinstance(operation, Normalisation) for operation in walk(remaining)):
        raise NotRecognised("the net subtracts or divides by a buffer between its layers")
    if not isinstance(remaining[-1], Linear):
        raise NotRecognised(f"the net does not end with a linear layer, but with {describe(remaining[-1:])}")
    return CNN(shape=shape, norm=norm, operations=tuple(remaining))


def _joined(one: Normalisation, other: Normalisation) -> Normalisation | None:
    """Two normalisations by numbers, one after the other, as one; None where they are by buffers."""
    given = [each for norm in (one, other) for each in (norm.mean, norm.std) if each is not None]
    if not all(isinstance(each, Number) for each in given):
        return None
    (mean, std), (further, scale) = (
        (_number(norm.mean, otherwise=0.0), _number(norm.std, otherwise=1.0)) for norm in (one, other)
    )
    return Normalisation(mean=Number(number=mean + std * further), std=Number(number=std * scale))


def _number(given: object, *, otherwise: float) -> float:
    return given.number if isinstance(given, Number) else otherwise


def _normalisation(operations: Sequence[Operation]) -> tuple[Normalisation | None, list[Operation]]:
    """The mean and the standard deviation that operations begin with, as one, and the remaining operations."""
    first = list(takewhile(lambda operation: isinstance(operation, Normalisation), operations))
    remaining = list(operations[len(first) :])
    joined = list[Normalisation]()
    for each in first:
        assert isinstance(each, Normalisation)
        both = _joined(joined[-1], each) if joined else None
        joined = [*joined[:-1], both] if both is not None else [*joined, each]
    match [(each.mean, each.std) for each in joined]:
        case []:
            return None, remaining
        case [(mean, std)]:
            return Normalisation(mean=mean, std=std), remaining
        case [(mean, None), (None, std)]:
            return Normalisation(mean=mean, std=std), remaining
    raise NotRecognised("the net normalises its records otherwise than by one mean and one standard deviation")
