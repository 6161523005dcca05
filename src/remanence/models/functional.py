"""Networks applied to records with given weights, and with another activation in place of ReLU."""

from collections.abc import Sequence
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from remanence.errors import BadInput
from remanence.models import operations as ops
from remanence.models.functions import ACTIVATIONS
from remanence.models.tracing import graph_of
from remanence.types import Params

_FOR_RELU = "activation_for_relu"  # name of a module


def apply(model: nn.Module, params: Params, x: Tensor) -> Tensor:
    """The logits (records, outputs) of `model` with the weights `params` for records `x`."""
    for layer in model.modules():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            message = (
                "`model` has a BatchNorm in training mode, with which the output for a record depends on the others of "
                "its batch: freeze it with `model.eval()`, its statistics among the weights (a client's release says "
                "`batch_norm='training'`)"
            )
            raise BadInput(message, code="unsupported-model", argument="model")
    given = x.clone()  # a user's forward pass may normalise its input in place
    return in_rows(functional_call(model, untied(model, params), (given,), tie_weights=False), len(x))


def tied_names(model: nn.Module) -> dict[str, str]:
    """The names of tensors that a model holds under several, such as a head that is its embeddings, each with its first
    name: that of `named_parameters()`."""
    first = dict[int, str]()
    every = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return {name: first[id(tensor)] for name, tensor in every if first.setdefault(id(tensor), name) != name}


def untied(model: nn.Module, params: Params) -> Params:
    """The weights for a call without `tie_weights`: each tensor of each layer once, tied ones by their first names.

    With it `functional_call` refuses copies of tied weights, and leaves those of a call in a layer with two names."""
    if not (tied := tied_names(model)):
        return params
    held = {
        f"{path}.{name}" if path else name
        for path, layer in model.named_modules()
        for name in chain(layer._parameters, layer._buffers)
    }
    first_names = {name: p for name, p in params.items() if name not in tied}
    again = {name: params[first] for name, first in tied.items() if name in held and first in params}
    return first_names | again


def in_rows(logits: Any, records: int) -> Tensor:
    """Logits as one row for each record: networks of one output may return them as a list of numbers."""
    rows: Tensor = logits.reshape(records, -1) if isinstance(logits, Tensor) and logits.ndim < 2 else logits
    return rows


def apply_operations(operations: Sequence[ops.Operation], params: Params, x: Tensor) -> Tensor:
    """Run recognised operations on `x` with the weights `params`; autograd goes through."""
    for operation in operations:
        x = _applied(operation, params, x)
    return x


def _applied(operation: ops.Operation, params: Params, x: Tensor) -> Tensor:
    match operation:
        case ops.Linear():
            return F.linear(x, params[operation.weight], params[operation.bias] if operation.has_bias else None)
        case ops.Conv():
            bias = params[operation.bias] if operation.has_bias else None
            window = operation.stride, operation.padding, operation.dilation, operation.groups
            return F.conv2d(x, params[operation.weight], bias, *window)
        case ops.Norm():
            mean, variance = (params[f"{operation.path}.{name}"] for name in ("running_mean", "running_var"))
            scale, shift = (params.get(f"{operation.path}.{name}") for name in ("weight", "bias"))
            return F.batch_norm(x, mean, variance, scale, shift, eps=operation.eps)
        case ops.Activation():
            activated: Tensor = operation.module(x)
            return activated
        case ops.MaxPool():
            return F.max_pool2d(x, operation.kernel_size, operation.stride, operation.padding)
        case ops.GlobalMean():
            return x.mean((2, 3), keepdim=True)
        case ops.Flatten():
            return x.flatten(1)
        case ops.Normalisation():
            return operation(params, x)
        case ops.Add():
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


def replace_relu(model: nn.Module, activation: nn.Module) -> nn.Module:
    """A copy of `model` with `activation` for every `nn.ReLU` and, where its forward pass can be traced, for every call
    of a function such as `F.relu`. Parameters and buffers have the names that they have in `model`."""
    copy = deepcopy(model)
    for path, layer in model.named_modules():
        if isinstance(layer, nn.ReLU):
            parent, _, name = path.rpartition(".")
            setattr(copy.get_submodule(parent), name, activation)
    graph = graph_of(copy)
    functions = [node for node in graph.nodes if ACTIVATIONS.get(node.target) is nn.ReLU] if graph else []
    if graph is None or not functions:
        return copy
    copy.add_module(_FOR_RELU, activation)
    for node in functions:
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.call_module(_FOR_RELU, node.args[:1]))
        graph.erase_node(node)
    return fx.GraphModule(copy, graph)
