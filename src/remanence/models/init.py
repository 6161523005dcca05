"""The weights that nets start from."""

from collections.abc import Iterator
from itertools import chain
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from remanence.errors import BadInput
from remanence.models.layers import Centre, Standardise
from remanence.types import Params


def initial_params(model: nn.Module, *, seed: int) -> Params:
    """Truncated normal weights with sigma = 1/sqrt(fan_in), cut at two sigma, and zero biases: haiku's default.

    A BatchNorm starts as the identity: mean 0, variance 1, scale 1 and shift 0. So do `Centre` and `Standardise`.
    """
    return {name: p[0] for name, p in initial_stack(model, 1, seed=seed).items()}


def initial_stack(model: nn.Module, count: int, *, seed: int) -> Params:
    """`count` independent draws of `initial_params`, stacked."""
    generator = torch.Generator().manual_seed(seed)
    params: Params = {}
    for path, module in model.named_modules():
        for name, tensor in chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False)):
            params[f"{path}.{name}" if path else name] = _start(module, path, name, tensor, count, generator)
    return params


def _start(module: nn.Module, path: str, name: str, tensor: Tensor, count: int, generator: torch.Generator) -> Tensor:
    if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
        return _draw(count, tensor, _fan_in(module), generator)
    if isinstance(module, nn.BatchNorm2d | Centre | Standardise):
        return torch.full((count, *tensor.shape), float(name in ("weight", "running_var", "std")))
    raise BadInput(
        "initial_params() knows Linear, Conv2d, ConvTranspose2d and BatchNorm2d, "
        f"got {type(module).__name__} at `{path}`: pass the initial weights yourself"
    )


def torch_params(model: nn.Module, *, seed: int, first: float | None = None) -> Params:
    """torch's default, uniform within 1/sqrt(fan_in); with `first` the first layer is normal with that deviation."""
    generator = torch.Generator().manual_seed(seed)
    params: Params = {name: torch.zeros(buffer.shape) for name, buffer in model.named_buffers()}
    layers = [(path, layer) for path, layer in model.named_modules() if list(layer.parameters(recurse=False))]
    for place, (path, layer) in enumerate(layers):
        if not isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            raise BadInput(f"torch_params() knows Linear and convolutions, got {type(layer).__name__} at `{path}`")
        for name, tensor in layer.named_parameters(recurse=False):
            if first is not None and place == 0:
                drawn = first * torch.randn(tensor.shape, generator=generator)
            else:
                drawn = (2 * torch.rand(tensor.shape, generator=generator) - 1) / sqrt(_fan_in(layer))
            params[f"{path}.{name}"] = drawn
    return params


def server_params(model: nn.Module, *, seed: int, spread: float = 1.0, offset: float = 30.0) -> Params:
    """What the server of Wang, Lee, Lei (2023) sends: normal rows without biases, 1/m in the head, and an output bias
    that keeps every residual away from zero. Their records have norm one; for others a `spread` of one over their norm
    does the same. In deeper nets (their algorithm 2) the layers before pass x and -x on, and the rows take both.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    if len(layers) < 2:
        raise BadInput(f"the server's weights are for two linear layers or more, got {len(layers)}")
    *before, wide, head = layers
    if head.out_features != 1:
        raise BadInput(
            f"the server's weights are for one output, got {head.out_features}: with several, and equal weights in the "
            "head, the residuals of cross-entropy cancel"
        )
    params = {
        names[id(layer.bias)]: torch.zeros(layer.bias.shape, dtype=torch.float64)
        for layer in layers
        if layer.bias is not None
    }
    for layer in before:
        params[names[id(layer.weight)]] = torch.eye(*layer.weight.shape, dtype=torch.float64)
    rows = torch.cat(list(server_rows(wide.out_features, layers[0].in_features, seed=seed)))
    if before:
        narrow = min(layer.out_features for layer in before)
        if narrow < 2 * rows.shape[1]:
            raise BadInput(f"the layers before the last two must be {2 * rows.shape[1]} wide or wider, got {narrow}")
        first = params[names[id(before[0].weight)]]
        first[rows.shape[1] : 2 * rows.shape[1]] = -torch.eye(rows.shape[1], dtype=torch.float64)
        rows = pad(torch.cat([rows, -rows], dim=1), (0, wide.in_features - 2 * rows.shape[1]))
    params[names[id(wide.weight)]] = spread * rows
    params[names[id(head.weight)]] = torch.full(head.weight.shape, 1 / head.in_features, dtype=torch.float64)
    if head.bias is not None:
        params[names[id(head.bias)]].fill_(offset)
    return params


def server_rows(rows: int, features: int, *, seed: int, block: int = 4096) -> Iterator[Tensor]:
    """The normal rows of `server_params`, a block at a time: the seed gives them again, and they need not be kept."""
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, rows, block):
        yield torch.randn(min(block, rows - start), features, generator=generator, dtype=torch.float64)


def _fan_in(module: nn.Linear | nn.Conv2d | nn.ConvTranspose2d) -> int:
    """Of one output; a transposed convolution keeps its inputs in the first dimension of its weight."""
    weight = module.weight[:, 0] if isinstance(module, nn.ConvTranspose2d) else module.weight[0]
    return weight.numel()


def _draw(count: int, parameter: Tensor, fan_in: int, generator: torch.Generator) -> Tensor:
    drawn = torch.zeros(count, *parameter.shape)
    if parameter.ndim > 1:
        sigma = 1 / sqrt(fan_in)
        nn.init.trunc_normal_(drawn, std=sigma, a=-2 * sigma, b=2 * sigma, generator=generator)
    return drawn
