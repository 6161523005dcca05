"""Networks applied to records with given weights."""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from remanence.errors import BadInput
from remanence.models.operations import (
    Activation,
    Add,
    Conv,
    Flatten,
    GlobalMean,
    Linear,
    MaxPool,
    Norm,
    Normalisation,
    Operation,
)
from remanence.types import Params


def apply(model: nn.Module, params: Params, x: Tensor) -> Tensor:
    """The logits of `model` with the weights `params` for records `x`."""
    for layer in model.modules():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            message = (
                "`model` has a BatchNorm in training mode, with which the output for a record depends on the others of "
                "its batch: freeze it with `model.eval()`, its statistics among the weights"
            )
            raise BadInput(message, code="unsupported-model", argument="model")
    logits: Tensor = functional_call(model, params, (x,))
    return logits


def apply_operations(operations: Sequence[Operation], params: Params, x: Tensor) -> Tensor:
    """Run recognised operations on `x` with the weights `params`; autograd goes through."""
    for operation in operations:
        x = _applied(operation, params, x)
    return x


def _applied(operation: Operation, params: Params, x: Tensor) -> Tensor:
    match operation:
        case Linear():
            return F.linear(x, params[operation.weight], params[operation.bias] if operation.has_bias else None)
        case Conv():
            bias = params[operation.bias] if operation.has_bias else None
            window = operation.stride, operation.padding, operation.dilation, operation.groups
            return F.conv2d(x, params[operation.weight], bias, *window)
        case Norm():
            mean, variance = (params[f"{operation.path}.{name}"] for name in ("running_mean", "running_var"))
            scale, shift = (params.get(f"{operation.path}.{name}") for name in ("weight", "bias"))
            return F.batch_norm(x, mean, variance, scale, shift, eps=operation.eps)
        case Activation():
            activated: Tensor = operation.module(x)
            return activated
        case MaxPool():
            return F.max_pool2d(x, operation.kernel_size, operation.stride, operation.padding)
        case GlobalMean():
            return x.mean((2, 3), keepdim=True)
        case Flatten():
            return x.flatten(1)
        case Normalisation():
            return operation(params, x)
        case Add():
            return apply_operations(operation.inner, params, x) + apply_operations(operation.shortcut, params, x)


def activations(model: nn.Module, shape: Sequence[int]) -> int:
    """The number of values that the layers of `model` put out for one record of `shape`; views are not counted."""
    sizes = list[int]()
    with torch.device("meta"):
        copy = deepcopy(model).to("meta")
    for layer in copy.modules():
        if not list(layer.children()) and not isinstance(layer, nn.Flatten):
            layer.register_forward_hook(lambda _layer, _inputs, output: sizes.append(output.numel()))
    copy(torch.empty(1, *shape, device="meta"))
    return sum(sizes)
