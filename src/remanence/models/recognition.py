"""From the nodes of a traced forward pass to operations: the table of what is recognised.

Modules and the functions that do the same (`nn.ReLU`, `F.relu`, `torch.relu`, `x.relu()`) give the same operation.
"""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from remanence.models import functions
from remanence.models import operations as ops
from remanence.models.layers import Normalize, broadcast_shape
from remanence.models.operations import Operation
from remanence.models.tracing import NotRecognised, Trace, is_elementwise, name_of, without_mutation


def operations_between(trace: Trace, start: fx.Node, end: fx.Node) -> tuple[Operation, ...]:
    """The operations that lead from the value of `start` to that of `end`, sums of two branches as one operation.

    Raise `NotRecognised` where one of them is none of the table's.
    """
    found, node = list[Operation](), end
    while node is not start:
        if _is_sum(trace, node):
            fork = _fork(trace, node)
            branches = [operations_between(trace, fork, branch) for branch in trace.sources(node)]
            inner, shortcut = sorted(branches, key=len, reverse=True)  # stable: the first of two that are equally long
            found.append(ops.Add(inner=inner, shortcut=shortcut))
            node = fork
        else:
            found += reversed(_recognised(trace, node))
            node = _source(trace, node)
    return tuple(reversed(found))


def is_linear(trace: Trace, node: fx.Node) -> bool:
    """Whether this node is a fully connected layer."""
    if node.op == "call_module":
        return type(trace.module(node)) is nn.Linear
    return node.op == "call_function" and node.target is F.linear


def _is_sum(trace: Trace, node: fx.Node) -> bool:
    return node.target in functions.SUMS and len(trace.sources(node)) == 2


def _source(trace: Trace, node: fx.Node) -> fx.Node:
    """The one tensor that a node without branches takes in."""
    sources = trace.sources(node)
    if len(sources) != 1:
        raise NotRecognised(f"the net has an operation `{name_of(node)}` ({_said(node)}) of {len(sources)} tensors")
    return sources[0]


def _spine(trace: Trace, node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that all paths from the records to `node` pass, the last one first."""
    while True:
        yield node
        if node is trace.input:
            return
        node = _fork(trace, node) if _is_sum(trace, node) else _source(trace, node)


def _fork(trace: Trace, node: fx.Node) -> fx.Node:
    """Where the two branches of a sum part."""
    one, other = trace.sources(node)
    passed = set(_spine(trace, one))
    return next(n for n in _spine(trace, other) if n in passed)


def _recognised(trace: Trace, node: fx.Node) -> list[Operation]:
    """The operations of one node; none where it leaves its input as it is."""
    source = _source(trace, node)
    if _overwrites(trace, node) and len(source.users) > 1:
        raise NotRecognised(f"`{name_of(node)}` overwrites in place what another layer takes in")
    if node.op == "call_module":
        return _from_module(trace, node, trace.module(node), trace.record_shape(source))
    return _from_function(trace, node, source)


def _overwrites(trace: Trace, node: fx.Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(trace.module(node), "inplace", False))
    return functions.overwrites(node.target, node.kwargs)


def _from_module(trace: Trace, node: fx.Node, module: nn.Module, shape: tuple[int, ...]) -> list[Operation]:
    path = str(node.target)
    match module:
        case nn.Identity():
            return []
        case nn.Flatten():
            return _reshaped(trace, node, shape)
        case nn.Linear() if type(module) is nn.Linear:
            return [_linear(path, module.weight, module.bias is not None, shape)]
        case nn.Conv2d() if type(module) is nn.Conv2d:
            return [_conv(path, module, shape, trace.record_shape(node))]
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            return [_norm(path, module)]
        case nn.MaxPool2d():
            return [_max_pool(_name(trace, node), **functions.module_pooling(module))]
        case nn.AdaptiveAvgPool2d() | nn.AvgPool2d():
            return _averaged(trace, node)
        case _DropoutNd():
            return _dropped(path, training=module.training and module.p > 0)
        case Normalize():
            return [_normalize(path, module, shape)]
    if is_elementwise(module):
        return [ops.Activation(name=_name(trace, node), module=without_mutation(module))]
    said = type(module).__name__ if list(module.children()) else repr(module)
    raise NotRecognised(f"the net has a layer `{path}`, {said}")


def _from_function(trace: Trace, node: fx.Node, source: fx.Node) -> list[Operation]:
    target, shape, further = node.target, trace.record_shape(source), node.args[1:]
    if target in functions.ACTIVATIONS:
        module = functions.ACTIVATIONS[target](
            *further, **{name: value for name, value in node.kwargs.items() if name != "inplace"}
        )
        return [ops.Activation(name=_name(trace, node), module=without_mutation(module))]
    if target in functions.RESHAPES:
        return _reshaped(trace, node, shape)
    if target in functions.DROPOUTS:
        given = dict(zip(("p", "training"), further, strict=False)) | dict(node.kwargs)
        return _dropped(node.name, training=bool(given.get("training", True)))
    if (number := _by_number(trace, node)) is not None:
        return [number]
    if target in functions.DIFFERENCES or target in functions.QUOTIENTS:
        return [_normalisation(trace, node)]
    if target is F.linear:
        return [_functional_linear(trace, node, shape)]
    if target is F.max_pool2d:
        return [_max_pool(_name(trace, node), **functions.pooling(further, node.kwargs))]
    if target in (F.adaptive_avg_pool2d, F.avg_pool2d, torch.mean, "mean"):
        return _averaged(trace, node)
    if target == "contiguous":
        return []
    raise NotRecognised(f"the net has an operation `{name_of(node)}` ({_said(node)})")


def _name(trace: Trace, node: fx.Node) -> str:
    """The path of the module, or the name of the node where a module is used again or a function stands for one."""
    first = next(n for n in trace.nodes if n.target == node.target)
    return str(node.target) if node.op == "call_module" and first is node else f".{node.name}"


def _said(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _linear(path: str, weight: Tensor, has_bias: bool, shape: tuple[int, ...]) -> ops.Linear:
    if len(shape) != 1:
        raise NotRecognised(f"the linear layer `{path}` takes records of shape {shape}, which are not flat")
    return ops.Linear(path=path, in_features=weight.shape[1], out_features=weight.shape[0], has_bias=has_bias)


def _functional_linear(trace: Trace, node: fx.Node, shape: tuple[int, ...]) -> ops.Linear:
    """`F.linear(x, self.layer.weight, self.layer.bias)`."""
    given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | dict(node.kwargs)
    weight, bias = given["weight"], given.get("bias")
    names = [str(n.target) if isinstance(n, fx.Node) and n.op == "get_attr" else None for n in (weight, bias)]
    path = (names[0] or "").removesuffix(".weight")
    if (
        not isinstance(weight, fx.Node)
        or names[0] != f"{path}.weight"
        or (bias is not None and names[1] != f"{path}.bias")
    ):
        raise NotRecognised(f"`{name_of(node)}` takes weights that are not `weight` and `bias` of one layer")
    return _linear(path, trace.values[weight], bias is not None, shape)


def _conv(path: str, module: nn.Conv2d, shape: tuple[int, ...], out_shape: tuple[int, ...]) -> ops.Conv:
    if module.padding_mode != "zeros":
        raise NotRecognised(f"the convolution `{path}` pads with `{module.padding_mode}`, not with zeros")
    padding = module.padding
    if isinstance(padding, str):
        total = [
            d * (k - 1) if padding == "same" else 0 for d, k in zip(module.dilation, module.kernel_size, strict=True)
        ]
        if any(each % 2 for each in total):
            raise NotRecognised(f"the convolution `{path}` pads its two sides differently")
        padding = (total[0] // 2, total[1] // 2)
    return ops.Conv(
        path=path,
        in_shape=shape,
        out_shape=out_shape,
        kernel_size=module.kernel_size,
        stride=module.stride,
        padding=padding,
        dilation=module.dilation,
        groups=module.groups,
        has_bias=module.bias is not None,
    )


def _norm(path: str, module: nn.BatchNorm1d | nn.BatchNorm2d) -> ops.Norm:
    if module.training or module.running_mean is None:
        raise NotRecognised(f"the BatchNorm `{path}` is in training mode: freeze it with `model.eval()`")
    return ops.Norm(path=path, channels=module.num_features, eps=module.eps, affine=module.affine)


def _max_pool(name: str, *, dilation: tuple[int, ...], ceil_mode: bool, **window: tuple[int, ...]) -> ops.MaxPool:
    if dilation != (1, 1) or ceil_mode:
        raise NotRecognised(f"the pooling `{name}` is dilated or rounds its sides up")
    return ops.MaxPool(name=name, **window)


def _averaged(trace: Trace, node: fx.Node) -> list[Operation]:
    """A mean over the image, whichever way it is written; others are not recognised."""
    shape, made = trace.record_shape(_source(trace, node)), trace.record_shape(node)
    name, padded = _name(trace, node), False
    if node.op == "call_module":
        padded = getattr(trace.module(node), "padding", 0) not in (0, (0, 0))
    if len(shape) != 3 or padded or made not in ((shape[0], 1, 1), (shape[0],)):
        raise NotRecognised(f"`{name}` takes a mean that is not over all of the image")
    if node.target in (torch.mean, "mean"):
        given = dict(zip(("dim", "keepdim"), node.args[1:], strict=False)) | dict(node.kwargs)
        axes = given.get("dim")
        if not isinstance(axes, list | tuple) or sorted(axis % 4 for axis in axes) != [2, 3]:
            raise NotRecognised(f"`{name}` takes a mean that is not over all of the image")
    mean = ops.GlobalMean(name=name)
    return [mean] if len(made) == 3 else [mean, ops.Flatten(name=f"{name}.flat")]


def _reshaped(trace: Trace, node: fx.Node, shape: tuple[int, ...]) -> list[Operation]:
    made = trace.record_shape(node)
    if made == shape:
        return []
    if made != (prod(shape),):
        raise NotRecognised(f"`{name_of(node)}` makes records of shape {made} out of {shape}, which is no flattening")
    return [ops.Flatten(name=_name(trace, node))]


def _dropped(name: str, *, training: bool) -> list[Operation]:
    if training:
        raise NotRecognised(f"the net drops out at `{name}`: switch it off with `model.eval()`")
    return []


def _normalize(path: str, module: Normalize, shape: tuple[int, ...]) -> ops.Normalisation:
    mean, std = (
        ops.Constant(name=f"{path}.{name}", shape=broadcast_shape(buffer.shape, shape))
        for name, buffer in (("mean", module.mean), ("std", module.std))
    )
    return ops.Normalisation(mean=mean, std=std)


def _by_number(trace: Trace, node: fx.Node) -> ops.Normalisation | None:
    """A sum, difference, product or quotient with a number; None where the node is something else."""
    if len(node.args) != 2 or node.kwargs:
        return None
    one, other = node.args
    if isinstance(one, int | float) and (node.target in functions.SUMS or node.target in functions.PRODUCTS):
        one, other = other, one
    if one not in trace.dependent or not isinstance(other, int | float):
        return None
    if node.target in functions.SUMS:
        return ops.Normalisation(mean=ops.Number(number=-other), std=None)
    if node.target in functions.DIFFERENCES:
        return ops.Normalisation(mean=ops.Number(number=other), std=None)
    if node.target in functions.QUOTIENTS and other:
        return ops.Normalisation(mean=None, std=ops.Number(number=other))
    if node.target in functions.PRODUCTS and other:
        return ops.Normalisation(mean=None, std=ops.Number(number=1 / other))
    return None


def _normalisation(trace: Trace, node: fx.Node) -> ops.Normalisation:
    """A subtraction or division by a buffer."""
    one, other = node.args[0], node.args[1] if len(node.args) > 1 else None
    if one not in trace.dependent or not isinstance(other, fx.Node) or len(node.args) != 2 or node.kwargs:
        raise NotRecognised(f"the net has an operation `{name_of(node)}` with a constant: register it as a buffer")
    held = other
    while held.op == "call_method" and held.target in ("view", "reshape", "unsqueeze"):
        (held,) = held.all_input_nodes
    names = {name for name, _ in trace.model.named_buffers()} & set(trace.model.state_dict(keep_vars=True))
    if held.op != "get_attr" or str(held.target) not in names:
        raise NotRecognised(f"the net has an operation `{name_of(node)}` with what is no buffer of its state dict")
    constant = ops.Constant(name=str(held.target), shape=tuple(trace.values[other].shape))
    if node.target in functions.DIFFERENCES:
        return ops.Normalisation(mean=constant, std=None)
    return ops.Normalisation(mean=None, std=constant)
