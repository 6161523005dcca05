"""A stack of MLPs that share their training set but for one record each.

The fixed set is common, so the first layer of K models is one product of their stacked weights with the fixed
records, and its gradient another; each model's own record adds a rank-one term. What lies between is small and goes
through autograd.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.training.train import CrossEntropy, Training
from remanence.types import Data, Params

ELEMENTWISE = (
    *(nn.ReLU, nn.ELU, nn.Sigmoid, nn.Softplus, nn.SiLU, nn.LeakyReLU),
    *(nn.Tanh, nn.CELU, nn.SELU, nn.GELU, nn.Identity),
)


@final
@dataclass(frozen=True, kw_only=True)
class Layers:
    """The names of the linear layers and the activation after each but the last."""

    names: tuple[str, ...]
    activations: tuple[nn.Module, ...]


def layers_of(model: nn.Module) -> Layers | None:
    """The layers of a plain MLP (flatten, then linear layers with element-wise activations between); None otherwise."""
    if not isinstance(model, nn.Sequential) or not model or type(model[0]) is not nn.Flatten:
        return None
    linear, activations = list(model)[1::2], list(model)[2::2]
    plain = all(type(m) is nn.Linear and m.bias is not None for m in linear) and len(linear) == len(activations) + 1
    if not plain or not all(type(m) in ELEMENTWISE for m in activations):
        return None
    return Layers(names=tuple(str(i) for i in range(1, len(model), 2)), activations=tuple(activations))


def can_share(training: Training, model: nn.Module, records: int) -> bool:
    full_batch = training.batch_size is None or training.batch_size >= records
    return full_batch and isinstance(training.loss, CrossEntropy) and layers_of(model) is not None


def train_sharing(training: Training, model: nn.Module, initial: Params, fixed: Data, targets: Data) -> Params:
    """For each target the weights after training on `fixed` and that target; the stack is the leading dimension."""
    layers = layers_of(model)
    assert layers is not None
    params = {name: p.expand(len(targets), *p.shape).contiguous() for name, p in initial.items()}
    state = training.optimizer.init(params)
    x, own = fixed.x.flatten(1), targets.x.flatten(1)
    for step in range(training.epochs):
        grads = _gradient(layers, params, x, fixed.y, own, targets.y)
        if training.weight_decay:
            grads = {name: g + training.weight_decay * params[name] for name, g in grads.items()}
        # optimisers work on each element alone, so the stack needs no vmap
        params, state = training.optimizer.update(params, grads, state, step)
    return params


def _gradient(layers: Layers, params: Params, x: Tensor, y: Tensor, own: Tensor, own_y: Tensor) -> Params:
    first = f"{layers.names[0]}.weight"
    weight = params[first]  # (K, width, features)
    shared = (weight.flatten(0, 1) @ x.T).view(*weight.shape[:2], len(x))  # (K, width, N): one product for the stack
    single = weight @ own[:, :, None]  # (K, width, 1)
    small = {name: p.detach().requires_grad_() for name, p in params.items() if name != first}
    leaves = [shared.requires_grad_(), single.requires_grad_(), *small.values()]
    with torch.enable_grad():
        loss = _loss(layers, small, shared, y.expand(len(own), -1)) + _loss(layers, small, single, own_y[:, None])
        by_shared, by_single, *by_small = torch.autograd.grad(loss / (len(x) + 1), leaves)
    by_first = (by_shared.flatten(0, 1) @ x).view_as(weight) + by_single * own[:, None, :]
    found = {first: by_first, **dict(zip(small, by_small, strict=True))}
    return {name: found[name] for name in params}


def _loss(layers: Layers, params: Params, first: Tensor, labels: Tensor) -> Tensor:
    """The summed loss of all models on the pre-activations (K, width, records) of their first layers."""
    out = first + params[f"{layers.names[0]}.bias"][:, :, None]
    for (_, name), activation in zip(pairwise(layers.names), layers.activations, strict=True):
        out = params[f"{name}.weight"] @ activation(out) + params[f"{name}.bias"][:, :, None]
    return cross_entropy(out, labels, reduction="sum")
