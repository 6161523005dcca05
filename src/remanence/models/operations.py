"""The operations that a recognised network consists of.

Each is a frozen record with the names of its parameters in the state dict and the numbers that describe it; none holds
a weight. `structure.parse` makes them from a model, `functional.apply_operations` runs them, and engines differentiate
them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

from remanence.types import Params, float_like


@final
@dataclass(frozen=True, kw_only=True)
class Linear:
    """A fully connected layer with the parameters `<path>.weight` and, with `has_bias`, `<path>.bias`."""

    path: str
    in_features: int
    out_features: int
    has_bias: bool

    @property
    def weight(self) -> str:
        return f"{self.path}.weight"

    @property
    def bias(self) -> str:
        return f"{self.path}.bias"


@final
@dataclass(frozen=True, kw_only=True)
class Conv:
    """A two-dimensional convolution with zero padding; shapes are (channels, height, width) of one record."""

    path: str
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    has_bias: bool

    @property
    def weight(self) -> str:
        return f"{self.path}.weight"

    @property
    def bias(self) -> str:
        return f"{self.path}.bias"


@final
@dataclass(frozen=True, kw_only=True)
class Norm:
    """A BatchNorm in evaluation mode: a scale and a shift of each channel, with statistics in the state dict."""

    path: str
    channels: int
    eps: float
    affine: bool


@final
@dataclass(frozen=True, kw_only=True)
class Activation:
    """An element-wise function; `name` is unique in the network, also where one module is used several times."""

    name: str
    module: nn.Module  # never in place


@final
@dataclass(frozen=True, kw_only=True)
class MaxPool:
    name: str
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]


@final
@dataclass(frozen=True, kw_only=True)
class GlobalMean:
    """The mean of each channel over the image, (channels, 1, 1)."""

    name: str


@final
@dataclass(frozen=True, kw_only=True)
class Flatten:
    """Each record as a vector."""

    name: str


@final
@dataclass(frozen=True, kw_only=True)
class Constant:
    """A buffer of the model, viewed in the `shape` in which it is broadcast with records."""

    name: str
    shape: tuple[int, ...]

    def value(self, params: Params) -> Tensor:
        value = params[self.name]
        return value if value.shape == self.shape else value.reshape(self.shape)

    def stacked(self, params: Params) -> Tensor:
        """The values (models, 1, features) of several models, whose `params` have a leading dimension."""
        value = params[self.name]
        return value.view(len(value), 1, -1)


@final
@dataclass(frozen=True, kw_only=True)
class Number:
    """A number that is written in the forward pass, the same for all values of a record."""

    number: float

    def value(self, params: Params) -> Tensor:
        value = torch.tensor(self.number, dtype=torch.float64)
        return value.to(float_like(params)) if params else value

    def stacked(self, params: Params) -> Tensor:
        return self.value(params)


@final
@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """(x - mean) / std, by numbers, or by buffers that are released with the weights and never trained; None: left
    out."""

    mean: Constant | Number | None
    std: Constant | Number | None

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        x = x if self.mean is None else x - self.mean.value(params)
        return x if self.std is None else x / self.std.value(params)

    def inverse(self, params: Params, x: Tensor) -> Tensor:
        """What is normalised to `x`."""
        x = self.scaled(params, x)
        return x if self.mean is None else x + self.mean.value(params)

    def scaled(self, params: Params, directions: Tensor) -> Tensor:
        """Directions of normalised values as directions of the values before."""
        return directions if self.std is None else directions * self.std.value(params)

    @property
    def buffers(self) -> tuple[str, ...]:
        return tuple(constant.name for constant in (self.mean, self.std) if isinstance(constant, Constant))


@final
@dataclass(frozen=True, kw_only=True)
class Add:
    """The sum of two branches with one input; a branch without operations is the input itself."""

    inner: "tuple[Operation, ...]"  # the longer one
    shortcut: "tuple[Operation, ...]"


Operation: TypeAlias = Linear | Conv | Norm | Activation | MaxPool | GlobalMean | Flatten | Normalisation | Add


def walk(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Yield every operation in order, those of both branches in place of each `Add`."""
    for operation in operations:
        if isinstance(operation, Add):
            yield from walk(operation.inner)
            yield from walk(operation.shortcut)
        else:
            yield operation


def parameter_names(operations: Sequence[Operation]) -> list[str]:
    """The trained parameters of these operations, by their names in the state dict."""
    names = list[str]()
    for operation in walk(operations):
        if isinstance(operation, Linear | Conv):
            names += [operation.weight, operation.bias][: 1 + operation.has_bias]
        elif isinstance(operation, Norm) and operation.affine:
            names += [f"{operation.path}.weight", f"{operation.path}.bias"]
    return names


def describe(operations: Sequence[Operation]) -> str:
    """One line for a reader, e.g. ``fc1 64x6, ELU, fc2 6x10``."""
    return ", ".join(map(_describe, operations))


def _describe(operation: Operation) -> str:
    match operation:
        case Linear():
            said = f"{operation.path} {operation.in_features}x{operation.out_features}"
            return said if operation.has_bias else f"{said} without bias"
        case Conv():
            sides = "x".join(map(str, operation.kernel_size))
            return f"{operation.path} {sides} {operation.in_shape[0]}->{operation.out_shape[0]}"
        case Norm():
            return f"{operation.path} BatchNorm"
        case Activation():
            return type(operation.module).__name__
        case Normalisation():
            return f"normalisation by {' and '.join(operation.buffers) or 'numbers'}"
        case Add():
            return f"({describe(operation.inner)}) + ({describe(operation.shortcut) or 'identity'})"
        case _:
            return type(operation).__name__
