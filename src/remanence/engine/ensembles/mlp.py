"""A stack of MLPs that share their training set but for one record each.

The fixed set is common, so the first layer of K models is one product of their stacked weights with the fixed
records, and its gradient another; each model's own record adds a rank-one term. What lies between is small: one kernel
where there is one for it (fused.py), else autograd.

The models differ by what one record has done, a thousandth of a weight or less, and TF32 keeps a thousandth of each
factor. So with TF32 only the differences to the stack's mean are multiplied in it: decision 0009.
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
from remanence.training.losses import CrossEntropy
from remanence.training.training import Training
from remanence.types import Data, Params


@final
@dataclass(frozen=True, kw_only=True)
class Layers:
    """The names of the linear layers and the activation after each but the last."""

    names: tuple[str, ...]
    activations: tuple[nn.Module, ...]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Flat records as the stack sees them: labels and squared norms are (models or 1, records)."""

    x: Tensor
    labels: Tensor
    squares: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Centre:
    """What the first layer of the stack's mean puts out (width, records), the loss's slope there, and its gradient."""

    products: Tensor
    deltas: Tensor
    gradient: Tensor


def layers_of(model: nn.Module, shape: Sequence[int]) -> Layers | None:
    """The layers of an MLP with biases that takes records as they are; None for another network."""
    mlp = parse(model, shape)
    if not isinstance(mlp, MLP) or mlp.normalised or any(mlp.norms):
        return None
    if not all(layer.has_bias for layer in mlp.layers) or any(True for _ in model.buffers()):
        return None
    return Layers(names=tuple(layer.path for layer in mlp.layers), activations=mlp.activations)


def can_share(training: Training, model: nn.Module, shape: Sequence[int], records: int) -> bool:
    return shares_records(training, records) and layers_of(model, shape) is not None


def shares_records(training: Training, records: int) -> bool:
    """Full batches, and a loss that is known here."""
    full_batch = training.batch_size is None or training.batch_size >= records
    return full_batch and isinstance(training.loss, CrossEntropy)


def train_sharing(
    training: Training, model: nn.Module, starts: Params, fixed: Data, targets: Data, *, seed: int, noise_seed: int
) -> Params:
    """For each target the weights after training on `fixed` and that target, from its row of the stack `starts`."""
    layers = layers_of(model, fixed.shape)
    assert layers is not None
    shared, own = _records(fixed, stacked=False), _records(targets, stacked=True)
    clip = training.privacy.clip if training.privacy else None

    def gradient(params: Params, _: Tensor | None) -> Params:
        return _gradient(layers, params, shared, own, clip, centred=training.tf32 and training.centred)

    count = len(fixed) + 1
    batches = training.batches(count, seed)
    return training.descend(gradient, starts, batches, records=count, noise_seed=noise_seed, stacked=True)


def _records(data: Data, *, stacked: bool) -> Records:
    x = data.x.flatten(1)
    place = 1 if stacked else 0
    return Records(x=x, labels=data.y.unsqueeze(place), squares=x.square().sum(1).unsqueeze(place))


def _gradient(
    layers: Layers, params: Params, shared: Records, own: Records, clip: float | None, *, centred: bool
) -> Params:
    first, scale = f"{layers.names[0]}.weight", 1 / (len(shared.x) + 1)
    weight = moved = params[first]  # (K, width, features)
    centre = None
    with precision(tf32=False):
        if centred:
            mean = {name: p.mean(0, keepdim=True) for name, p in params.items()}
            centre, moved = _centre(layers, mean, shared, clip, scale), weight - mean[first]
        by_own, own_small = middle(layers, params, vecdot(weight, own.x[:, None, :])[:, :, None], own, clip, scale)
    products = (moved.flatten(0, 1) @ shared.x.T).view(*weight.shape[:2], len(shared.x))  # one for the whole stack
    with precision(tf32=False):
        by_shared, small = middle(layers, params, products, shared, clip, scale, centre)
    by_first = (by_shared.flatten(0, 1) @ shared.x).view_as(weight).addcmul_(by_own, own.x[:, None, :])
    if centre:
        by_first += centre.gradient
    found = {first: by_first, **{name: g + own_small[name] for name, g in small.items()}}
    return {name: found[name] for name in params}


def _centre(layers: Layers, mean: Params, shared: Records, clip: float | None, scale: float) -> Centre:
    products = mean[f"{layers.names[0]}.weight"] @ shared.x.T
    deltas, _ = plain_middle(layers, mean, products, shared, clip, scale)
    return Centre(products=products[0], deltas=deltas[0], gradient=deltas[0] @ shared.x)


def middle(
    layers: Layers,
    params: Params,
    products: Tensor,
    records: Records,
    clip: float | None,
    scale: float,
    centre: Centre | None = None,
) -> tuple[Tensor, Params]:
    """The gradient of the summed loss times `scale` with respect to the first products (K, width, records), which may
    be overwritten, and to all parameters but the first weights; each record's gradient is cut to the norm `clip`.

    With a `centre` the products are given, and their gradient is returned, as what they are beyond the centre's.
    """
    if products.device.type == "cuda" and products.dtype == torch.float32:
        from remanence.engine.ensembles import fused

        if fused.can_fuse(layers.activations, products, params[f"{layers.names[-1]}.weight"]):
            return fused.middle(layers.names, layers.activations[0], params, products, records, clip, scale, centre)
    if centre is None:
        return plain_middle(layers, params, products, records, clip, scale)
    deltas, grads = plain_middle(layers, params, products.add_(centre.products), records, clip, scale)
    return deltas - centre.deltas, grads


def plain_middle(
    layers: Layers, params: Params, products: Tensor, records: Records, clip: float | None, scale: float
) -> tuple[Tensor, Params]:
    """`middle` through autograd."""
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
        kept = clip_factors(torch.stack(norms).sum(0), scale * clip)[:, None, :]
        deltas = tuple(d * kept for d in deltas)
    grads = {f"{name}.bias": d.sum(2) for name, d in zip(layers.names, deltas, strict=True)}
    for name, delta, a in zip(layers.names[1:], deltas[1:], inputs, strict=True):
        grads[f"{name}.weight"] = delta @ a.mT
    return deltas[0], grads
