"""The layers: convolutions, linear layers and frozen norms that are not folded into a convolution; then those without
weights, which are piecewise linear, and ReLU with a surrogate derivative."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, final

import torch
from torch import Tensor
from torch.nn.functional import conv2d, linear, max_pool2d

from remanence.engine.cnn_tape import Tape
from remanence.models.operations import Conv


@final
@dataclass(frozen=True, kw_only=True)
class Convolution:
    conv: Conv
    first: bool  # of the network
    joined: bool  # directional derivatives concatenate kernels, not images: they are smaller

    @property
    def name(self) -> str:
        return self.conv.path

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.inputs[self.name] = x
        return self._convolved(x, tape.weights.kernels[self.name], tape.weights.shifts.get(self.name))

    def backward(self, tape: Tape, grad: Tensor, *, weight_grads: bool) -> Tensor:
        tape.grad_outputs[self.name] = grad
        if self.first and not weight_grads:
            return grad
        x, kernel = tape.inputs[self.name], tape.weights.kernels[self.name]
        if weight_grads:
            shifted = self.name in tape.weights.shifts
            work = partial(self._backward, grad, x, kernel, (False, True, shifted))
            _, tape.grad_kernels[self.name], grad_shift = tape.side.run(work)
            if shifted:
                tape.grad_shifts[self.name] = grad_shift
        return grad if self.first else self._grad_input(grad, x, kernel)

    def launch_ahead(self, tape: Tape, tangents: Tape, to: Literal["output", "input"]) -> None:
        """Launch what a pass of tangents adds to its own convolution, forward `to` the output or back to the input, and
        does not depend on that pass."""
        x, grad, direction = tape.inputs[self.name], tape.grad_outputs[self.name], tangents.weights.kernels[self.name]
        if self.joined or (self.first and to == "output"):
            return
        if to == "output":
            work = partial(self._convolved, x, direction, tangents.weights.shifts.get(self.name))
        else:
            work = partial(self._grad_input, grad, x, direction)
        tangents.ahead[self.name, to] = tangents.side.run_ahead(work)

    def forward_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor | None) -> Tensor:
        x, kernel = tape.inputs[self.name], tape.weights.kernels[self.name]
        direction, shift = tangents.weights.kernels[self.name], tangents.weights.shifts.get(self.name)
        if tangent is None:
            return self._convolved(x, direction, shift)
        tangents.inputs[self.name] = tangent
        if self.joined:
            return self._convolved(torch.cat([tangent, x], 1), torch.cat([kernel, direction], 1), shift)
        return self._convolved(tangent, kernel, None).add_(tangents.ahead.pop((self.name, "output"))())

    def backward_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor) -> Tensor:
        side, x, kernel = tangents.side, tape.inputs[self.name], tape.weights.kernels[self.name]
        if self.name in tape.weights.shifts:
            tangents.grad_shifts[self.name] = side.run(partial(tangent.sum, (0, 2, 3)))
        if self.joined:
            both = torch.cat([tangent, tape.grad_outputs[self.name]], 1)
            kernels = torch.cat([kernel, tangents.weights.kernels[self.name]])
            work = partial(self._joined_kernel_jvp, tape, tangents, both, kernels)
            tangents.grad_kernels[self.name] = side.run(work)
            return self._grad_input(both, x, kernels)
        tangents.grad_kernels[self.name] = side.run(partial(self._kernel_jvp, tape, tangents, tangent))
        return self._grad_input(tangent, x, kernel).add_(tangents.ahead.pop((self.name, "input"))())

    def _joined_kernel_jvp(self, tape: Tape, tangents: Tape, both: Tensor, kernels: Tensor) -> Tensor:
        """The tangent of the gradient with respect to the kernel, followed by that gradient itself: a kernel that a
        norm is folded into needs both."""
        kernel, found = tape.weights.kernels[self.name], self._grad_kernel(both, tape.inputs[self.name], kernels)
        if not self.first:
            added = self._grad_kernel(tape.grad_outputs[self.name], tangents.inputs[self.name], kernel)
            found[: len(kernel)] += added
        return found

    def _kernel_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor) -> Tensor:
        """The tangent of the gradient with respect to the kernel."""
        x, kernel = tape.inputs[self.name], tape.weights.kernels[self.name]
        if not self.first:
            x = torch.cat([x, tangents.inputs[self.name]])
            tangent = torch.cat([tangent, tape.grad_outputs[self.name]])
        return self._grad_kernel(tangent, x, kernel)

    def _convolved(self, x: Tensor, kernel: Tensor, shift: Tensor | None) -> Tensor:
        return conv2d(x, kernel, shift, self.conv.stride, self.conv.padding, self.conv.dilation)

    def _backward(
        self, grad: Tensor, x: Tensor, kernel: Tensor, wanted: Sequence[bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients with respect to the input, the kernel and the shift, those that are wanted."""
        geometry = self.conv.stride, self.conv.padding, self.conv.dilation, False, (0, 0), 1
        found: Any = torch.ops.aten.convolution_backward(grad, x, kernel, [len(kernel)], *geometry, wanted)
        return found  # type: ignore[no-any-return]

    def _grad_input(self, grad: Tensor, x: Tensor, kernel: Tensor) -> Tensor:
        return self._backward(grad, x, kernel, (True, False, False))[0]

    def _grad_kernel(self, grad: Tensor, x: Tensor, kernel: Tensor) -> Tensor:
        return self._backward(grad, x, kernel, (False, True, False))[1]


@final
@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A frozen norm as a factor of each channel, which stands on the tape as its kernel, and a shift."""

    name: str

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.inputs[self.name] = x
        return tape.weights.shifts[self.name].addcmul(x, tape.weights.kernels[self.name])

    def backward(self, tape: Tape, grad: Tensor, *, weight_grads: bool) -> Tensor:
        tape.grad_outputs[self.name] = grad
        if weight_grads:
            tape.grad_kernels[self.name] = (grad * tape.inputs[self.name]).sum((0, 2, 3))
            tape.grad_shifts[self.name] = grad.sum((0, 2, 3))
        return grad * tape.weights.kernels[self.name]

    def forward_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor | None) -> Tensor:
        assert tangent is not None
        tangents.inputs[self.name] = tangent
        direction, shift = tangents.weights.kernels[self.name], tangents.weights.shifts[self.name]
        return shift.addcmul(tape.inputs[self.name], direction).addcmul_(tangent, tape.weights.kernels[self.name])

    def backward_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor) -> Tensor:
        x, grad = tape.inputs[self.name], tape.grad_outputs[self.name]
        tangents.grad_kernels[self.name] = (tangent * x).addcmul_(grad, tangents.inputs[self.name]).sum((0, 2, 3))
        tangents.grad_shifts[self.name] = tangent.sum((0, 2, 3))
        return (tangent * tape.weights.kernels[self.name]).addcmul_(grad, tangents.weights.kernels[self.name])


@final
@dataclass(frozen=True, kw_only=True)
class Dense:
    """A linear layer."""

    name: str

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.inputs[self.name] = x
        return linear(x, tape.weights.kernels[self.name], tape.weights.shifts.get(self.name))

    def backward(self, tape: Tape, grad: Tensor, *, weight_grads: bool) -> Tensor:
        tape.grad_outputs[self.name] = grad
        if weight_grads:
            tape.grad_kernels[self.name], tape.grad_shifts[self.name] = grad.T @ tape.inputs[self.name], grad.sum(0)
        return grad @ tape.weights.kernels[self.name]

    def forward_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor | None) -> Tensor:
        assert tangent is not None
        tangents.inputs[self.name] = tangent
        direction, shift = tangents.weights.kernels[self.name], tangents.weights.shifts.get(self.name)
        return linear(tape.inputs[self.name], direction, shift).addmm(tangent, tape.weights.kernels[self.name].T)

    def backward_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor) -> Tensor:
        grad = tape.grad_outputs[self.name]
        tangents.grad_kernels[self.name] = (tangent.T @ tape.inputs[self.name]).addmm(
            grad.T, tangents.inputs[self.name]
        )
        tangents.grad_shifts[self.name] = tangent.sum(0)
        return (tangent @ tape.weights.kernels[self.name]).addmm(grad, tangents.weights.kernels[self.name])


class Piece(Protocol):
    """A piecewise linear function, with its Jacobian-vector and vector-Jacobian products."""

    def forward(self, tape: Tape, x: Tensor) -> Tensor: ...
    def jvp(self, tape: Tape, tangent: Tensor) -> Tensor: ...
    def vjp(self, tape: Tape, grad: Tensor) -> Tensor: ...


@final
@dataclass(frozen=True, kw_only=True)
class Piecewise:
    """A piecewise linear layer: its second derivative is zero, so that tangents pass as inputs and gradients do."""

    piece: Piece

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        return self.piece.forward(tape, x)

    def backward(self, tape: Tape, grad: Tensor, *, weight_grads: bool) -> Tensor:
        return self.piece.vjp(tape, grad)

    def forward_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor | None) -> Tensor:
        assert tangent is not None
        return self.piece.jvp(tape, tangent)

    def backward_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor) -> Tensor:
        return self.piece.vjp(tape, tangent)


@final
@dataclass(frozen=True, kw_only=True)
class Rectifier:
    """ReLU; with `recorded` its inputs go onto the tape."""

    name: str
    recorded: bool = False

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        if self.recorded:
            tape.inputs[self.name] = x.clone()
        tape.gates[self.name] = x.relu_()  # in place: the layer before does not need its output
        return x

    def jvp(self, tape: Tape, tangent: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten.threshold_backward(tangent, tape.gates[self.name], 0)
        return found

    def vjp(self, tape: Tape, grad: Tensor) -> Tensor:
        return self.jvp(tape, grad)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SurrogateRectifier:
    """ReLU whose derivative is replaced by a sigmoid, which has a derivative itself: in the backward pass, and where
    that pass is differentiated. The result of the backward pass then is no gradient of a loss, and the passes along a
    direction compute the vector-Jacobian product of that result with respect to weights and images."""

    name: str
    beta: Tensor  # inverse temperature of the sigmoid; filled in place

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.gates[self.name] = (self.beta.to(x.device) * x).sigmoid()  # `meta` tensors count the values of a tape
        return x.relu()

    def backward(self, tape: Tape, grad: Tensor, *, weight_grads: bool) -> Tensor:
        tape.grad_outputs[self.name] = grad
        return grad * tape.gates[self.name]

    def forward_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor | None) -> Tensor:
        assert tangent is not None
        tangents.inputs[self.name] = tangent
        return tangent * tape.gates[self.name]

    def backward_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor) -> Tensor:
        gate, grad = tape.gates[self.name], tape.grad_outputs[self.name]
        curvature: Tensor = torch.ops.aten.sigmoid_backward(grad * tangents.inputs[self.name], gate)
        return curvature.mul_(self.beta).addcmul_(tangent, gate)


@final
@dataclass(frozen=True, kw_only=True)
class MaxPooling:
    """The maximum in each window of an image."""

    name: str
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.inputs[self.name] = x
        window = self.kernel_size, self.stride, self.padding
        out, tape.argmax[self.name] = max_pool2d(x, *window, return_indices=True)
        return out

    def jvp(self, tape: Tape, tangent: Tensor) -> Tensor:
        argmax = tape.argmax[self.name]
        found = tangent.flatten(2).gather(2, argmax.flatten(2)).view(argmax.shape)
        last = argmax.is_contiguous(memory_format=torch.channels_last)
        return found.contiguous(memory_format=torch.channels_last) if last else found

    def vjp(self, tape: Tape, grad: Tensor) -> Tensor:
        window = self.kernel_size, self.stride, self.padding, (1, 1), False
        found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            grad, tape.inputs[self.name], *window, tape.argmax[self.name]
        )
        return found


@final
@dataclass(frozen=True, kw_only=True)
class GlobalAverage:
    """The mean of each channel over the image."""

    name: str

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.inputs[self.name] = x
        return x.mean((2, 3), keepdim=True)

    def jvp(self, tape: Tape, tangent: Tensor) -> Tensor:
        return tangent.mean((2, 3), keepdim=True)

    def vjp(self, tape: Tape, grad: Tensor) -> Tensor:
        x = tape.inputs[self.name]
        return (grad / x[0, 0].numel()).expand_as(x)


@final
@dataclass(frozen=True, kw_only=True)
class Flattening:
    """Images as vectors."""

    name: str

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        tape.inputs[self.name] = x
        return x.flatten(1)

    def jvp(self, tape: Tape, tangent: Tensor) -> Tensor:
        return tangent.flatten(1)

    def vjp(self, tape: Tape, grad: Tensor) -> Tensor:
        return grad.view(tape.inputs[self.name].shape)
