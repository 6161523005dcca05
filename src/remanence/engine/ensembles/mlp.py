"""An ensemble of MLPs that share their training set except for one record each.

The fixed set is common, so that the first layer of K models is one product of their stacked weights with the fixed
records, and its gradient another; each model's record adds a rank-one term. The middle stage between them is small: one
Triton kernel where there is one for it (fused.py), else autograd.

The models differ by what one record did to them, a thousandth of a weight or less, and TF32 rounds each factor to a
thousandth. So with TF32 only the differences from the ensemble's mean are multiplied in it: docs/decisions/0009.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.linalg import vecdot
from torch.nn.functional import cross_entropy

from remanence.engine.cuda import precision
from remanence.models.structure import MLP, parse
from remanence.training.clipping import clip_factors
from remanence.training.training import Training
from remanence.types import Data, Params


@final
@dataclass(frozen=True, kw_only=True)
class Layers:
    """The paths of the linear layers, and the activation after each but the last."""

    names: tuple[str, ...]
    activations: tuple[nn.Module, ...]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Flat records (records, features) with labels and squared norms, (models or 1, records)."""

    x: Tensor
    labels: Tensor
    squares: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Centre:
    """The mean model of the ensemble: the products of its first layer with the fixed records (width, records), the
    gradient with respect to these, and the gradient of its first weight (width, features)."""

    products: Tensor
    deltas: Tensor
    gradient: Tensor


def layers_of(model: nn.Module, shape: Sequence[int]) -> Layers | None:
    """The layers of an MLP with biases whose inputs are not normalised; None for another network."""
    structure = parse(model, shape)
    if not isinstance(structure, MLP) or structure.normalised or any(structure.norms):
        return None
    if not all(layer.has_bias for layer in structure.layers) or any(True for _ in model.buffers()):
        return None
    return Layers(names=tuple(layer.path for layer in structure.layers), activations=structure.activations)


def train_ensemble(
    training: Training, model: nn.Module, initial: Params, fixed: Data, targets: Data, *, seed: int, noise_seed: int
) -> Params:
    """For each target the weights after training on `fixed` and that target, from its row of the stack `initial`."""
    layers = layers_of(model, fixed.shape)
    assert layers is not None
    common, per_model = _records(fixed, stacked=False), _records(targets, stacked=True)
    clip = training.privacy.clip if training.privacy else None

    def gradient(params: Params, _: Tensor | None) -> Params:
        return _gradient(layers, params, common, per_model, clip, centred=training.tf32 and training.centred)

    count = len(fixed) + 1
    batches = training.batches(count, seed)
    return training.descend(gradient, initial, batches, records=count, noise_seed=noise_seed, stacked=True)


def _records(data: Data, *, stacked: bool) -> Records:
    x = data.x.flatten(1)
    axis = 1 if stacked else 0
    return Records(x=x, labels=data.y.unsqueeze(axis), squares=x.square().sum(1).unsqueeze(axis))


def _gradient(
    layers: Layers, params: Params, common: Records, per_model: Records, clip: float | None, *, centred: bool
) -> Params:
    """The gradients of all models, from the common records and the one record of each."""
    first, scale = f"{layers.names[0]}.weight", 1 / (len(common.x) + 1)
    weight = difference = params[first]  # (models, width, features)
    centre = None
    with precision(tf32=False):
        if centred:
            mean = {name: p.mean(0, keepdim=True) for name, p in params.items()}
            centre, difference = _centre(layers, mean, common, clip, scale), weight - mean[first]
        products = vecdot(weight, per_model.x[:, None, :])[:, :, None]
        deltas_per_model, grads_per_model = middle(layers, params, products, per_model, clip, scale)
    products = (difference.flatten(0, 1) @ common.x.T).view(*weight.shape[:2], len(common.x))  # one for all models
    with precision(tf32=False):
        deltas, grads = middle(layers, params, products, common, clip, scale, centre)
    grad_first = (deltas.flatten(0, 1) @ common.x).view_as(weight).addcmul_(deltas_per_model, per_model.x[:, None, :])
    if centre:
        grad_first += centre.gradient
    total = {first: grad_first, **{name: g + grads_per_model[name] for name, g in grads.items()}}
    return {name: total[name] for name in params}


def _centre(layers: Layers, mean: Params, common: Records, clip: float | None, scale: float) -> Centre:
    products = mean[f"{layers.names[0]}.weight"] @ common.x.T
    deltas, _ = autograd_middle(layers, mean, products, common, clip, scale)
    return Centre(products=products[0], deltas=deltas[0], gradient=deltas[0] @ common.x)


def middle(
    layers: Layers,
    params: Params,
    products: Tensor,
    records: Records,
    clip: float | None,
    scale: float,
    centre: Centre | None = None,
) -> tuple[Tensor, Params]:
    """The gradient of the summed loss times `scale` with respect to the first products (models, width, records), which
    may be overwritten, and to all parameters but the first weights; each record's gradient is clipped to `clip`.

    With a `centre` the products are given, and their gradient is returned, as differences from the centre's.
    """
    if products.device.type == "cuda" and products.dtype == torch.float32:
        from remanence.engine.ensembles import fused

        if fused.can_fuse(layers.activations, products, params[f"{layers.names[-1]}.weight"]):
            return fused.middle(layers.names, layers.activations[0], params, products, records, clip, scale, centre)
    if centre is None:
        return autograd_middle(layers, params, products, records, clip, scale)
    deltas, grads = autograd_middle(layers, params, products.add_(centre.products), records, clip, scale)
    return deltas - centre.deltas, grads


def autograd_middle(
    layers: Layers, params: Params, products: Tensor, records: Records, clip: float | None, scale: float
) -> tuple[Tensor, Params]:
    """`middle` by autograd, without a centre."""
    values, inputs = [products + params[f"{layers.names[0]}.bias"][:, :, None]], []
    with torch.enable_grad():
        values[0].requires_grad_()
        for (_, name), activation in zip(pairwise(layers.names), layers.activations, strict=True):
            inputs.append(activation(values[-1]))
            values.append(params[f"{name}.weight"] @ inputs[-1] + params[f"{name}.bias"][:, :, None])
        labels = records.labels.expand(len(products), -1)
        deltas = torch.autograd.grad(scale * cross_entropy(values[-1], labels, reduction="sum"), values)
    inputs = [a.detach() for a in inputs]
    if clip is not None:
        # a layer's gradient for one record is the outer product of its delta and its input
        squares = [records.squares, *(a.square().sum(1) for a in inputs)]
        norms = [d.square().sum(1) * (1 + s) for d, s in zip(deltas, squares, strict=True)]
        factors = clip_factors(torch.stack(norms).sum(0), scale * clip)[:, None, :]
        deltas = tuple(d * factors for d in deltas)
    grads = {f"{name}.bias": d.sum(2) for name, d in zip(layers.names, deltas, strict=True)}
    for name, delta, a in zip(layers.names[1:], deltas[1:], inputs, strict=True):
        grads[f"{name}.weight"] = delta @ a.mT
    return deltas[0], grads
