"""The closed-form gradient of an MLP with ReLU: for small networks autograd takes several times as long as the
arithmetic."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from remanence.engine.base import HVP, hvp_by_autograd
from remanence.models.structure import CNN, MLP, Structure, Unsupported, parse
from remanence.training.losses import CrossEntropy, KnownLoss, Logistic, LogOf, Loss, SquaredError
from remanence.types import Params

Derivative: TypeAlias = Callable[[Tensor], Tensor]  # from pre-activations to what stands for ReLU's derivative there


@final
@dataclass(frozen=True, kw_only=True)
class MLPEngine:
    """An MLP with ReLU, as it was recognised, and the loss on its logits."""

    structure: MLP
    loss: KnownLoss | LogOf

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The paths of the linear layers."""
        return tuple(layer.path for layer in self.structure.layers)

    @cached_property
    def biased(self) -> tuple[bool, ...]:
        """Whether each linear layer has a bias."""
        return tuple(layer.has_bias for layer in self.structure.layers)

    def gradient(self, params: Params, x: Tensor, y: Tensor) -> Params:
        return self._from_inputs(params, self.inputs(params, x), y)

    def stacked_gradient(self, params: Params, x: Tensor, y: Tensor) -> Params:
        """The gradients of several models: weights, flat records (models, records, features) and labels (models,
        records) have a leading dimension."""
        if (norm := self.structure.flat_norm) is not None:
            x = x if norm.mean is None else x - norm.mean.stacked(params)
            x = x if norm.std is None else x / norm.std.stacked(params)
        return self._from_inputs(params, x, y)

    def hvp(self, params: Params, x: Tensor, y: Tensor, direction: Params) -> HVP:
        return hvp_by_autograd(self.gradient, params, x, y, direction)

    def inputs(self, params: Params, x: Tensor) -> Tensor:
        """What the first linear layer takes in, shape (records, features)."""
        return self.structure.inputs(params, x)

    def backward(
        self, params: Params, outputs: Tensor, y: Tensor, derivative: Derivative | None = None
    ) -> tuple[Tensor, Params]:
        """The gradient with respect to the `outputs` (records, width) of the first layer, and the gradients of all
        parameters but the first weight. `derivative` takes the place of ReLU's, which is whether its input is
        positive."""
        names, biased = self.names, self.biased
        values, derivatives = [outputs], list[Tensor]()
        for name in names[1:]:
            derivatives.append(values[-1] > 0 if derivative is None else derivative(values[-1]))
            values[-1] = values[-1].relu()
            values.append(_linear(values[-1], params[f"{name}.weight"], params.get(f"{name}.bias")))
        delta, grads = self.loss.grad_logits(values.pop(), y) / outputs.shape[-2], {}
        for index in reversed(range(len(names))):
            name = names[index]
            if biased[index]:
                grads[f"{name}.bias"] = delta.sum(-2)
            if index:
                grads[f"{name}.weight"] = delta.mT @ values[index - 1]
                delta = (delta @ params[f"{name}.weight"]) * derivatives[index - 1]
        return delta, grads

    def _from_inputs(self, params: Params, inputs: Tensor, y: Tensor) -> Params:
        first = self.structure.layers[0]
        weight, bias = first.weight, first.bias
        delta, grads = self.backward(params, _linear(inputs, params[weight], params.get(bias)), y)
        grads[weight] = delta.mT @ inputs
        return {name: grads[name] for name in params if name in grads}


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.ndim == 2:
        return linear(x, weight, bias)
    return x @ weight.mT if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)


def mlp_engine(model: nn.Module, loss: Loss, shape: Sequence[int]) -> MLPEngine | None:
    """The closed form for records of `shape`; None where the model has none, or the loss is not one of ours."""
    structure = parse(model, shape)
    if refusal(structure) or not isinstance(loss, CrossEntropy | Logistic | SquaredError):
        return None
    assert isinstance(structure, MLP)
    return MLPEngine(structure=structure, loss=loss)


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
