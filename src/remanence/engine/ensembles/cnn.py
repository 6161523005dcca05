"""An ensemble of CNNs that share their training set except for one record each.

The models lie in the channels: the first convolution of K models is one convolution of the common records with all
their filters, later ones are grouped, and linear layers are batched products. Autograd computes the gradients.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy, unfold

from remanence.models.operations import Activation, Conv, Flatten, Linear, Operation
from remanence.models.structure import CNN, parse
from remanence.training.clipping import clip_factors
from remanence.training.training import Training
from remanence.types import Data, Params

_MAX_PATCH_VALUES = 1 << 28  # in the patches of a block of records, while the norms of gradients are computed


def operations_of(model: nn.Module, shape: Sequence[int]) -> Sequence[Operation] | None:
    """The operations of a network of convolutions, a flatten and linear layers, with biases and activations; None for
    another network."""
    structure = parse(model, shape)
    if not isinstance(structure, CNN) or structure.norm or not isinstance(structure.operations[0], Conv):
        return None
    plain = all(map(_plain, structure.operations)) and not any(True for _ in model.buffers())
    return structure.operations if plain else None


def _plain(operation: Operation) -> bool:
    if isinstance(operation, Conv):
        return operation.has_bias and operation.groups == 1
    return isinstance(operation, Activation | Flatten) or (isinstance(operation, Linear) and operation.has_bias)


def train_ensemble(
    training: Training, model: nn.Module, initial: Params, fixed: Data, targets: Data, *, seed: int, noise_seed: int
) -> Params:
    """For each target the weights after training on `fixed` and that target, from its row of the stack `initial`."""
    operations = operations_of(model, fixed.shape)
    assert operations is not None
    models, count = len(targets), len(fixed) + 1
    parts = [(targets.x.flatten(0, 1)[None], targets.y[:, None])]
    if len(fixed):
        parts.append((fixed.x, fixed.y.expand(models, -1)))

    def gradient(params: Params, _: Tensor | None) -> Params:
        total: Params = {}
        for x, labels in parts:
            found = _gradient(training, operations, params, x, labels)
            total = {name: g + total[name] if total else g for name, g in found.items()}
        return {name: g / count for name, g in total.items()}

    return training.descend(
        gradient, initial, training.batches(count, seed), records=count, noise_seed=noise_seed, stacked=True
    )


def _gradient(training: Training, operations: Sequence[Operation], params: Params, x: Tensor, labels: Tensor) -> Params:
    """The gradients of the summed loss, the contribution of each record clipped where the training is private."""
    params = {name: p.detach().requires_grad_() for name, p in params.items()}
    with torch.enable_grad():
        outputs, inputs = _forward(operations, params, x)
        losses = cross_entropy(outputs[-1].flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        if training.privacy is None:
            total = losses.sum()
        else:
            deltas = torch.autograd.grad(losses.sum(), outputs, retain_graph=True)
            squares = _squared_norms(operations, [x.detach() for x in inputs], deltas, models=len(labels))
            total = (losses * clip_factors(squares, training.privacy.clip)).sum()
        return dict(zip(params, torch.autograd.grad(total, list(params.values())), strict=True))


def _forward(operations: Sequence[Operation], params: Params, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs and inputs of each layer with weights: (records, models * channels, height, width), without models
    for records that are common to all, and after the flattening (models, records, features)."""
    models = len(next(iter(params.values())))
    outputs, inputs, out = [], [], x
    for layer in operations:
        if isinstance(layer, Conv | Linear):
            weight, bias = params[layer.weight], params[layer.bias]
            inputs.append(out)
            if isinstance(layer, Conv):
                groups = out.shape[1] // layer.in_shape[0]
                filters = weight.flatten(0, 1), bias.flatten()
                out = conv2d(out, *filters, layer.stride, layer.padding, layer.dilation, groups)
            else:
                out = torch.baddbmm(bias[:, None], out, weight.mT)
            outputs.append(out)
        elif isinstance(layer, Flatten):
            out = out.view(len(out), models, -1).transpose(0, 1)
        elif isinstance(layer, Activation):
            out = layer.module(out)
    return outputs, inputs


def _squared_norms(
    operations: Sequence[Operation], inputs: list[Tensor], deltas: tuple[Tensor, ...], *, models: int
) -> Tensor:
    """The squared norm of each record's gradient, shape (models, records)."""
    weighted = [layer for layer in operations if isinstance(layer, Conv | Linear)]
    squares = []
    for layer, x, delta in zip(weighted, inputs, deltas, strict=True):
        if isinstance(layer, Linear):  # the gradient is the outer product of delta and input
            squares.append(delta.square().sum(2) * (1 + x.square().sum(2)))
        else:
            squares.append(_conv_squared_norms(layer, x, delta, models).T)
    return torch.stack(squares).sum(0)


def _conv_squared_norms(layer: Conv, x: Tensor, delta: Tensor, models: int) -> Tensor:
    """The squared norms for a convolution, shape (records, models), in blocks of records: the gradient of each is its
    deltas times its patches."""
    groups, positions = x.shape[1] // layer.in_shape[0], delta.shape[2] * delta.shape[3]
    block = max(1, _MAX_PATCH_VALUES // (x.shape[1] * prod(layer.kernel_size) * positions))
    squares = []
    for some, deltas in zip(x.split(block), delta.split(block), strict=True):
        patches = unfold(some, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        deltas = deltas.reshape(len(deltas), models, -1, positions)
        grads = deltas @ patches.view(len(some), groups, -1, positions).mT
        squares.append(grads.square().sum((2, 3)) + deltas.sum(3).square().sum(2))
    return torch.cat(squares)
