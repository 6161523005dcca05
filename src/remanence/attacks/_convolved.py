"""The training of a convolutional net with its gradient written out, and its weights as one vector.

Going back through a step needs what its forward and backward pass left: it is kept, or where memory is short made again
from the weights in front of the step. Records may be taken in several passes, as gradients and their changes add up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from remanence.attacks._gates import Gates
from remanence.attacks._simulation import SHARE_OF_MEMORY, Read, free_memory
from remanence.engine import cnn as plain_cnn
from remanence.engine.cnn import PlainCnn
from remanence.engine.cnn_pieces import Gated
from remanence.engine.cnn_reading import in_place_of_kinks, rectified
from remanence.engine.cnn_tape import Tape
from remanence.search.distances import ByProducts, Distance
from remanence.training import SGD, Adam, AdamW, RMSProp, Training
from remanence.types import Params

_ALL = "all"  # the one name of the one vector
_WORKED_ON = 8  # vectors of weights: folded, joined, pulls and their changes
_COPIES_OF_SGD = 2  # the weights and the momentum
_OF_ANOTHER = 6  # vectors of weights that the graph of another optimiser's step holds
_BESIDE_A_TAPE = 2  # times the numbers of a tape: itself, the changes of inputs, and what a layer works on


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Convolved:
    net: PlainCnn
    initial: Params
    begun: Tensor
    moved: Tensor  # how far the victim's weights are from the start
    y: Tensor
    distance: ByProducts
    kept: bool = True  # what the passes of a step leave
    at_once: int | None = None  # records to a pass; None: all of a batch
    gates: Gates | None = None  # None: the steps that ReLU's slopes are

    @classmethod
    def of(
        cls,
        model: nn.Module,
        training: Training,
        initial: Params,
        final: Params,
        y: Tensor,
        distance: Distance,
        *,
        shape: Sequence[int],
    ) -> "Convolved | None":
        """None where the net is not one of convolutions and ReLU, or gradients are clipped one by one."""
        like = next(iter(initial.values()))
        fast = like.is_cuda and like.dtype != torch.float64
        form = torch.channels_last if fast else torch.contiguous_format
        if training.privacy or not isinstance(training.optimizer, SGD | Adam | AdamW | RMSProp):
            return None  # others may treat each layer by itself
        batch = min(training.batch_size or len(y), len(y))
        net = plain_cnn.of(model, initial, training.loss, shape=shape, records=batch, form=form)
        if net is None or not isinstance(distance, ByProducts):  # others may ask for the order of the weights
            return None
        begun, end = net.order.packed(initial), net.order.packed(final)
        return cls(net=net, initial=initial, begun=begun, moved=end - begun, y=y, distance=distance)

    def gated(self, sharpness: tuple[float, float], x: Tensor) -> "Convolved":
        """With gates that are wide by what enters them when these records do, with the first weights."""
        gates = Gates.of(sharpness, self._units(x))
        now = dict(zip(rectified(self.net.layers), gates.now, strict=True))
        layers = in_place_of_kinks(self.net.layers, lambda name: Gated(name=name, steepness=now[name]))
        return replace(self, net=replace(self.net, layers=layers), gates=gates)

    @torch.no_grad()
    def _units(self, x: Tensor) -> Tensor:
        """The root mean square of what enters each ReLU, or one where nothing does; memory for all of `x` at once is
        not yet known to be there."""
        (read,), squares = self.read(x), self.begun.new_zeros(len(tuple(rectified(self.net.layers))))
        for record in read.split(1):
            for place, seen in enumerate(self.net.entering(self.begun, record).values()):
                squares[place] += seen.square().mean() / len(x)
        return squares.sqrt().masked_fill(squares == 0, 1.0)

    def prepare(self, done: float) -> None:
        if self.gates is not None:
            self.gates.sharpen(done)

    def start(self, records: Tensor) -> Params:
        return {_ALL: self.begun}

    def read(self, x: Tensor) -> Read:
        return (self.net.read(self.initial, x),)

    def within(self, x: Tensor) -> Tensor:
        return x

    def gradient(self, weights: Params, read: Read, y: Tensor, batch: Tensor | None) -> Params:
        (x,) = read
        x, y = (x, y) if batch is None else (x[batch], y[batch])
        return {_ALL: _Gradient.apply(self, weights[_ALL], x, y)}  # type: ignore[no-untyped-call]

    def apart(self, weights: Params, read: Read) -> Tensor:
        return self.distance(self.moved, weights[_ALL] - self.begun)

    def fitted(
        self, shape: Sequence[int], *, steps: int, batch: int, copies: int, segment: int | None
    ) -> tuple["Convolved", int]:
        """The fastest way that fits into free memory, and how many steps share a graph: tapes are kept or made again,
        in one graph or in segments, between which weights and what the optimiser keeps stay, `copies` of them."""
        weights, free = self.begun.nbytes, SHARE_OF_MEMORY * free_memory(self.begun.device)
        tape, at_once = self._tape(shape, batch), batch
        while at_once > 1 and self._worked_on(shape, at_once) > free / 2:
            at_once = ceil(at_once / 2)
        work = self._worked_on(shape, at_once)

        step = weights * (1 if copies <= _COPIES_OF_SGD else _OF_ANOTHER)

        def fits(segment: int, kept: bool) -> bool:
            cuts = ceil(steps / segment) if segment < steps else 0
            return work + segment * (step + kept * tape) + cuts * copies * weights <= free

        cut = [min(steps, max(1, round(sqrt(steps * copies * weights / (step + left))))) for left in (tape, 0)]
        ways = [(steps, True), (steps, False), (cut[0], True), (cut[1], False)]
        ways = ways if segment is None else [(segment, True), (segment, False)]
        chosen, kept = next((way for way in ways if fits(*way)), ways[-1])
        return replace(self, kept=kept, at_once=at_once if at_once < batch else None), chosen

    def _tape(self, shape: Sequence[int], records: int) -> int:
        return self.begun.element_size() * self.net.held(shape, records)

    def _worked_on(self, shape: Sequence[int], records: int) -> int:
        """Bytes that going back through a step takes besides what is kept of others, at most."""
        return _WORKED_ON * self.begun.nbytes + _BESIDE_A_TAPE * self._tape(shape, records)

    def told(self) -> str:
        passes = f", records taken {self.at_once} at a time" if self.at_once else ""
        return f"{'' if self.kept else ', each step made again on the way back'}{passes}"

    def parts(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        size = self.at_once or len(x)
        return zip(x.split(size), y.split(size), strict=True)

    def passed(self, weights: Tensor, x: Tensor, y: Tensor, records: int) -> tuple[Tensor, Tape | None]:
        """The part of these records in the gradient, and the tape where it is kept."""
        tape = self.net.tape(weights, x, y, records=records, pulls=True)
        return self.net.gradient(weights, tape), tape if self.kept else None

    def along(
        self, weights: Tensor, way: Tensor, x: Tensor, y: Tensor, records: int, tape: Tape | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        tape = tape or self.net.tape(weights, x, y, records=records, pulls=False)
        return self.net.along(weights, way, tape, y, records=records)


class _Gradient(torch.autograd.Function):
    """The gradient at weights and records, and at labels that are shares of classes: once differentiable by each."""

    @staticmethod
    def forward(ctx: Any, of: Convolved, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parts = (of.passed(weights, *part, len(x)) for part in of.parts(x, y))
        found, tape = next(parts)
        ctx.of, ctx.tapes = of, [tape]
        for more, tape in parts:
            found += more
            ctx.tapes.append(tape)
        ctx.save_for_backward(weights, x, y)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[None, Tensor, Tensor, Tensor | None]:
        of, (weights, x, y) = ctx.of, ctx.saved_tensors
        pairs = zip(of.parts(x, y), ctx.tapes, strict=True)
        ctx.tapes = [None] * len(ctx.tapes)  # let go of as the graph is gone through
        changes = [of.along(weights, slope, *part, len(x), tape) for part, tape in pairs]
        by_weights, by_records, by_labels = zip(*changes, strict=True)
        shares = torch.cat(by_labels) if ctx.needs_input_grad[3] else None
        return None, sum(by_weights[1:], start=by_weights[0]), torch.cat(by_records), shares
