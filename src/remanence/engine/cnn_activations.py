"""Layers without weights: ReLU, pooling and flattening, which are piecewise linear, and ReLU with a surrogate
derivative."""

from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from remanence.engine.cnn_tape import Tape
from remanence.models.operations import MaxPool


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

    @classmethod
    def from_operation(cls, pool: MaxPool) -> "MaxPooling":
        return cls(name=pool.name, kernel_size=pool.kernel_size, stride=pool.stride, padding=pool.padding)

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
