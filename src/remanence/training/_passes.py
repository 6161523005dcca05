"""Layers of a convolutional net with their passes written out: forward, back, and how both change along a direction.

The slope of  <p, gradient>  by weights and records is the change of the gradient along p. Autograd finds it by going
back through the backward pass, where the part of a kernel is a convolution whose filter is as large as the image. Here
a convolution runs forward, back to its input and back to its kernel, and in no other way. Along a direction each is a
sum of two, as the change of a product is; where they share an output they can be one, with the channels of both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, final

import torch
from torch import Tensor
from torch.nn.functional import conv2d, linear, max_pool2d

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
    signs: Tensors = field(default_factory=dict)  # positive where a slope passes
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
class Convolution:
    name: str
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    first: bool  # the net begins with it
    joined: bool  # along a direction kernels are joined, not images: they are smaller

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.inputs[self.name] = x
        return self._applied(x, tape.at.kernels[self.name], tape.at.shifts.get(self.name))

    def back(self, tape: Tape, slope: Tensor, *, pulls: bool) -> Tensor:
        tape.slopes[self.name] = slope
        if self.first and not pulls:
            return slope
        wanted = (not self.first, pulls, pulls)
        below, pull, shifted = self._back(slope, tape.inputs[self.name], tape.at.kernels[self.name], wanted)
        if pulls:
            tape.pulls[self.name], tape.shifted[self.name] = pull, shifted
        return slope if self.first else below

    def forward_along(self, tape: Tape, along: Tape, change: Tensor | None) -> Tensor:
        x, kernel = tape.inputs[self.name], tape.at.kernels[self.name]
        way, shift = along.at.kernels[self.name], along.at.shifts.get(self.name)
        if change is None:
            return self._applied(x, way, shift)
        along.inputs[self.name] = change
        if self.joined:
            return self._applied(torch.cat([change, x], 1), torch.cat([kernel, way], 1), shift)
        return self._applied(x, way, shift).add_(self._applied(change, kernel, None))

    def back_along(self, tape: Tape, along: Tape, change: Tensor) -> Tensor:
        below, pulls, shifted = self._joined(tape, along, change) if self.joined else self._apart(tape, along, change)
        along.pulls[self.name], along.shifted[self.name] = pulls, shifted
        return below

    def _joined(self, tape: Tape, along: Tape, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """With the pull behind its change: a kernel that a norm is folded into needs both."""
        x, slope, kernel = tape.inputs[self.name], tape.slopes[self.name], tape.at.kernels[self.name]
        both = torch.cat([change, slope], 1), torch.cat([kernel, along.at.kernels[self.name]])
        below, pulls, shifted = self._back(both[0], x, both[1], (True, True, True))
        if not self.first:
            pulls[: len(kernel)] += self._back(slope, along.inputs[self.name], kernel, (False, True, False))[1]
        return below, pulls, shifted[: len(kernel)]

    def _apart(self, tape: Tape, along: Tape, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, slope, kernel = tape.inputs[self.name], tape.slopes[self.name], tape.at.kernels[self.name]
        below = self._back(change, x, kernel, (True, False, False))[0]
        below += self._back(slope, x, along.at.kernels[self.name], (True, False, False))[0]
        if self.first:
            return below, *self._back(change, x, kernel, (False, True, True))[1:]
        inputs, slopes = torch.cat([x, along.inputs[self.name]]), torch.cat([change, slope])
        return below, self._back(slopes, inputs, kernel, (False, True, False))[1], change.sum((0, 2, 3))

    def _applied(self, x: Tensor, kernel: Tensor, shift: Tensor | None) -> Tensor:
        return conv2d(x, kernel, shift, self.stride, self.padding, self.dilation)

    def _back(self, slope: Tensor, x: Tensor, kernel: Tensor, wanted: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
        """By the input, the kernel and the shift."""
        shape = self.stride, self.padding, self.dilation, False, (0, 0), 1
        found: Any = torch.ops.aten.convolution_backward(slope, x, kernel, [len(kernel)], *shape, wanted)
        return found  # type: ignore[no-any-return]


@final
@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A frozen norm: a factor, which is called its kernel, and a shift of each channel."""

    name: str

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.inputs[self.name] = x
        return tape.at.shifts[self.name].addcmul(x, tape.at.kernels[self.name])

    def back(self, tape: Tape, slope: Tensor, *, pulls: bool) -> Tensor:
        tape.slopes[self.name] = slope
        if pulls:
            tape.pulls[self.name] = (slope * tape.inputs[self.name]).sum((0, 2, 3))
            tape.shifted[self.name] = slope.sum((0, 2, 3))
        return slope * tape.at.kernels[self.name]

    def forward_along(self, tape: Tape, along: Tape, change: Tensor | None) -> Tensor:
        assert change is not None
        along.inputs[self.name] = change
        moved = along.at.shifts[self.name].addcmul(tape.inputs[self.name], along.at.kernels[self.name])
        return moved.addcmul_(change, tape.at.kernels[self.name])

    def back_along(self, tape: Tape, along: Tape, change: Tensor) -> Tensor:
        x, slope = tape.inputs[self.name], tape.slopes[self.name]
        along.pulls[self.name] = (change * x).addcmul_(slope, along.inputs[self.name]).sum((0, 2, 3))
        along.shifted[self.name] = change.sum((0, 2, 3))
        return (change * tape.at.kernels[self.name]).addcmul_(slope, along.at.kernels[self.name])


@final
@dataclass(frozen=True, kw_only=True)
class Dense:
    name: str

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.inputs[self.name] = x
        return linear(x, tape.at.kernels[self.name], tape.at.shifts.get(self.name))

    def back(self, tape: Tape, slope: Tensor, *, pulls: bool) -> Tensor:
        tape.slopes[self.name] = slope
        if pulls:
            tape.pulls[self.name], tape.shifted[self.name] = slope.T @ tape.inputs[self.name], slope.sum(0)
        return slope @ tape.at.kernels[self.name]

    def forward_along(self, tape: Tape, along: Tape, change: Tensor | None) -> Tensor:
        assert change is not None
        along.inputs[self.name] = change
        moved = linear(tape.inputs[self.name], along.at.kernels[self.name], along.at.shifts.get(self.name))
        return moved.addmm(change, tape.at.kernels[self.name].T)

    def back_along(self, tape: Tape, along: Tape, change: Tensor) -> Tensor:
        slope = tape.slopes[self.name]
        along.pulls[self.name] = (change.T @ tape.inputs[self.name]).addmm(slope.T, along.inputs[self.name])
        along.shifted[self.name] = change.sum(0)
        return (change @ tape.at.kernels[self.name]).addmm(slope, along.at.kernels[self.name])


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


class Piece(Protocol):
    """A layer without weights that is linear on each side of its kinks."""

    def forward(self, tape: Tape, x: Tensor) -> Tensor: ...
    def moved(self, tape: Tape, change: Tensor) -> Tensor: ...
    def pulled(self, tape: Tape, slope: Tensor) -> Tensor: ...


@final
@dataclass(frozen=True, kw_only=True)
class Piecewise:
    """It does not bend, so that changes pass as inputs and slopes do."""

    piece: Piece

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        return self.piece.forward(tape, x)

    def back(self, tape: Tape, slope: Tensor, *, pulls: bool) -> Tensor:
        return self.piece.pulled(tape, slope)

    def forward_along(self, tape: Tape, along: Tape, change: Tensor | None) -> Tensor:
        assert change is not None
        return self.piece.moved(tape, change)

    def back_along(self, tape: Tape, along: Tape, change: Tensor) -> Tensor:
        return self.piece.pulled(tape, change)


@final
@dataclass(frozen=True, kw_only=True)
class Rectifier:
    name: str

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.signs[self.name] = x.relu_()  # in place: the layer in front does not need what it put out
        return x

    def moved(self, tape: Tape, change: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten.threshold_backward(change, tape.signs[self.name], 0)
        return found

    def pulled(self, tape: Tape, slope: Tensor) -> Tensor:
        return self.moved(tape, slope)


@final
@dataclass(frozen=True, kw_only=True)
class Maximum:
    """Of squares that do not overlap."""

    name: str
    side: int

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.inputs[self.name] = x
        out, tape.places[self.name] = max_pool2d(x, self.side, return_indices=True)
        return out

    def moved(self, tape: Tape, change: Tensor) -> Tensor:
        places = tape.places[self.name]
        found = change.flatten(2).gather(2, places.flatten(2)).view(places.shape)
        last = places.is_contiguous(memory_format=torch.channels_last)
        return found.contiguous(memory_format=torch.channels_last) if last else found

    def pulled(self, tape: Tape, slope: Tensor) -> Tensor:
        two, x = (self.side, self.side), tape.inputs[self.name]
        found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            slope, x, two, two, (0, 0), (1, 1), False, tape.places[self.name]
        )
        return found


@final
@dataclass(frozen=True, kw_only=True)
class Mean:
    """Of each channel over the image."""

    name: str

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.inputs[self.name] = x
        return x.mean((2, 3), keepdim=True)

    def moved(self, tape: Tape, change: Tensor) -> Tensor:
        return change.mean((2, 3), keepdim=True)

    def pulled(self, tape: Tape, slope: Tensor) -> Tensor:
        x = tape.inputs[self.name]
        return (slope / x[0, 0].numel()).expand_as(x)


@final
@dataclass(frozen=True, kw_only=True)
class Flat:
    """Images as vectors."""

    name: str

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.inputs[self.name] = x
        return x.flatten(1)

    def moved(self, tape: Tape, change: Tensor) -> Tensor:
        return change.flatten(1)

    def pulled(self, tape: Tape, slope: Tensor) -> Tensor:
        return slope.view(tape.inputs[self.name].shape)


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
