"""The engine for any network: `torch.func` on a functional call of the module."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from remanence.engine.base import HVP, hvp_by_autograd
from remanence.models import apply
from remanence.training.clipping import clip_factors, squared_norms
from remanence.training.dp import DPGD
from remanence.training.losses import Loss
from remanence.types import Params


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class GenericEngine:
    """Gradients of any module by any loss; with `privacy` the mean of per-example gradients that are clipped."""

    model: nn.Module
    loss: Loss
    privacy: DPGD | None = None

    def gradient(self, params: Params, x: Tensor, y: Tensor) -> Params:
        def objective(p: Params, x: Tensor, y: Tensor) -> Tensor:
            return self.loss(apply(self.model, params | p, x), y)

        gradient: Params
        trained = {name: params[name] for name, _ in self.model.named_parameters()}
        if self.privacy is None:
            gradient = grad(objective)(trained, x, y)
            return gradient
        per_example: Params = vmap(grad(objective), in_dims=(None, 0, 0))(trained, x[:, None], y[:, None])
        factors = clip_factors(squared_norms(per_example, stacked=True), self.privacy.clip) / len(x)
        return {name: torch.einsum("n,n...->...", factors, g) for name, g in per_example.items()}

    def hvp(self, params: Params, x: Tensor, y: Tensor, direction: Params) -> HVP:
        return hvp_by_autograd(self.gradient, params, x, y, direction)


def loss_gradient(model: nn.Module, params: Params, x: Tensor, y: Tensor, *, loss: Loss) -> Params:
    """The gradient of the loss with respect to the trained parameters: what a federated client would send."""
    return GenericEngine(model=model, loss=loss).gradient(params, x, y)
