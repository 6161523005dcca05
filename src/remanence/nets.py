"""Architectures as plain functions, and the weights they start from.

A model here is only its architecture: it is built on the meta device, holds no numbers and draws none from the global
generator. The numbers are `Params`, passed in by whoever calls the model.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import pairwise
from math import prod, sqrt

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad

from remanence.errors import BadInput
from remanence.types import Params


def mlp(
    shape: Sequence[int],
    num_classes: int,
    *,
    hidden: Sequence[int] = (10,),
    activation: Callable[[], nn.Module] = nn.ELU,
) -> nn.Sequential:
    """Flatten, then linear layers with `activation` between them: Balle et al., table IV, by default."""
    widths = [prod(shape), *hidden]
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), activation()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


def cnn(shape: Sequence[int], num_classes: int, *, activation: Callable[[], nn.Module] = nn.ELU) -> nn.Sequential:
    """Two valid 4x4 convolutions and two linear layers: Balle et al., table V (55,208 parameters on CIFAR-10)."""
    if len(shape) != 3 or min(shape[1:]) < 10:
        raise BadInput(f"cnn() needs images (channels, height, width) of at least 10x10, got {tuple(shape)}: use mlp()")
    channels, height, width = shape
    left = [(side - 4) // 2 + 1 - 3 for side in (height, width)]
    with torch.device("meta"):
        return nn.Sequential(
            *(nn.Conv2d(channels, 16, 4, stride=2), activation(), nn.Conv2d(16, 32, 4), activation(), nn.Flatten()),
            *(nn.Linear(32 * prod(left), 10), activation(), nn.Linear(10, num_classes)),
        )


def deconv(inputs: int, shape: Sequence[int], *, hidden: Sequence[int] = ()) -> nn.Sequential:
    """Numbers to images by two transposed convolutions: Balle et al., table VI (226,189,699 parameters on CIFAR-10).

    The table's "64 x 64" is read as 64 channels of 8x8, which the two strides of 2 bring to 32x32. `hidden` puts
    linear layers in front, which the table does not have.
    """
    if len(shape) != 3 or shape[1] % 4 or shape[2] % 4:
        raise BadInput(
            f"deconv() makes images (channels, height, width) with sides that 4 divides, got {tuple(shape)}: use mlp()"
        )
    channels, height, width = shape[0], shape[1] // 4, shape[2] // 4
    widths = [inputs, *hidden, 64 * height * width]
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(
            *(*layers, nn.Unflatten(1, (64, height, width))),
            *(nn.ConvTranspose2d(64, 32, 5, stride=2, padding=2, output_padding=1), nn.ReLU()),
            nn.ConvTranspose2d(32, channels, 5, stride=2, padding=2, output_padding=1),
        )


def mirror(encoder: nn.Sequential, shape: Sequence[int], *, width: int = 64) -> nn.Sequential:
    """From what convolutions make of images of `shape`, flattened, back to images: each of them transposed, in turn."""
    x, seen = torch.empty(1, *shape, device="meta"), []
    for layer in encoder:
        if isinstance(layer, nn.Conv2d):
            seen.append((layer, x.shape[2:]))
        x = layer(x)
    layers: list[nn.Module] = [nn.Unflatten(1, tuple(x.shape[1:]))]
    with torch.device("meta"):
        for fan_in, (conv, sides) in zip((x.shape[1], *[width] * len(seen)), reversed(seen), strict=False):
            layers += [_transposed(conv, sides, fan_in, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(width, shape[0], 3, padding=1))


def _transposed(conv: nn.Conv2d, sides: Sequence[int], fan_in: int, fan_out: int) -> nn.ConvTranspose2d:
    """Back to images of these sides; what a stride left over at the edge is padded."""
    assert not isinstance(conv.padding, str)
    (kernel, pad, stride), two = (tuple(pair) for pair in (conv.kernel_size, conv.padding, conv.stride)), range(2)
    lost = [(sides[i] + 2 * pad[i] - kernel[i]) % stride[i] for i in two]
    made = nn.ConvTranspose2d(fan_in, fan_out, (kernel[0], kernel[1]), (stride[0], stride[1]), (pad[0], pad[1]))
    made.output_padding = (lost[0], lost[1])
    return made


def patchgan(shape: Sequence[int]) -> nn.Sequential:
    """Images to one verdict for each of a few overlapping patches: the discriminator of Balle et al., table VII."""
    if len(shape) != 3 or min(shape[1:]) < 24:
        raise BadInput(f"patchgan() needs images (channels, height, width) of at least 24x24, got {tuple(shape)}")
    # The paper gives neither padding nor normalisation. A padding of 1 leaves 2x2 verdicts on 32x32; without
    # normalisation a verdict does not depend on the rest of the batch.
    widths = [(shape[0], 64, 2), (64, 128, 2), (128, 256, 2), (256, 512, 1)]
    with torch.device("meta"):
        layers: list[nn.Module] = []
        for fan_in, fan_out, stride in widths:
            layers += [nn.Conv2d(fan_in, fan_out, 4, stride=stride, padding=1), nn.LeakyReLU(0.2)]
        return nn.Sequential(*layers, nn.Conv2d(512, 1, 4, padding=1))


def initial_params(model: nn.Module, *, seed: int) -> Params:
    """Truncated normal weights with sigma = 1/sqrt(fan_in), cut at two sigma, and zero biases: haiku's default."""
    return {name: p[0] for name, p in initial_stack(model, 1, seed=seed).items()}


def initial_stack(model: nn.Module, count: int, *, seed: int) -> Params:
    """`count` independent draws of `initial_params`, stacked."""
    generator = torch.Generator().manual_seed(seed)
    params: Params = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                raise BadInput(
                    "initial_params() knows Linear, Conv2d and ConvTranspose2d, "
                    f"got {type(module).__name__} at `{path}`: pass the initial weights yourself"
                )
            params[f"{path}.{name}" if path else name] = _draw(count, parameter, _fan_in(module), generator)
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


def apply(model: nn.Module, params: Params, x: Tensor) -> Tensor:
    """The logits of `model` with the weights `params`."""
    logits: Tensor = functional_call(model, params, (x,))
    return logits


def activations(model: nn.Module, shape: Sequence[int]) -> int:
    """How many numbers the layers of `model` put out for one record."""
    counted = []

    def count(_layer: nn.Module, _inputs: object, output: Tensor) -> None:
        counted.append(output.numel())

    with torch.device("meta"):
        copy = deepcopy(model).to("meta")
    for layer in copy.modules():
        if not list(layer.children()) and not isinstance(layer, nn.Flatten):  # a view holds nothing
            layer.register_forward_hook(count)
    copy(torch.empty(1, *shape, device="meta"))
    return sum(counted)
