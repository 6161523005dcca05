"""A stack of convolutional nets that share their training set but for one record each.

The stack stands in the channels: the first convolution of K models is one convolution of the shared records with all
their filters, the later ones are grouped, and the linear layers are batched products. Autograd does the rest.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy, unfold

from remanence.engine.ensembles.mlp import ELEMENTWISE, shares_records
from remanence.training.clipping import clip_factors
from remanence.training.training import Training
from remanence.types import Data, Params

_PATCHES = 1 << 28  # numbers: what the patches of a block of records may hold while gradients are measured


def can_share(training: Training, model: nn.Module, records: int) -> bool:
    """Convolutions, then a flatten, then linear layers, each with a bias, and element-wise activations."""
    if not shares_records(training, model, records) or not isinstance(model, nn.Sequential):
        return False
    kinds = [type(layer) for layer in model if type(layer) not in ELEMENTWISE]
    if kinds.count(nn.Flatten) != 1 or kinds[0] is not nn.Conv2d:
        return False
    ordered = {(nn.Conv2d, nn.Conv2d), (nn.Conv2d, nn.Flatten), (nn.Flatten, nn.Linear), (nn.Linear, nn.Linear)}
    return set(pairwise(kinds)) <= ordered and all(_plain(layer) for layer in model)


def _plain(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        zeros = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return zeros and layer.bias is not None and layer.groups == 1
    return not isinstance(layer, nn.Linear) or layer.bias is not None


def train_sharing(
    training: Training, model: nn.Module, starts: Params, fixed: Data, targets: Data, *, seed: int, noise_seed: int
) -> Params:
    """For each target the weights after training on `fixed` and that target, from its row of the stack `starts`."""
    models, count = len(targets), len(fixed) + 1
    parts = [(targets.x.flatten(0, 1)[None], targets.y[:, None])]
    if len(fixed):
        parts.append((fixed.x, fixed.y.expand(models, -1)))

    def gradient(params: Params, _: Tensor | None) -> Params:
        total: Params = {}
        for x, labels in parts:
            found = _gradient(training, model, params, x, labels)
            total = {name: g + total[name] if total else g for name, g in found.items()}
        return {name: g / count for name, g in total.items()}

    return training.descend(
        gradient, starts, training.batches(count, seed), records=count, noise_seed=noise_seed, stacked=True
    )


def _gradient(training: Training, model: nn.Module, params: Params, x: Tensor, labels: Tensor) -> Params:
    """Of the summed loss, each record's part cut to the norm that the training asks for."""
    params = {name: p.detach().requires_grad_() for name, p in params.items()}
    with torch.enable_grad():
        outputs, inputs = _forward(model, params, x)
        losses = cross_entropy(outputs[-1].flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        if training.privacy is None:
            total = losses.sum()
        else:
            deltas = torch.autograd.grad(losses.sum(), outputs, retain_graph=True)
            squares = _squares(model, [x.detach() for x in inputs], deltas, models=len(labels))
            total = (losses * clip_factors(squares, training.privacy.clip)).sum()
        return dict(zip(params, torch.autograd.grad(total, list(params.values())), strict=True))


def _forward(model: nn.Module, params: Params, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What each layer with weights puts out and takes in: (records, models * channels, height, width), with no models
    for records that all share, and after the flattening (models, records, features)."""
    models = len(next(iter(params.values())))
    outputs, inputs, out = [], [], x
    for name, layer in model.named_children():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
            inputs.append(out)
            if isinstance(layer, nn.Conv2d):
                groups = out.shape[1] // layer.in_channels
                filters = weight.flatten(0, 1), bias.flatten()
                out = conv2d(out, *filters, layer.stride, layer.padding, layer.dilation, groups)
            else:
                out = torch.baddbmm(bias[:, None], out, weight.mT)
            outputs.append(out)
        elif isinstance(layer, nn.Flatten):
            out = out.view(len(out), models, -1).transpose(0, 1)
        else:
            out = layer(out)
    return outputs, inputs


def _squares(model: nn.Module, inputs: list[Tensor], deltas: tuple[Tensor, ...], *, models: int) -> Tensor:
    """The squared norm (models, records) of each record's gradient."""
    weighted = [layer for layer in model.children() if isinstance(layer, nn.Conv2d | nn.Linear)]
    squares = []
    for layer, x, delta in zip(weighted, inputs, deltas, strict=True):
        if isinstance(layer, nn.Linear):  # the gradient is the outer product of delta and input
            squares.append(delta.square().sum(2) * (1 + x.square().sum(2)))
        else:
            squares.append(_conv_squares(layer, x, delta, models).T)
    return torch.stack(squares).sum(0)


def _conv_squares(layer: nn.Conv2d, x: Tensor, delta: Tensor, models: int) -> Tensor:
    """Records in blocks: the gradient of each is its deltas times its patches."""
    assert not isinstance(layer.padding, str)
    groups, places = x.shape[1] // layer.in_channels, delta.shape[2] * delta.shape[3]
    block = max(1, _PATCHES // (x.shape[1] * layer.weight[0, 0].numel() * places))
    squares = []
    for some, by in zip(x.split(block), delta.split(block), strict=True):
        patches = unfold(some, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        by = by.reshape(len(by), models, -1, places)
        grads = by @ patches.view(len(some), groups, -1, places).mT
        squares.append(grads.square().sum((2, 3)) + by.sum(3).square().sum(2))
    return torch.cat(squares)
