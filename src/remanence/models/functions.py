"""The functions of a forward pass that are recognised, and the shapes of what they and the common modules put out.

On the meta device torch would give every shape, but only after a second or more of imports, once in each process; so
the common ones are computed here.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

ACTIVATIONS: dict[Any, Callable[..., nn.Module]] = {  # functions whose further arguments are those of the module
    **dict.fromkeys((F.relu, torch.relu, "relu", F.relu_, torch.relu_, "relu_"), nn.ReLU),
    **dict.fromkeys((F.tanh, torch.tanh, "tanh"), nn.Tanh),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, "sigmoid"), nn.Sigmoid),
    F.leaky_relu: nn.LeakyReLU,
    F.elu: nn.ELU,
    F.celu: nn.CELU,
    F.selu: nn.SELU,
    F.gelu: nn.GELU,
    F.silu: nn.SiLU,
    F.softplus: nn.Softplus,
}
SUMS = {operator.add, operator.iadd, torch.add, "add", "add_"}
DIFFERENCES = {operator.sub, operator.isub, torch.sub, "sub"}
QUOTIENTS = {operator.truediv, operator.itruediv, torch.div, "div"}
PRODUCTS = {operator.mul, operator.imul, torch.mul, "mul"}
RESHAPES = {torch.flatten, torch.reshape, "flatten", "view", "reshape"}
DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout}
_MUTATING = {operator.iadd, operator.isub, operator.itruediv, operator.imul, F.relu_, torch.relu_}
_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


def overwrites(target: Any, kwargs: dict[str, Any]) -> bool:
    """Whether this function changes its first argument in place."""
    named = isinstance(target, str) and target.endswith("_")
    return named or target in _MUTATING or bool(kwargs.get("inplace"))


def pooling(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The settings of `F.max_pool2d(x, *args, **kwargs)`, pairs for both sides of the image."""
    given = dict.fromkeys(_POOL) | dict(zip(_POOL, args, strict=False)) | kwargs
    kernel = _pair(given["kernel_size"])
    return {
        "kernel_size": kernel,
        "stride": _pair(given["stride"]) if given["stride"] else kernel,
        "padding": _pair(given["padding"] or 0),
        "dilation": _pair(given["dilation"] or 1),
        "ceil_mode": bool(given["ceil_mode"]),
    }


def module_pooling(module: nn.MaxPool2d) -> dict[str, Any]:
    """The settings of a module as `pooling` gives them."""
    return pooling((), {name: getattr(module, name) for name in _POOL})


def module_shape(module: nn.Module, x: Tensor) -> tuple[int, ...] | None:
    """The shape of `module(x)`; None where it is not known here."""
    if isinstance(module, nn.Linear) and x.shape[-1] == module.in_features:
        return (*x.shape[:-1], module.out_features)
    if isinstance(module, nn.Conv2d) and x.ndim == 4 and x.shape[1] == module.in_channels:
        if isinstance(module.padding, str):
            return None
        sides = _slid(x, module.kernel_size, module.stride, module.padding, module.dilation)
        return (len(x), module.out_channels, *sides)
    if isinstance(module, nn.MaxPool2d) and x.ndim == 4:
        return _pooled(x, module_pooling(module))
    if isinstance(module, nn.AdaptiveAvgPool2d) and x.ndim == 4 and module.output_size in (1, (1, 1)):
        return (*x.shape[:2], 1, 1)
    if isinstance(module, _BatchNorm) and x.shape[1] == module.num_features:
        return tuple(x.shape)
    if isinstance(module, nn.Identity | _DropoutNd) or type(module) in ACTIVATIONS.values():
        return tuple(x.shape)
    return None


def function_shape(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[int, ...] | None:
    """The shape of `target(*args, **kwargs)`; None where it is not known here."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    if any(target in known for known in (SUMS, DIFFERENCES, QUOTIENTS, PRODUCTS)) and tensors:
        largest = max(tensors, key=lambda t: (t.ndim, t.numel())).shape
        return tuple(largest) if all(t.expand(largest).shape == largest for t in tensors) else None
    if target in ACTIVATIONS or target in DROPOUTS:
        return tuple(tensors[0].shape)
    if target is F.linear and len(tensors) > 1 and tensors[0].shape[-1] == tensors[1].shape[-1]:
        return (*tensors[0].shape[:-1], len(tensors[1]))
    if target is F.max_pool2d and tensors[0].ndim == 4:
        return _pooled(tensors[0], pooling(args[1:], kwargs))
    if target is F.adaptive_avg_pool2d and tensors[0].ndim == 4 and args[1:] in ((1,), ((1, 1),)):
        return (*tensors[0].shape[:2], 1, 1)
    return None


def _pooled(x: Tensor, given: dict[str, Any]) -> tuple[int, ...] | None:
    if given.pop("ceil_mode"):
        return None
    return (*x.shape[:2], *_slid(x, **given))


def _slid(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """The sides of what a window that slides over images makes."""
    windows = zip(x.shape[2:], kernel_size, stride, padding, dilation, strict=True)
    sides = [(side + 2 * p - d * (k - 1) - 1) // s + 1 for side, k, s, p, d in windows]
    if min(sides) < 1:
        raise ValueError(f"a window of {tuple(kernel_size)} is larger than the image, {tuple(x.shape[2:])}")
    return sides


def _pair(given: Any) -> tuple[int, int]:
    return (given, given) if isinstance(given, int) else (int(given[0]), int(given[-1]))
