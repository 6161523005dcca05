"""The gradient of an MLP with ReLU, written out: for small nets autograd takes several times as long as the work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from remanence.engine.base import HVP, hvp_by_autograd
from remanence.models.structure import CNN, MLP, Structure, Unsupported, parse
from remanence.training.losses import CrossEntropy, KnownLoss, Logistic, LogOf, Loss, SquaredError
from remanence.types import Params

Gate: TypeAlias = Callable[[Tensor], Tensor]  # from what enters a ReLU to its slope there


@final
@dataclass(frozen=True, kw_only=True)
class PlainMlp:
    """An MLP with ReLU as it was recognised, and the loss on its logits."""

    structure: MLP
    loss: KnownLoss | LogOf

    @property
    def names(self) -> tuple[str, ...]:
        """The paths of the linear layers."""
        return tuple(layer.path for layer in self.structure.layers)

    @property
    def biased(self) -> tuple[bool, ...]:
        return tuple(layer.has_bias for layer in self.structure.layers)

    def gradient(self, params: Params, x: Tensor, y: Tensor) -> Params:
        return self._of_read(params, self.read(params, x), y)

    def hvp(self, params: Params, x: Tensor, y: Tensor, direction: Params) -> HVP:
        return hvp_by_autograd(self.gradient, params, x, y, direction)

    def gradients(self, params: Params, x: Tensor, y: Tensor) -> Params:
        """Those of a stack of models: weights, flat records and labels have a leading dimension."""
        if (norm := self.structure.flat_norm) is not None:
            x = x if norm.mean is None else x - params[norm.mean.name].view(len(x), 1, -1)
            x = x if norm.std is None else x / params[norm.std.name].view(len(x), 1, -1)
        return self._of_read(params, x, y)

    def _of_read(self, params: Params, below: Tensor, y: Tensor) -> Params:
        first = self.names[0]
        delta, grads = self.above(params, _linear(below, params[f"{first}.weight"], params.get(f"{first}.bias")), y)
        grads[f"{first}.weight"] = delta.mT @ below
        return {name: grads[name] for name in params if name in grads}

    def read(self, params: Params, x: Tensor) -> Tensor:
        """What the first linear layer takes in."""
        return self.structure.inputs(params, x)

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


def of(model: nn.Module, loss: Loss, shape: Sequence[int]) -> PlainMlp | None:
    """The closed form for records of `shape`; None where the model has none, or the loss is not one of ours."""
    structure = parse(model, shape)
    if refusal(structure) or not isinstance(loss, CrossEntropy | Logistic | SquaredError):
        return None
    assert isinstance(structure, MLP)
    return PlainMlp(structure=structure, loss=loss)


def refusal(structure: Structure) -> str | None:
    """Why the closed form does not hold for a network; None where it does."""
    if isinstance(structure, Unsupported):
        return structure.reason
    if isinstance(structure, CNN):
        return "the net has convolutions"
    for layer, norm in zip(structure.layers, structure.norms, strict=True):
        if norm is not None:
            return f"the net has a BatchNorm `{norm.path}` after `{layer.path}`"
    for layer, activation in zip(structure.layers, structure.activations, strict=False):
        if type(activation) is not nn.ReLU:
            return f"the activation after `{layer.path}` of the net is {type(activation).__name__}, not ReLU"
    return None
