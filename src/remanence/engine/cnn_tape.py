"""What a layer does in its four passes, what these leave, and layers in turn or beside each other."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, final

from torch import Tensor

Tensors: TypeAlias = dict[str, Tensor]  # by layer


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    """As they are applied; or a direction."""

    kernels: Tensors
    shifts: Tensors


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Tape:
    """What the passes leave: on the tape of a direction, the changes."""

    at: Weights
    inputs: Tensors = field(default_factory=dict)
    signs: Tensors = field(default_factory=dict)  # positive where a slope passes; of a gate the share that does
    places: Tensors = field(default_factory=dict)  # of maxima
    slopes: Tensors = field(default_factory=dict)  # by what a layer puts out
    pulls: Tensors = field(default_factory=dict)  # on kernels
    shifted: Tensors = field(default_factory=dict)  # pulls on shifts

    def held(self) -> int:
        """Numbers in what it holds besides weights; layers share outputs and inputs."""
        own = (self.inputs, self.signs, self.places, self.slopes, self.pulls)
        return sum({id(t): t.numel() for tensors in own for t in tensors.values()}.values())


class Layer(Protocol):
    def forward(self, tape: Tape, x: Tensor) -> Tensor: ...
    def back(self, tape: Tape, slope: Tensor, *, pulls: bool) -> Tensor: ...
    def forward_along(self, tape: Tape, along: Tape, change: Tensor | None) -> Tensor:
        """The change of the output from that of the input; None: the input is that of the net, which stays."""
        ...

    def back_along(self, tape: Tape, along: Tape, change: Tensor) -> Tensor:
        """The change of the slope by the input from that of the slope by the output."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class Beside:
    """The sum of two ways; one without layers is the input itself."""

    inner: tuple[Layer, ...]  # begins and ends with a convolution, so that what it gives is nobody else's
    shortcut: tuple[Layer, ...]

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        return forward(self.inner, tape, x).add_(forward(self.shortcut, tape, x))

    def back(self, tape: Tape, slope: Tensor, *, pulls: bool) -> Tensor:
        below = back(self.inner, tape, slope, pulls=pulls)
        return below.add_(back(self.shortcut, tape, slope, pulls=pulls))

    def forward_along(self, tape: Tape, along: Tape, change: Tensor | None) -> Tensor:
        assert change is not None
        return forward_along(self.inner, tape, along, change).add_(forward_along(self.shortcut, tape, along, change))

    def back_along(self, tape: Tape, along: Tape, change: Tensor) -> Tensor:
        return back_along(self.inner, tape, along, change).add_(back_along(self.shortcut, tape, along, change))


def forward(layers: Sequence[Layer], tape: Tape, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer.forward(tape, x)
    return x


def back(layers: Sequence[Layer], tape: Tape, slope: Tensor, *, pulls: bool) -> Tensor:
    for layer in reversed(layers):
        slope = layer.back(tape, slope, pulls=pulls)
    return slope


def forward_along(layers: Sequence[Layer], tape: Tape, along: Tape, change: Tensor | None) -> Tensor:
    for layer in layers:
        change = layer.forward_along(tape, along, change)
    assert change is not None
    return change


def back_along(layers: Sequence[Layer], tape: Tape, along: Tape, change: Tensor) -> Tensor:
    for layer in reversed(layers):
        change = layer.back_along(tape, along, change)
    return change
