"""The training of a convolutional net with its gradient in closed form, and its weights as one vector.

The backward pass through a step needs the tape of its forward and backward pass: it is stored, or where memory is short
recomputed from the weights before the step. Records may be taken in several passes, as gradients and their derivatives
are sums over records.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from remanence.engine.chooser import engine_for
from remanence.engine.cnn import CNNEngine
from remanence.engine.cnn_layers import SurrogateRectifier
from remanence.engine.cnn_structure import relu_names, replace_relus
from remanence.engine.cnn_tape import Tape
from remanence.engine.surrogate import Surrogate, SurrogateState
from remanence.engine.unroll import USABLE_FRACTION, Inputs, Vectors, free_memory
from remanence.training import SGD, Adam, AdamW, RMSProp, Training
from remanence.types import Params

_VECTOR = "weights"  # the one name of the one vector
_WORKSPACE = 8  # vectors of weights that a backward pass needs: folded, joined, gradients and their derivatives
_COPIES_OF_SGD = 2  # the weights and the momentum
_COPIES_OF_ADAPTIVE = 6  # vectors of weights that the graph of another optimizer's step holds
_TAPES = 3  # times the values of a tape: itself, the derivatives of inputs, what a layer works on and what runs ahead


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class CNNDynamics:
    """`Dynamics` of a convolutional net with ReLU, its weights in one vector."""

    net: CNNEngine
    initial: Params
    start: Tensor  # the initial weights, flat
    update: Tensor  # the victim's weights less the initial ones, flat
    store_tapes: bool = True  # False: each step is run again in the backward pass
    chunk: int | None = None  # records to a pass; None: all of a batch
    surrogate: SurrogateState | None = None  # None: ReLU's own derivative

    @classmethod
    def from_release(
        cls, model: nn.Module, training: Training, initial: Params, final: Params, *, records: int, shape: Sequence[int]
    ) -> "CNNDynamics | None":
        """None where the net is not one of convolutions and ReLU, gradients are clipped one by one, or weights are
        decayed but not biases."""
        if training.privacy or not isinstance(training.optimizer, SGD | Adam | AdamW | RMSProp):
            return None  # others may treat each layer by itself
        if training.weight_decay and not training.decay_biases:
            return None
        batch = min(training.batch_size or records, records)
        net = engine_for(model, training, shape, frozen=initial, records=batch)
        if not isinstance(net, CNNEngine):
            return None
        start = net.layout.pack(initial)
        return cls(net=net, initial=initial, start=start, update=net.layout.pack(final) - start)

    def with_surrogate(self, surrogate: Surrogate, x: Tensor) -> "CNNDynamics":
        """With a surrogate scaled by the pre-activations of records `x` at the initial weights."""
        state = SurrogateState.initial(surrogate, self._scales(x))
        betas = dict(zip(relu_names(self.net.layers), state.beta, strict=True))
        layers = replace_relus(self.net.layers, lambda name: SurrogateRectifier(name=name, beta=betas[name]))
        return replace(self, net=replace(self.net, layers=layers), surrogate=state)

    @torch.no_grad()
    def _scales(self, x: Tensor) -> Tensor:
        """The root mean square of the input of each ReLU, or one where it is zero; record by record, as memory for all
        of `x` at once may not be there."""
        (inputs,), squares = self.inputs(x), self.start.new_zeros(len(tuple(relu_names(self.net.layers))))
        for record in inputs.split(1):
            for index, entering in enumerate(self.net.relu_inputs(self.start, record).values()):
                squares[index] += entering.square().mean() / len(x)
        return squares.sqrt().masked_fill(squares == 0, 1.0)

    def set_progress(self, progress: float) -> None:
        if self.surrogate is not None:
            self.surrogate.set_progress(progress)

    def initial_weights(self, records: Tensor) -> Params:
        return {_VECTOR: self.start}

    def inputs(self, x: Tensor) -> Inputs:
        return (self.net.inputs(self.initial, x),)

    def project(self, x: Tensor) -> Tensor:
        return x

    def gradient(self, weights: Params, inputs: Inputs, y: Tensor, batch: Tensor | None) -> Params:
        (x,) = inputs
        x, y = (x, y) if batch is None else (x[batch], y[batch])
        return {_VECTOR: _Gradient.apply(self, weights[_VECTOR], x, y)}  # type: ignore[no-untyped-call]

    def compare(self, weights: Params, inputs: Inputs) -> Vectors:
        return Vectors(target=self.update, update=weights[_VECTOR] - self.start)

    def fit_memory(
        self, shape: Sequence[int], *, steps: int, batch: int, copies: int, segment: int | None
    ) -> tuple["CNNDynamics", int]:
        """The fastest setting that fits into free memory, and how many steps form a graph: tapes are stored or
        recomputed, in one graph or in segments, between which `copies` of the weights stay."""
        weights, free = self.start.nbytes, USABLE_FRACTION * free_memory(self.start.device)
        tape, chunk = self._tape_bytes(shape, batch), batch
        while chunk > 1 and self._workspace_bytes(shape, chunk) > free / 2:
            chunk = ceil(chunk / 2)
        workspace = self._workspace_bytes(shape, chunk)
        step = weights * (1 if copies <= _COPIES_OF_SGD else _COPIES_OF_ADAPTIVE)

        def fits(segment: int, store_tapes: bool) -> bool:
            between = ceil(steps / segment) if segment < steps else 0
            return workspace + segment * (step + store_tapes * tape) + between * copies * weights <= free

        lengths = [min(steps, max(1, round(sqrt(steps * copies * weights / (step + held))))) for held in (tape, 0)]
        options = [(steps, True), (steps, False), (lengths[0], True), (lengths[1], False)]
        options = options if segment is None else [(segment, True), (segment, False)]
        chosen, store_tapes = next((option for option in options if fits(*option)), options[-1])
        return replace(self, store_tapes=store_tapes, chunk=chunk if chunk < batch else None), chosen

    def _tape_bytes(self, shape: Sequence[int], records: int) -> int:
        return self.start.element_size() * self.net.tape_values(shape, records)

    def _workspace_bytes(self, shape: Sequence[int], records: int) -> int:
        """At most what the backward pass through a step takes besides the stored tapes of others."""
        return _WORKSPACE * self.start.nbytes + _TAPES * self._tape_bytes(shape, records)

    def describe(self) -> str:
        passes = f", records taken {self.chunk} at a time" if self.chunk else ""
        return f"{'' if self.store_tapes else ', each step run again in the backward pass'}{passes}"

    def chunks(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        size = self.chunk or len(x)
        return zip(x.split(size), y.split(size), strict=True)

    def gradient_of_chunk(self, weights: Tensor, x: Tensor, y: Tensor, records: int) -> tuple[Tensor, Tape | None]:
        """The part of these records in the gradient, and the tape where it is stored."""
        tape = self.net.record(weights, x, y, records=records, weight_grads=True)
        return self.net.vector_gradient(weights, tape), tape if self.store_tapes else None

    def hvp_of_chunk(
        self, weights: Tensor, direction: Tensor, x: Tensor, y: Tensor, records: int, tape: Tape | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Derivatives of <direction, gradient> by weights, records and label probabilities."""
        tape = tape or self.net.record(weights, x, y, records=records, weight_grads=False)
        return self.net.vector_hvp(weights, direction, tape, y, records=records)


class _Gradient(torch.autograd.Function):
    """The gradient at weights, records and label probabilities: once differentiable by each."""

    @staticmethod
    def forward(ctx: Any, dynamics: CNNDynamics, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parts = (dynamics.gradient_of_chunk(weights, *chunk, len(x)) for chunk in dynamics.chunks(x, y))
        total, tape = next(parts)
        ctx.dynamics, ctx.tapes = dynamics, [tape]
        for more, tape in parts:
            total += more
            ctx.tapes.append(tape)
        ctx.save_for_backward(weights, x, y)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, direction: Tensor) -> tuple[None, Tensor, Tensor, Tensor | None]:
        dynamics, (weights, x, y) = ctx.dynamics, ctx.saved_tensors
        pairs = zip(dynamics.chunks(x, y), ctx.tapes, strict=True)
        ctx.tapes = [None] * len(ctx.tapes)  # released as the graph is traversed
        parts = [dynamics.hvp_of_chunk(weights, direction, *chunk, len(x), tape) for chunk, tape in pairs]
        grad_weights, grad_x, grad_y = zip(*parts, strict=True)
        labels = torch.cat(grad_y) if ctx.needs_input_grad[3] else None
        return None, sum(grad_weights[1:], start=grad_weights[0]), torch.cat(grad_x), labels
