"""Initial weights of networks: haiku's and torch's defaults, and those of a server that reads a batch."""

from collections.abc import Iterator
from itertools import chain
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from remanence.errors import BadInput
from remanence.models.layers import Centre, Normalize, Standardise
from remanence.models.operations import Linear
from remanence.models.structure import MLP, parse
from remanence.types import Params


def initial_params(model: nn.Module, *, seed: int) -> Params:
    """Initial weights by haiku's default: normal with standard deviation 1/sqrt(fan_in), truncated at two standard
    deviations, and zero biases.

    BatchNorm, `Centre` and `Standardise` are initialised as the identity: mean 0, variance 1, scale 1 and shift 0;
    `Normalize` has its own numbers.
    """
    return {name: p[0] for name, p in initial_stack(model, 1, seed=seed).items()}


def initial_stack(model: nn.Module, count: int, *, seed: int) -> Params:
    """`count` independent samples of `initial_params`, stacked along a leading dimension."""
    generator = torch.Generator().manual_seed(seed)
    params: Params = {}
    for path, module in model.named_modules():
        for name, tensor in chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False)):
            params[f"{path}.{name}" if path else name] = _initial(module, path, name, tensor, count, generator)
    return params


def _initial(module: nn.Module, path: str, name: str, tensor: Tensor, count: int, generator: torch.Generator) -> Tensor:
    if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
        return _truncated_normal(count, tensor, _fan_in(module), generator)
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | Centre | Standardise):
        return _identity(name, tensor).expand(count, *tensor.shape).clone()
    if isinstance(module, Normalize):
        return tensor.detach().expand(count, *tensor.shape).clone()
    raise _unknown_layer("initial_params", module, path)


def _identity(name: str, tensor: Tensor) -> Tensor:
    """A parameter or buffer of a layer that leaves its inputs as they are."""
    return torch.full(tensor.shape, float(name in ("weight", "running_var", "std")))


def torch_params(model: nn.Module, *, seed: int, first_std: float | None = None) -> Params:
    """Initial weights by torch's default, uniform within 1/sqrt(fan_in), BatchNorm as the identity; with `first_std`
    those of the first layer are normal with that standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    params: Params = {name: torch.zeros(buffer.shape) for name, buffer in model.named_buffers()}
    for path, module in model.named_modules():
        if isinstance(module, Normalize):
            params |= {f"{path}.{name}": buffer.detach().clone() for name, buffer in module.named_buffers()}
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            tensors = chain(module.named_parameters(), module.named_buffers())
            params |= {f"{path}.{name}": _identity(name, tensor) for name, tensor in tensors}
    layers = [(path, layer) for path, layer in model.named_modules() if list(layer.parameters(recurse=False))]
    for index, (path, layer) in enumerate(layers):
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            continue
        if not isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            raise _unknown_layer("torch_params", layer, path)
        for name, tensor in layer.named_parameters(recurse=False):
            if first_std is not None and index == 0:
                values = first_std * torch.randn(tensor.shape, generator=generator)
            else:
                values = (2 * torch.rand(tensor.shape, generator=generator) - 1) / sqrt(_fan_in(layer))
            params[f"{path}.{name}"] = values
    return params


def server_params(model: nn.Module, *, seed: int, row_std: float = 1.0, offset: float = 30.0) -> Params:
    """The weights that the server of Wang, Lee, Lei (2023) sends: normal rows without biases, 1/m in the head, and an
    output bias that keeps every residual away from zero.

    Their records have norm one; for others a `row_std` of one over their norm does the same. In deeper networks (their
    algorithm 2) the layers before the last two pass x and -x on, and the rows take both.
    """
    *before, wide, head = layers = _server_layers(model)
    params = {layer.bias: torch.zeros(layer.out_features, dtype=torch.float64) for layer in layers if layer.has_bias}
    for layer in before:
        params[layer.weight] = torch.eye(layer.out_features, layer.in_features, dtype=torch.float64)
    features = layers[0].in_features
    rows = torch.cat(list(server_rows(wide.out_features, features, seed=seed)))
    if before:
        narrowest = min(layer.out_features for layer in before)
        if narrowest < 2 * features:
            raise _unsupported(f"the layers before the last two must have width {2 * features} or more", narrowest)
        params[before[0].weight][features : 2 * features] = -torch.eye(features, dtype=torch.float64)
        rows = pad(torch.cat([rows, -rows], dim=1), (0, wide.in_features - 2 * features))
    params[wide.weight] = row_std * rows
    params[head.weight] = torch.full((1, head.in_features), 1 / head.in_features, dtype=torch.float64)
    if head.has_bias:
        params[head.bias].fill_(offset)
    return params


def _server_layers(model: nn.Module) -> tuple[Linear, ...]:
    """The linear layers in the order of the forward pass; records are taken as flat."""
    widths = {layer.in_features for layer in model.modules() if isinstance(layer, nn.Linear)}
    found = [structure for width in widths if isinstance(structure := parse(model, (width,)), MLP)]
    layers = found[0].layers if found else ()
    if len(layers) < 2:
        raise _unsupported("`model` must be an MLP of two linear layers or more", len(layers))
    if layers[-1].out_features != 1:
        raise _unsupported(
            "`model` must have one output: with several, and equal weights in the head, the residuals of cross-entropy "
            "cancel",
            layers[-1].out_features,
        )
    return layers


def server_rows(rows: int, features: int, *, seed: int, block: int = 4096) -> Iterator[Tensor]:
    """The normal rows of `server_params` (rows, features), a block at a time: the seed gives them again, and they need
    not be stored."""
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, rows, block):
        yield torch.randn(min(block, rows - start), features, generator=generator, dtype=torch.float64)


def _fan_in(module: nn.Linear | nn.Conv2d | nn.ConvTranspose2d) -> int:
    """The number of inputs of one output; a transposed convolution has them in the first dimension of its weight."""
    weight = module.weight[:, 0] if isinstance(module, nn.ConvTranspose2d) else module.weight[0]
    return weight.numel()


def _truncated_normal(count: int, parameter: Tensor, fan_in: int, generator: torch.Generator) -> Tensor:
    values = torch.zeros(count, *parameter.shape)
    if parameter.ndim > 1:
        sigma = 1 / sqrt(fan_in)
        nn.init.trunc_normal_(values, std=sigma, a=-2 * sigma, b=2 * sigma, generator=generator)
    return values


def _unknown_layer(function: str, module: nn.Module, path: str) -> BadInput:
    return BadInput(
        f"`model` of {function}() must consist of Linear, Conv2d, ConvTranspose2d and frozen norms, got "
        f"{type(module).__name__} at `{path}`: pass the initial weights yourself",
        code="unsupported-model",
        argument="model",
    )


def _unsupported(expected: str, got: int) -> BadInput:
    return BadInput(f"{expected}, got {got}: use another network", code="unsupported-model", argument="model")
