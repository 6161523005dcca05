"""The gradient of an MLP with ReLU, written out: for small nets autograd takes several times as long as the work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from remanence.engine.base import HVP, hvp_by_autograd
from remanence.models import Centre, Standardise
from remanence.training.losses import CrossEntropy, KnownLoss, Logistic, LogOf, Loss, SquaredError
from remanence.types import Params

Gate: TypeAlias = Callable[[Tensor], Tensor]  # from what enters a ReLU to its slope there


@final
@dataclass(frozen=True, kw_only=True)
class PlainMlp:
    """The names of the linear layers, and of what is done to the records in front of them: of images each channel
    less its mean and over its spread, of flat records less their mean."""

    names: tuple[str, ...]
    biased: tuple[bool, ...]
    mean: str | None
    standard: str | None
    loss: KnownLoss | LogOf

    def gradient(self, params: Params, x: Tensor, y: Tensor) -> Params:
        return self._of_read(params, self.read(params, x), y)

    def hvp(self, params: Params, x: Tensor, y: Tensor, direction: Params) -> HVP:
        return hvp_by_autograd(self.gradient, params, x, y, direction)

    def gradients(self, params: Params, x: Tensor, y: Tensor) -> Params:
        """Those of a stack of models: weights, flat records and labels have a leading dimension."""
        return self._of_read(params, x if self.mean is None else x - params[self.mean].unsqueeze(-2), y)

    def _of_read(self, params: Params, below: Tensor, y: Tensor) -> Params:
        first = self.names[0]
        delta, grads = self.above(params, _linear(below, params[f"{first}.weight"], params.get(f"{first}.bias")), y)
        grads[f"{first}.weight"] = delta.mT @ below
        return {name: grads[name] for name in params if name in grads}

    def read(self, params: Params, x: Tensor) -> Tensor:
        """What the first linear layer gets."""
        if self.standard is not None:
            x = (x - params[f"{self.standard}.mean"]) / params[f"{self.standard}.spread"]
        return x.flatten(1) if self.mean is None else x.flatten(1) - params[self.mean]

    def above(self, params: Params, out: Tensor, y: Tensor, gate: Gate | None = None) -> tuple[Tensor, Params]:
        """From what the first layer puts out: the slope by it, and all gradients but that of the first weight. With a
        `gate` the way back is as if ReLU had that slope."""
        inputs, slopes = [out], list[Tensor]()
        for name in self.names[1:]:
            slopes.append(inputs[-1] > 0 if gate is None else gate(inputs[-1]))
            inputs[-1] = inputs[-1].relu()
            inputs.append(_linear(inputs[-1], params[f"{name}.weight"], params.get(f"{name}.bias")))
        delta, grads = self.loss.grad_logits(inputs.pop(), y) / out.shape[-2], {}
        for place in reversed(range(len(self.names))):
            name = self.names[place]
            if self.biased[place]:
                grads[f"{name}.bias"] = delta.sum(-2)
            if place:
                below = inputs[place - 1]
                grads[f"{name}.weight"] = delta.mT @ below
                delta = (delta @ params[f"{name}.weight"]) * slopes[place - 1]
        return delta, grads


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.ndim == 2:
        return linear(x, weight, bias)
    return x @ weight.mT if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)


def of(model: nn.Module, loss: Loss) -> PlainMlp | None:
    """None where the model is something else, or the loss not one of ours."""
    if not isinstance(model, nn.Sequential) or not isinstance(loss, CrossEntropy | Logistic | SquaredError):
        return None
    named = list(model.named_children())
    standard = named.pop(0)[0] if named and isinstance(named[0][1], Standardise) else None
    if not named or type(named[0][1]) is not nn.Flatten:
        return None
    centred = len(named) > 1 and isinstance(named[1][1], Centre)
    layers, between = named[1 + centred :: 2], named[2 + centred :: 2]
    alike = all(type(m) is nn.Linear for _, m in layers) and all(type(m) is nn.ReLU for _, m in between)
    if not alike or len(layers) != len(between) + 1:
        return None
    return PlainMlp(
        names=tuple(name for name, _ in layers),
        biased=tuple(m.bias is not None for _, m in layers),
        mean=f"{named[1][0]}.mean" if centred else None,
        standard=standard,
        loss=loss,
    )
