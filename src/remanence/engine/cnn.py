"""The gradient of a convolutional net with ReLU, written out, and how it changes along a direction.

All trained weights are one vector, so that a step of the optimiser is one kernel. A frozen BatchNorm is a factor and a
shift of each channel. It is folded into the convolution in front of it where the kernel is smaller than what it makes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import final

import torch
from torch import Tensor, nn

from remanence.engine.cnn_pieces import Piecewise, Rectifier
from remanence.engine.cnn_reading import in_place_of_kinks, layers_of, norms_of, rectified, refusal
from remanence.engine.cnn_tape import Layer, Tape, Tensors, Weights, back, back_along, forward, forward_along
from remanence.engine.cnn_vector import Norms, Order
from remanence.models.operations import Conv, Linear, Norm, walk
from remanence.models.structure import CNN, parse
from remanence.training.losses import CrossEntropy, KnownLoss, Logistic, Loss, SquaredError
from remanence.types import Params


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class PlainCnn:
    structure: CNN
    layers: tuple[Layer, ...]
    order: Order
    norms: Norms
    loss: KnownLoss

    def read(self, params: Params, x: Tensor) -> Tensor:
        """What the first convolution takes in."""
        return self.structure.inputs(params, x).contiguous(memory_format=self.order.form)

    def tape(self, weights: Tensor, x: Tensor, y: Tensor, *, records: int, pulls: bool) -> Tape:
        """Forward and back, for the mean loss of `records` of which these are some; with what pulls at the weights."""
        tape = Tape(at=self._applied(weights))
        logits = forward(self.layers, tape, x.contiguous(memory_format=self.order.form))
        tape.inputs[_LOGITS] = logits
        back(self.layers, tape, self.loss.grad_logits(logits, y) / records, pulls=pulls)
        return tape

    def entering(self, weights: Tensor, x: Tensor) -> Tensors:
        """What enters each ReLU, on a way forward alone."""
        tape = Tape(at=self._applied(weights))
        layers = in_place_of_kinks(self.layers, lambda name: Piecewise(piece=Rectifier(name=name, noted=True)))
        forward(layers, tape, x.contiguous(memory_format=self.order.form))
        return {name: tape.inputs[name] for name in rectified(self.layers)}

    def gradient(self, weights: Tensor, tape: Tape) -> Tensor:
        """From a tape with pulls, which are taken off it."""
        found = torch.empty_like(weights)
        named, at, scales = self.order.named(found), self.order.named(weights), self.norms.scales(weights)
        for name in self._folded:
            pull, weight = tape.pulls[name], f"{name}.weight"
            torch.mul(pull, _rows(scales[name]), out=named[weight])
            tape.pulls[name] = (pull * at[weight]).sum((1, 2, 3))
        self._finish(found, named, tape)
        return found

    def along(
        self, weights: Tensor, way: Tensor, tape: Tape, y: Tensor, *, records: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """How the gradient by weights, by images and by the shares of their classes changes along `way`, from a tape at
        `weights`."""
        along = Tape(at=self._changed(weights, way))
        moved, logits = forward_along(self.layers, tape, along, None), tape.inputs[_LOGITS]
        by_images = back_along(self.layers, tape, along, self.loss.hvp_logits(logits, y, moved) / records)
        found = torch.empty_like(weights)
        named, at, ways = (self.order.named(each) for each in (found, weights, way))
        scales, changes = self.norms.scales(weights), self.norms.scales(way)
        for name in self._folded:
            weight = f"{name}.weight"
            change, pull = along.pulls[name].chunk(2)
            torch.mul(change, _rows(scales[name]), out=named[weight]).addcmul_(pull, _rows(changes[name]))
            along.pulls[name] = (change * at[weight]).addcmul_(pull, ways[weight]).sum((1, 2, 3))
        self._finish(found, named, along)
        return found, by_images, -moved / records

    def held(self, shape: Sequence[int], records: int) -> int:
        """Numbers that a tape of so many records of this shape holds, without pulls."""
        norms = replace(self.norms, mean=self.norms.mean.to("meta"), rate=self.norms.rate.to("meta"))
        net, like = replace(self, norms=norms), norms.mean
        weights = like.new_empty(sum(prod(shape) for shape in self.order.shapes.values()))
        labels = torch.zeros(records, dtype=torch.int64, device="meta")
        tape = net.tape(weights, like.new_empty(records, *shape), labels, records=records, pulls=False)
        return tape.held() + sum(tape.at.kernels[name].numel() for name in self._folded)

    def _applied(self, weights: Tensor) -> Weights:
        named, scales = self.order.named(weights), self.norms.scales(weights)
        kernels = {name: named[f"{name}.weight"] for name in self.order.layers}
        kernels |= {name: kernels[name] * _rows(scales[name]) for name in self._folded}
        return self._with_norms(weights, kernels, scales)

    def _changed(self, weights: Tensor, way: Tensor) -> Weights:
        """What is applied, along a direction."""
        at, named = self.order.named(weights), self.order.named(way)
        scales, changes = self.norms.scales(weights), self.norms.scales(way)
        kernels = {name: named[f"{name}.weight"] for name in self.order.layers}
        for name in self._folded:
            kernels[name] = (kernels[name] * _rows(scales[name])).addcmul_(at[f"{name}.weight"], _rows(changes[name]))
        return self._with_norms(way, kernels, changes)

    def _with_norms(self, weights: Tensor, kernels: Params, scales: Params) -> Weights:
        """Scales and shifts are linear in the weights, so that a direction has them too."""
        named, shifts = self.order.named(weights), self.norms.shifts(weights)
        biases = {name: named[f"{name}.bias"] for name in self.order.layers if f"{name}.bias" in named}
        own = {name: scale for name, scale in scales.items() if name not in kernels}
        shifts |= {name: _planes(shifts[name]) for name in own}
        return Weights(kernels=kernels | {name: _planes(scale) for name, scale in own.items()}, shifts=shifts | biases)

    def _finish(self, found: Tensor, named: Params, tape: Tape) -> None:
        """What pulls at kernels that no norm is folded into, at biases, and at the factors and shifts of norms."""
        norms = list(self.norms.channels)
        products = [tape.pulls.pop(name) for name in norms]
        parts = {f"{name}.weight": tape.pulls.pop(name) for name in self.order.layers if name not in norms}
        parts |= {f"{name}.bias": tape.shifted[name] for name in self.order.layers if f"{name}.bias" in named}
        first = [part[: len(named[name])] for name, part in parts.items()]  # without the pull behind a change
        torch._foreach_copy_([named[name] for name in parts], first)
        if norms:
            self.norms.pull(found, torch.cat(products), torch.cat([tape.shifted[name] for name in norms]))

    @property
    def _folded(self) -> list[str]:
        return [name for name in self.norms.channels if name in self.order.layers]


_LOGITS = ".logits"  # which is no path of a layer


def _rows(channels: Tensor) -> Tensor:
    return channels.view(-1, 1, 1, 1)


def _planes(channels: Tensor) -> Tensor:
    return channels.view(1, -1, 1, 1)


def of(
    model: nn.Module,
    params: Params,
    loss: Loss,
    *,
    shape: Sequence[int],
    records: int,
    form: torch.memory_format = torch.contiguous_format,
) -> PlainCnn | None:
    """None where the model is something else, or the loss not one of ours. A norm is folded into a kernel that has
    fewer numbers than what it makes of so many records of this shape."""
    structure = parse(model, shape)
    if refusal(structure) or not isinstance(loss, CrossEntropy | Logistic | SquaredError):
        return None
    assert isinstance(structure, CNN)
    if not _shown(params, structure):
        return None
    order = _order(model, structure, form)
    layers = [each for each in walk(structure.operations) if isinstance(each, Conv)]
    light = {each.path for each in layers if prod(order.shapes[each.weight]) < records * prod(each.out_shape)}
    taken = {conv if conv in light else norm.path: norm for conv, norm in norms_of(structure.operations).items()}
    return PlainCnn(
        structure=structure,
        layers=layers_of(structure.operations, light),
        order=order,
        norms=_norms(taken, order, params),
        loss=loss,
    )


def _shown(params: Params, structure: CNN) -> bool:
    """Whether the weights come with the statistics of norms and the buffers that images are normalised by."""
    needed = [] if structure.norm is None else list(structure.norm.buffers)
    for norm in norms_of(structure.operations).values():
        needed += [f"{norm.path}.running_mean", f"{norm.path}.running_var"]
    return all(name in params for name in needed)


def _order(model: nn.Module, structure: CNN, form: torch.memory_format) -> Order:
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    layers = [each for each in walk(structure.operations) if isinstance(each, Conv | Linear)]
    norms = [norm.path for norm in norms_of(structure.operations).values()]
    names = [*(each.weight for each in layers), *(f"{norm}.weight" for norm in norms)]
    names += [*(f"{norm}.bias" for norm in norms), *(each.bias for each in layers if each.has_bias)]
    return Order(shapes={name: shapes[name] for name in names}, layers=tuple(each.path for each in layers), form=form)


def _norms(taken: dict[str, Norm], order: Order, params: Params) -> Norms:
    """`taken` is each norm by the layer that takes it."""
    like = params[f"{order.layers[0]}.weight"]
    means, rates = [like.new_empty(0)], [like.new_empty(0)]
    for norm in taken.values():
        means.append(params[f"{norm.path}.running_mean"])
        rates.append((params[f"{norm.path}.running_var"] + norm.eps).rsqrt())
    return Norms(
        channels={name: len(mean) for name, mean in zip(taken, means[1:], strict=True)},
        first=sum(prod(order.shapes[f"{name}.weight"]) for name in order.layers),
        mean=torch.cat(means),
        rate=torch.cat(rates),
    )
