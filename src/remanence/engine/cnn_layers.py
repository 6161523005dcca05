"""Layers with weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import conv2d, linear

from remanence.engine.cnn_tape import Tape


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
        wanted = (not self.first, pulls, pulls and self.name in tape.at.shifts)
        below, pull, shifted = self._back(slope, tape.inputs[self.name], tape.at.kernels[self.name], wanted)
        if pulls:
            tape.pulls[self.name] = pull
        if wanted[2]:
            tape.shifted[self.name] = shifted
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
        if self.name in tape.at.shifts:
            along.shifted[self.name] = change.sum((0, 2, 3))
        below, along.pulls[self.name] = (self._joined if self.joined else self._apart)(tape, along, change)
        return below

    def _joined(self, tape: Tape, along: Tape, change: Tensor) -> tuple[Tensor, Tensor]:
        """With the pull behind its change: a kernel that a norm is folded into needs both."""
        x, slope, kernel = tape.inputs[self.name], tape.slopes[self.name], tape.at.kernels[self.name]
        both = torch.cat([change, slope], 1), torch.cat([kernel, along.at.kernels[self.name]])
        below, pulls, _ = self._back(both[0], x, both[1], (True, True, False))
        if not self.first:
            pulls[: len(kernel)] += self._back(slope, along.inputs[self.name], kernel, (False, True, False))[1]
        return below, pulls

    def _apart(self, tape: Tape, along: Tape, change: Tensor) -> tuple[Tensor, Tensor]:
        x, slope, kernel = tape.inputs[self.name], tape.slopes[self.name], tape.at.kernels[self.name]
        below = self._back(change, x, kernel, (True, False, False))[0]
        below += self._back(slope, x, along.at.kernels[self.name], (True, False, False))[0]
        if not self.first:
            x, change = torch.cat([x, along.inputs[self.name]]), torch.cat([change, slope])
        return below, self._back(change, x, kernel, (False, True, False))[1]

    def _applied(self, x: Tensor, kernel: Tensor, shift: Tensor | None) -> Tensor:
        return conv2d(x, kernel, shift, self.stride, self.padding, self.dilation)

    def _back(self, slope: Tensor, x: Tensor, kernel: Tensor, wanted: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
        """To the input, the kernel and the shift, where wanted."""
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
