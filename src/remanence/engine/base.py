"""The engine: how the loss of a network is differentiated."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from remanence.training.training import BatchGradient
from remanence.types import Params

Gradient: TypeAlias = Callable[[Params, Tensor, Tensor], Params]
HVP: TypeAlias = tuple[Params, Tensor, Tensor | None]


class Engine(Protocol):
    """Derivatives of the mean loss of a network on a batch of records `x` (records, ...) with labels `y`, which are
    class indices (records,) or probabilities of classes (records, classes)."""

    def gradient(self, params: Params, x: Tensor, y: Tensor) -> Params:
        """The gradient with respect to the trained parameters, without weight decay and noise."""

    def hvp(self, params: Params, x: Tensor, y: Tensor, direction: Params) -> HVP:
        """The derivatives of  <gradient, direction>  with respect to the trained parameters (the Hessian-vector
        product), the records and, where `y` holds probabilities, these, up to a constant for each record, as they sum
        to one; None otherwise."""


def hvp_by_autograd(gradient: Gradient, params: Params, x: Tensor, y: Tensor, direction: Params) -> HVP:
    """`Engine.hvp` by differentiating `gradient`."""
    trained = {name: params[name].detach().requires_grad_() for name in direction}
    x = x.detach().requires_grad_()
    y = y.detach().requires_grad_() if y.is_floating_point() else y
    with torch.enable_grad():
        grads = gradient(params | trained, x, y)
        product = torch.stack([(grads[name] * d).sum() for name, d in direction.items()]).sum()
        inputs = [*trained.values(), x, *([y] if y.is_floating_point() else [])]
        found = torch.autograd.grad(product, inputs, allow_unused=True, materialize_grads=True)
    by_params = dict(zip(trained, found, strict=False))
    return by_params, found[len(trained)], found[-1] if y.is_floating_point() else None


def on_batches(gradient: Gradient, x: Tensor, y: Tensor) -> BatchGradient:
    """The gradient on batches that are given as indices of these records; None: all of them."""

    def of_batch(params: Params, batch: Tensor | None) -> Params:
        return gradient(params, *((x, y) if batch is None else (x[batch], y[batch])))

    return of_batch
