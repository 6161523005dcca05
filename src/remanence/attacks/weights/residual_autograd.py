"""The same objective and gradients as `residual`, for networks of any kind: autograd through the gradient."""

from typing import Any, final

import torch
from torch import Tensor, nn

from remanence.models import apply
from remanence.types import Params


class _Relu(torch.autograd.Function):
    """Forward max(0, a); backward, in the first pass and in the second, sigmoid(alpha a) in place of the step."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, alpha: float) -> Tensor:
        ctx.save_for_backward(a)
        ctx.alpha = alpha
        return a.relu()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (a,) = ctx.saved_tensors
        return grads[0] * torch.sigmoid(ctx.alpha * a), None


@final
class SurrogateReLU(nn.Module):
    """ReLU whose derivative is sigmoid(alpha a)."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, a: Tensor) -> Tensor:
        out: Tensor = _Relu.apply(a, self.alpha)  # type: ignore[no-untyped-call]
        return out


def objective(model: nn.Module, final: Params, x: Tensor, top: Tensor) -> Tensor:
    """The squared distance of the weights from the sum of gradients at `x`, multiplied by `top` (i, class)."""
    names = [name for name, _ in model.named_parameters()]
    params = {name: final[name].detach().requires_grad_() for name in names}
    total = (apply(model, final | params, x) * top).sum()
    explained = torch.autograd.grad(total, list(params.values()), create_graph=True, materialize_grads=True)
    return torch.stack([(final[name] - g).square().sum() for name, g in zip(names, explained, strict=True)]).sum()


def value_and_grads(model: nn.Module, final: Params, x: Tensor, top: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The objective, and its gradients by the candidates and by the multipliers."""
    with torch.enable_grad():
        x, top = x.detach().requires_grad_(), top.detach().requires_grad_()
        value = objective(model, final, x, top)
        grad_x, grad_top = torch.autograd.grad(value, (x, top))
    return value.detach(), grad_x, grad_top
