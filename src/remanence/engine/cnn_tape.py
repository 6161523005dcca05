"""The four passes of a layer, and the tape of what they compute.

A network is differentiated in closed form by a forward pass, a backward pass, and the directional derivative (the
Jacobian-vector product) of each along a direction of the weights: the last of these is the derivative of
<gradient, direction>  with respect to weights and images. Autograd computes it by going back through the backward pass,
where the gradient of a kernel is a convolution with a filter as large as the image. Here a convolution runs forward,
back to its input and back to its kernel, and in no other form. The directional derivative of each is a sum of two
convolutions, as the derivative of a product is; where they share an output they are one, with the channels of both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, final

from torch import Tensor

from remanence.engine.streams import SideStreams

Tensors: TypeAlias = dict[str, Tensor]  # by layer


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    """Kernels and shifts as they are applied, or their tangents along a direction."""

    kernels: Tensors
    shifts: Tensors


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Tape:
    """What the passes compute for each layer; on the tape of tangents, the directional derivatives of these."""

    weights: Weights
    side: SideStreams  # for what no later layer of a pass waits for
    inputs: Tensors = field(default_factory=dict)
    gates: Tensors = field(default_factory=dict)  # positive where ReLU is open; the derivative of a surrogate
    argmax: Tensors = field(default_factory=dict)  # indices of maxima
    grad_outputs: Tensors = field(default_factory=dict)
    grad_kernels: Tensors = field(default_factory=dict)
    grad_shifts: Tensors = field(default_factory=dict)
    # on the tape of tangents: convolutions that do not depend on the pass, and were launched before it
    ahead: dict[tuple[str, str], Callable[[], Tensor]] = field(default_factory=dict)

    def num_values(self) -> int:
        """The number of values on the tape besides weights; layers share outputs and inputs."""
        recorded = (self.inputs, self.gates, self.argmax, self.grad_outputs, self.grad_kernels)
        return sum({id(t): t.numel() for tensors in recorded for t in tensors.values()}.values())


class Layer(Protocol):
    """A layer with its passes; `tape` holds values, `tangents` their directional derivatives."""

    def forward(self, tape: Tape, x: Tensor) -> Tensor: ...
    def backward(self, tape: Tape, grad: Tensor, *, weight_grads: bool) -> Tensor:
        """The gradient with respect to the input from that with respect to the output; with `weight_grads` those with
        respect to the weights go onto the tape."""

    def forward_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor | None) -> Tensor:
        """The tangent of the output from that of the input; None: the input is that of the network, which is fixed."""

    def backward_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor) -> Tensor:
        """The tangent of the gradient with respect to the input from that with respect to the output."""


@final
@dataclass(frozen=True, kw_only=True)
class ResidualSum:
    """The sum of two branches; one without layers is the input itself."""

    inner: tuple[Layer, ...]  # starts and ends with a convolution, so that its output may be overwritten
    shortcut: tuple[Layer, ...]

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        return forward(self.inner, tape, x).add_(forward(self.shortcut, tape, x))

    def backward(self, tape: Tape, grad: Tensor, *, weight_grads: bool) -> Tensor:
        below = backward(self.inner, tape, grad, weight_grads=weight_grads)
        return below.add_(backward(self.shortcut, tape, grad, weight_grads=weight_grads))

    def forward_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor | None) -> Tensor:
        assert tangent is not None
        inner = forward_jvp(self.inner, tape, tangents, tangent)
        return inner.add_(forward_jvp(self.shortcut, tape, tangents, tangent))

    def backward_jvp(self, tape: Tape, tangents: Tape, tangent: Tensor) -> Tensor:
        inner = backward_jvp(self.inner, tape, tangents, tangent)
        return inner.add_(backward_jvp(self.shortcut, tape, tangents, tangent))


def forward(layers: Sequence[Layer], tape: Tape, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer.forward(tape, x)
    return x


def backward(layers: Sequence[Layer], tape: Tape, grad: Tensor, *, weight_grads: bool) -> Tensor:
    for layer in reversed(layers):
        grad = layer.backward(tape, grad, weight_grads=weight_grads)
    return grad


def forward_jvp(layers: Sequence[Layer], tape: Tape, tangents: Tape, tangent: Tensor | None) -> Tensor:
    for layer in layers:
        tangent = layer.forward_jvp(tape, tangents, tangent)
    assert tangent is not None
    return tangent


def backward_jvp(layers: Sequence[Layer], tape: Tape, tangents: Tape, tangent: Tensor) -> Tensor:
    for layer in reversed(layers):
        tangent = layer.backward_jvp(tape, tangents, tangent)
    return tangent
