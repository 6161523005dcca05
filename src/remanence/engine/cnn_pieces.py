"""Layers without weights: linear but for kinks, or with gates in place of a kink."""

from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from remanence.engine.cnn_tape import Tape
from remanence.models.operations import MaxPool


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
    noted: bool = False  # what enters it

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        if self.noted:
            tape.inputs[self.name] = x.clone()
        tape.signs[self.name] = x.relu_()  # in place: the layer in front does not need what it put out
        return x

    def moved(self, tape: Tape, change: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten.threshold_backward(change, tape.signs[self.name], 0)
        return found

    def pulled(self, tape: Tape, slope: Tensor) -> Tensor:
        return self.moved(tape, slope)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Gated:
    """ReLU whose slope is told as a sigmoid, which does bend: on the way back, and to who differentiates that way. What
    goes back then is no gradient of a loss, and the passes along a direction are those that take the product with that
    direction back to weights and images."""

    name: str
    steepness: Tensor  # of the sigmoid; filled in place

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.signs[self.name] = (self.steepness.to(x.device) * x).sigmoid()  # on `meta` what is held is counted
        return x.relu()

    def back(self, tape: Tape, slope: Tensor, *, pulls: bool) -> Tensor:
        tape.slopes[self.name] = slope
        return slope * tape.signs[self.name]

    def forward_along(self, tape: Tape, along: Tape, change: Tensor | None) -> Tensor:
        assert change is not None
        along.inputs[self.name] = change
        return change * tape.signs[self.name]

    def back_along(self, tape: Tape, along: Tape, change: Tensor) -> Tensor:
        gate, slope = tape.signs[self.name], tape.slopes[self.name]
        bend: Tensor = torch.ops.aten.sigmoid_backward(slope * along.inputs[self.name], gate)
        return bend.mul_(self.steepness).addcmul_(change, gate)


@final
@dataclass(frozen=True, kw_only=True)
class Maximum:
    """The maximum in each window of an image."""

    name: str
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    @classmethod
    def from_operation(cls, pool: MaxPool) -> "Maximum":
        return cls(name=pool.name, kernel_size=pool.kernel_size, stride=pool.stride, padding=pool.padding)

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.inputs[self.name] = x
        window = self.kernel_size, self.stride, self.padding
        out, tape.places[self.name] = max_pool2d(x, *window, return_indices=True)
        return out

    def moved(self, tape: Tape, change: Tensor) -> Tensor:
        places = tape.places[self.name]
        found = change.flatten(2).gather(2, places.flatten(2)).view(places.shape)
        last = places.is_contiguous(memory_format=torch.channels_last)
        return found.contiguous(memory_format=torch.channels_last) if last else found

    def pulled(self, tape: Tape, slope: Tensor) -> Tensor:
        window = self.kernel_size, self.stride, self.padding, (1, 1), False
        found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            slope, tape.inputs[self.name], *window, tape.places[self.name]
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
