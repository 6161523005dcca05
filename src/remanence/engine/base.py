"""The engine: how the loss of a network is differentiated, and the one for any network, by `torch.func`."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from remanence.models import apply, apply_to_batch
from remanence.training.clipping import clip_factors, squared_norms
from remanence.training.dp import DPGD
from remanence.training.losses import Loss
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


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class GenericEngine:
    """Gradients of any module by any loss; with `privacy` the mean of per-example gradients that are clipped, which of
    no records is zero."""

    model: nn.Module
    loss: Loss
    privacy: DPGD | None = None
    names: tuple[str, ...] | None = None  # of the trained parameters; None: all

    def gradient(self, params: Params, x: Tensor, y: Tensor) -> Params:
        def objective(p: Params, x: Tensor, y: Tensor) -> Tensor:
            return self.loss(apply(self.model, params | p, x), y)

        gradient: Params
        names = self.names or [name for name, _ in self.model.named_parameters()]
        trained = {name: params[name] for name in names}
        if self.privacy is None:
            gradient = grad(objective)(trained, x, y)
            return gradient
        if not len(x):
            return {name: torch.zeros_like(p) for name, p in trained.items()}
        per_example: Params = vmap(grad(objective), in_dims=(None, 0, 0))(trained, x[:, None], y[:, None])
        factors = clip_factors(squared_norms(per_example, stacked=True), self.privacy.clip) / len(x)
        return {n: torch.einsum("n,n...->...", factors, g.to(factors)).to(g) for n, g in per_example.items()}

    def hvp(self, params: Params, x: Tensor, y: Tensor, direction: Params) -> HVP:
        return hvp_by_autograd(self.gradient, params, x, y, direction)


def loss_gradient(model: nn.Module, params: Params, x: Tensor, y: Tensor, *, loss: Loss) -> Params:
    """The gradient of the loss with respect to the trained parameters: what a federated client would send."""
    return GenericEngine(model=model, loss=loss).gradient(params, x, y)


def batch_gradient(
    model: nn.Module, params: Params, x: Tensor, y: Tensor, *, loss: Loss, names: Sequence[str] | None = None
) -> tuple[Params, Params]:
    """The gradient of the loss of a batch with BatchNorm in training mode, with respect to the parameters of these
    `names` (None: all), and the running statistics after the batch."""

    def objective(p: Params) -> tuple[Tensor, Params]:
        logits, statistics = apply_to_batch(model, params | p, x)
        return loss(logits, y), statistics

    trained = [name for name, _ in model.named_parameters()] if names is None else names
    found: tuple[Params, Params] = grad(objective, has_aux=True)({name: params[name] for name in trained})
    return found


def only(gradient: BatchGradient, names: Container[str]) -> BatchGradient:
    """The gradient with respect to the parameters of these `names`: the others are frozen."""

    def of_batch(params: Params, batch: Tensor | None) -> Params:
        return {name: g for name, g in gradient(params, batch).items() if name in names}

    return of_batch


def on_batches(gradient: Gradient, x: Tensor, y: Tensor) -> BatchGradient:
    """The gradient on batches that are given as indices of these records; None: all of them."""

    def of_batch(params: Params, batch: Tensor | None) -> Params:
        return gradient(params, *((x, y) if batch is None else (x[batch], y[batch])))

    return of_batch
