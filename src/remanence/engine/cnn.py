"""The closed-form gradient of a CNN with ReLU, and its Hessian-vector product.

All trained weights are one vector, so that a step of the optimizer is one kernel. A frozen BatchNorm is a factor and a
shift of each channel. It is folded into the convolution before it where the kernel has fewer values than the output.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import final

import torch
from torch import Tensor, nn

from remanence.engine.base import HVP
from remanence.engine.cnn_layers import Piecewise, Rectifier
from remanence.engine.cnn_structure import (
    closed_form_layers,
    convolutions,
    norms_by_conv,
    refusal,
    relu_names,
    replace_relus,
)
from remanence.engine.cnn_tape import Layer, Tape, Tensors, Weights, backward, backward_jvp, forward, forward_jvp
from remanence.engine.streams import SideStreams
from remanence.models.operations import Conv, Linear, Norm, walk
from remanence.models.structure import CNN, parse
from remanence.training.losses import CrossEntropy, KnownLoss, Logistic, Loss, SquaredError
from remanence.types import Params

_LOGITS = ".logits"  # which is no path of a layer


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """The order of the weights in the vector: those of layers, the gammas of all norms, their betas, then biases."""

    shapes: dict[str, tuple[int, ...]]
    layers: tuple[str, ...]  # convolutions and linear layers
    memory_format: torch.memory_format  # of images and kernels: channels last is fastest on a CUDA device

    def pack(self, params: Params) -> Tensor:
        """The vector of these parameters."""
        return torch.cat([self._permuted(params[name]).flatten() for name in self.shapes])

    def unpack(self, vector: Tensor) -> Params:
        """Views of the parts of a vector, by name."""
        parts = vector.split([prod(shape) for shape in self.shapes.values()])
        return {name: self._shaped(part, shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def _permuted(self, p: Tensor) -> Tensor:
        return p.permute(0, 2, 3, 1) if p.ndim == 4 and self.memory_format == torch.channels_last else p

    def _shaped(self, part: Tensor, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 4 and self.memory_format == torch.channels_last:
            return part.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
        return part.view(shape)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FrozenNorms:
    """Frozen BatchNorms with the channels of all concatenated: gamma (z - mean) / sqrt(variance + eps) + beta."""

    channels: dict[str, int]  # by the layer that applies it: a convolution that it is folded into, or the norm itself
    offset: int  # of the gammas in the vector; betas follow
    mean: Tensor
    inverse_std: Tensor  # 1 / sqrt(variance + eps)

    def scales(self, weights: Tensor) -> Params:
        return self._by_layer(self._scale(weights))

    def shifts(self, weights: Tensor) -> Params:
        beta = weights[self._betas : self._betas + len(self.mean)]
        return self._by_layer(beta.addcmul(self.mean, self._scale(weights), value=-1))

    def write_gradient(self, gradient: Tensor, grad_scales: Tensor, grad_shifts: Tensor) -> None:
        """Write the gradients with respect to gammas, which act on scales and shifts, and betas into the vector."""
        grad_gamma = grad_scales.addcmul_(self.mean, grad_shifts, value=-1)
        torch.mul(grad_gamma, self.inverse_std, out=gradient[self.offset : self._betas])
        gradient[self._betas : self._betas + len(self.mean)].copy_(grad_shifts)

    @property
    def _betas(self) -> int:
        return self.offset + len(self.mean)

    def _scale(self, weights: Tensor) -> Tensor:
        return weights[self.offset : self._betas] * self.inverse_std

    def _by_layer(self, concatenated: Tensor) -> Params:
        return dict(zip(self.channels, concatenated.split(list(self.channels.values())), strict=True))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class CNNEngine:
    """A CNN with ReLU and frozen norms. Methods on vectors take weights and directions as `layout` packs them, and
    images as `inputs` gives them."""

    structure: CNN
    layers: tuple[Layer, ...]
    layout: Layout
    norms: FrozenNorms
    loss: KnownLoss

    def gradient(self, params: Params, x: Tensor, y: Tensor) -> Params:
        weights = self.layout.pack(params)
        tape = self.record(weights, self.inputs(params, x), y, records=len(x), weight_grads=True)
        return self.layout.unpack(self.vector_gradient(weights, tape))

    def hvp(self, params: Params, x: Tensor, y: Tensor, direction: Params) -> HVP:
        weights, images = self.layout.pack(params), self.inputs(params, x)
        tape = self.record(weights, images, y, records=len(x), weight_grads=False)
        by_weights, by_images, by_labels = self.vector_hvp(
            weights, self.layout.pack(direction), tape, y, records=len(x)
        )
        std = None if self.structure.norm is None else self.structure.norm.std
        by_x = by_images if std is None else by_images / std.value(params)
        return self.layout.unpack(by_weights), by_x, by_labels if y.is_floating_point() else None

    def inputs(self, params: Params, x: Tensor) -> Tensor:
        """What the first convolution takes in, in the memory format of the layout."""
        return self.structure.inputs(params, x).contiguous(memory_format=self.layout.memory_format)

    def record(self, weights: Tensor, x: Tensor, y: Tensor, *, records: int, weight_grads: bool) -> Tape:
        """The tape of the forward and backward pass for the mean loss of `records`, of which these are some; with
        `weight_grads` the gradients of kernels and shifts are on it."""
        tape = Tape(weights=self._applied(weights), side=SideStreams(x.device))
        logits = forward(self.layers, tape, x.contiguous(memory_format=self.layout.memory_format))
        tape.inputs[_LOGITS] = logits
        backward(self.layers, tape, self.loss.grad_logits(logits, y) / records, weight_grads=weight_grads)
        tape.side.join()
        return tape

    def relu_inputs(self, weights: Tensor, x: Tensor) -> Tensors:
        """The inputs of each ReLU in a forward pass."""
        tape = Tape(weights=self._applied(weights), side=SideStreams(x.device))
        layers = replace_relus(self.layers, lambda name: Piecewise(piece=Rectifier(name=name, recorded=True)))
        forward(layers, tape, x.contiguous(memory_format=self.layout.memory_format))
        return {name: tape.inputs[name] for name in relu_names(self.layers)}

    def vector_gradient(self, weights: Tensor, tape: Tape) -> Tensor:
        """The gradient as a vector, from a tape with weight gradients, which are taken off it."""
        gradient = torch.empty_like(weights)
        named, at, scales = self.layout.unpack(gradient), self.layout.unpack(weights), self.norms.scales(weights)
        for name in self._folded:
            grad_kernel, weight = tape.grad_kernels[name], f"{name}.weight"
            torch.mul(grad_kernel, _rows(scales[name]), out=named[weight])
            tape.grad_kernels[name] = (grad_kernel * at[weight]).sum((1, 2, 3))
        self._write(gradient, named, tape)
        return gradient

    def vector_hvp(
        self, weights: Tensor, direction: Tensor, tape: Tape, y: Tensor, *, records: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The derivatives of  <gradient, direction>  with respect to weights, images and the probabilities of their
        labels, from a tape at `weights`."""
        tangents = Tape(weights=self._applied_tangent(weights, direction), side=SideStreams(weights.device))
        layers = list(convolutions(self.layers))
        for layer in layers:
            layer.launch_ahead(tape, tangents, "output")
        for layer in reversed(layers):
            layer.launch_ahead(tape, tangents, "input")
        tangent, logits = forward_jvp(self.layers, tape, tangents, None), tape.inputs[_LOGITS]
        grad_tangent = self.loss.hvp_logits(logits, y, tangent) / records
        by_images = backward_jvp(self.layers, tape, tangents, grad_tangent)
        tangents.side.join()
        product = torch.empty_like(weights)
        named, at, directions = (self.layout.unpack(each) for each in (product, weights, direction))
        scales, scale_tangents = self.norms.scales(weights), self.norms.scales(direction)
        for name in self._folded:
            weight = f"{name}.weight"
            change, grad = tangents.grad_kernels[name].chunk(2)
            torch.mul(change, _rows(scales[name]), out=named[weight]).addcmul_(grad, _rows(scale_tangents[name]))
            tangents.grad_kernels[name] = (change * at[weight]).addcmul_(grad, directions[weight]).sum((1, 2, 3))
        self._write(product, named, tangents)
        return product, by_images, -tangent / records

    def tape_values(self, shape: Sequence[int], records: int) -> int:
        """The number of values on a tape of `records` of this shape, without weight gradients."""
        norms = replace(self.norms, mean=self.norms.mean.to("meta"), inverse_std=self.norms.inverse_std.to("meta"))
        net, like = replace(self, norms=norms), norms.mean
        weights = like.new_empty(sum(prod(shape) for shape in self.layout.shapes.values()))
        labels = torch.zeros(records, dtype=torch.int64, device="meta")
        tape = net.record(weights, like.new_empty(records, *shape), labels, records=records, weight_grads=False)
        return tape.num_values() + sum(tape.weights.kernels[name].numel() for name in self._folded)

    def _applied(self, weights: Tensor) -> Weights:
        """Kernels with norms folded in, and shifts."""
        named, scales = self.layout.unpack(weights), self.norms.scales(weights)
        kernels = {name: named[f"{name}.weight"] for name in self.layout.layers}
        kernels |= {name: kernels[name] * _rows(scales[name]) for name in self._folded}
        return self._with_norms(weights, kernels, scales)

    def _applied_tangent(self, weights: Tensor, direction: Tensor) -> Weights:
        """The tangent of `_applied` along a direction."""
        at, named = self.layout.unpack(weights), self.layout.unpack(direction)
        scales, tangents = self.norms.scales(weights), self.norms.scales(direction)
        kernels = {name: named[f"{name}.weight"] for name in self.layout.layers}
        for name in self._folded:
            kernels[name] = (kernels[name] * _rows(scales[name])).addcmul_(at[f"{name}.weight"], _rows(tangents[name]))
        return self._with_norms(direction, kernels, tangents)

    def _with_norms(self, weights: Tensor, kernels: Params, scales: Params) -> Weights:
        """Adds scales and shifts of norms; they are linear in the weights, so that this holds for tangents too."""
        named, shifts = self.layout.unpack(weights), self.norms.shifts(weights)
        biases = {name: named[f"{name}.bias"] for name in self.layout.layers if f"{name}.bias" in named}
        unfolded = {name: scale for name, scale in scales.items() if name not in kernels}
        shifts |= {name: _planes(shifts[name]) for name in unfolded}
        kernels = kernels | {name: _planes(scale) for name, scale in unfolded.items()}
        return Weights(kernels=kernels, shifts=shifts | biases)

    def _write(self, vector: Tensor, named: Params, tape: Tape) -> None:
        """Write the gradients of kernels that no norm is folded into, of biases, and of norms into the vector."""
        norms = list(self.norms.channels)
        grad_scales = [tape.grad_kernels.pop(name) for name in norms]
        parts = {f"{name}.weight": tape.grad_kernels.pop(name) for name in self.layout.layers if name not in norms}
        parts |= {f"{name}.bias": tape.grad_shifts[name] for name in self.layout.layers if f"{name}.bias" in named}
        leading = [part[: len(named[name])] for name, part in parts.items()]  # a tangent may be followed by its value
        torch._foreach_copy_([named[name] for name in parts], leading)
        if norms:
            grad_shifts = torch.cat([tape.grad_shifts[name] for name in norms])
            self.norms.write_gradient(vector, torch.cat(grad_scales), grad_shifts)

    @property
    def _folded(self) -> list[str]:
        return [name for name in self.norms.channels if name in self.layout.layers]


def _rows(channels: Tensor) -> Tensor:
    return channels.view(-1, 1, 1, 1)


def _planes(channels: Tensor) -> Tensor:
    return channels.view(1, -1, 1, 1)


def cnn_engine(
    model: nn.Module,
    loss: Loss,
    params: Params,
    *,
    shape: Sequence[int],
    records: int,
    memory_format: torch.memory_format | None = None,
) -> CNNEngine | None:
    """The closed form for images of `shape`; None where the model has none, the loss is not one of ours, or `params`
    lack the statistics of norms.

    A norm is folded into a kernel that has fewer values than its output for a batch of `records`. The memory format is
    channels last on a CUDA device, unless given.
    """
    structure = parse(model, shape)
    if refusal(structure) or not isinstance(loss, CrossEntropy | Logistic | SquaredError):
        return None
    assert isinstance(structure, CNN)
    if not _has_statistics(params, structure):
        return None
    layout = _layout(model, structure, memory_format or _fastest_format(params))
    convs = [each for each in walk(structure.operations) if isinstance(each, Conv)]
    folding = {each.path for each in convs if prod(layout.shapes[each.weight]) < records * prod(each.out_shape)}
    norms = norms_by_conv(structure.operations)
    return CNNEngine(
        structure=structure,
        layers=closed_form_layers(structure.operations, folding),
        layout=layout,
        norms=_norms({conv if conv in folding else norm.path: norm for conv, norm in norms.items()}, layout, params),
        loss=loss,
    )


def _fastest_format(params: Params) -> torch.memory_format:
    like = next(iter(params.values()))
    return torch.channels_last if like.is_cuda and like.dtype != torch.float64 else torch.contiguous_format


def _has_statistics(params: Params, structure: CNN) -> bool:
    """Whether the weights come with the statistics of norms and the buffers that images are normalised by."""
    needed = [] if structure.norm is None else list(structure.norm.buffers)
    for norm in norms_by_conv(structure.operations).values():
        needed += [f"{norm.path}.running_mean", f"{norm.path}.running_var"]
    return all(name in params for name in needed)


def _layout(model: nn.Module, structure: CNN, memory_format: torch.memory_format) -> Layout:
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    layers = [each for each in walk(structure.operations) if isinstance(each, Conv | Linear)]
    norms = [norm.path for norm in norms_by_conv(structure.operations).values()]
    names = [*(each.weight for each in layers), *(f"{norm}.weight" for norm in norms)]
    names += [*(f"{norm}.bias" for norm in norms), *(each.bias for each in layers if each.has_bias)]
    paths = tuple(each.path for each in layers)
    return Layout(shapes={name: shapes[name] for name in names}, layers=paths, memory_format=memory_format)


def _norms(norms: dict[str, Norm], layout: Layout, params: Params) -> FrozenNorms:
    """The norms by the layer that applies them."""
    like = params[f"{layout.layers[0]}.weight"]
    means, inverse_stds = [like.new_empty(0)], [like.new_empty(0)]
    for norm in norms.values():
        means.append(params[f"{norm.path}.running_mean"])
        inverse_stds.append((params[f"{norm.path}.running_var"] + norm.eps).rsqrt())
    return FrozenNorms(
        channels={name: len(mean) for name, mean in zip(norms, means[1:], strict=True)},
        offset=sum(prod(layout.shapes[f"{name}.weight"]) for name in layout.layers),
        mean=torch.cat(means),
        inverse_std=torch.cat(inverse_stds),
    )
