"""Architectures as plain functions, and the weights they start from.

A model here is only its architecture: it is built on the meta device, holds no numbers and draws none from the global
generator. The numbers are `Params`, passed in by whoever calls the model.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import chain, pairwise
from math import prod, sqrt
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import conv2d, pad, pixel_shuffle
from torch.nn.modules.batchnorm import _BatchNorm

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


def centred_mlp(shape: Sequence[int], outputs: int, *, hidden: Sequence[int] = (1000, 1000)) -> nn.Sequential:
    """A mean is taken off, then linear layers with ReLU, a bias in the first alone: Buzaglo et al. 2023."""
    widths = [prod(shape), *hidden]
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Flatten(), Centre(widths[0])]
        for place, (fan_in, fan_out) in enumerate(pairwise(widths)):
            layers += [nn.Linear(fan_in, fan_out, bias=place == 0), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs, bias=False))


@final
class Centre(nn.Module):
    """Takes a mean off flat records: a number of `Params` that is shown with the weights and never trained."""

    mean: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.mean


@final
class Standardise(nn.Module):
    """Images less the mean of each channel, over its spread: numbers of `Params` that are shown and never trained."""

    mean: Tensor
    spread: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("spread", torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.spread


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


def resnet18(shape: Sequence[int], num_classes: int, *, width: int = 64) -> nn.Sequential:
    """He et al. 2016 for small images: a 3x3 stem without pooling (11,173,962 parameters on CIFAR-10)."""
    return resnet(shape, num_classes, blocks=(2, 2, 2, 2), width=width)


def resnet(
    shape: Sequence[int],
    num_classes: int,
    *,
    blocks: Sequence[int],
    width: int,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Stages of residual blocks, each but the first with half the side and twice the width; BatchNorm is frozen."""
    if len(shape) != 3:
        raise BadInput(f"resnet() needs images (channels, height, width), got {tuple(shape)}: use mlp()")
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Conv2d(shape[0], width, 3, padding=1, bias=False), _norm(width), activation()]
        fan_in = width
        for stage, count in enumerate(blocks):
            fan_out = width << stage
            for i in range(count):
                layers.append(Residual(fan_in, fan_out, stride=2 if stage and not i else 1, activation=activation))
                fan_in = fan_out
        return nn.Sequential(*layers, *_pooled(fan_in, num_classes)).eval()


@final
class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, fan_in: int, fan_out: int, *, stride: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *(nn.Conv2d(fan_in, fan_out, 3, stride=stride, padding=1, bias=False), _norm(fan_out), activation()),
            *(nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False), _norm(fan_out)),
        )
        same = stride == 1 and fan_in == fan_out
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(fan_in, fan_out, 1, stride=stride, bias=False), _norm(fan_out))
        )
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.inner(x) + self.shortcut(x))
        return out


def vgg(
    shape: Sequence[int],
    num_classes: int,
    *,
    blocks: Sequence[int] = (2, 2, 3, 3, 3),
    width: int = 64,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """VGG-16 for small images (Simonyan, Zisserman 2015): a mean and one linear layer at the end (14,724,042 parameters
    on CIFAR-10), BatchNorm frozen. `blocks` counts the convolutions between poolings: (1, 1, 2, 2, 2) is VGG-11."""
    least = 1 << len(blocks)
    if len(shape) != 3 or min(shape[1:]) < least:
        raise BadInput(
            f"vgg() of {len(blocks)} stages needs images (channels, height, width) of at least {least}x{least}, got "
            f"{tuple(shape)}: use fewer stages, or mlp()"
        )
    with torch.device("meta"):
        layers, fan_in = list[nn.Module](), shape[0]
        for stage, count in enumerate(blocks):
            for fan_out in [width << min(stage, 3)] * count:
                layers += [nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False), _norm(fan_out), activation()]
                fan_in = fan_out
            layers.append(nn.MaxPool2d(2))
        return nn.Sequential(*layers, *_pooled(fan_in, num_classes)).eval()


def _pooled(fan_in: int, num_classes: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(fan_in, num_classes)


def _norm(width: int) -> nn.BatchNorm2d:
    """It counts no batches, as it never sees one in training: its statistics are numbers of `Params` like others."""
    norm = nn.BatchNorm2d(width)
    norm.num_batches_tracked = None
    return norm


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
            *(*layers, Image(64, height, width)),
            *(Doubling(64, 32), nn.ReLU(), Doubling(32, channels)),
        )


@final
class Image(nn.Module):
    """A vector as an image, with the channels of a place side by side, which convolutions read fastest."""

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.sides = (height, width, channels)

    def forward(self, x: Tensor) -> Tensor:
        image: Tensor = x.unflatten(1, self.sides)
        return image.permute(0, 3, 1, 2)


@final
class Doubling(nn.ConvTranspose2d):
    """A transposed 5x5 convolution that doubles the sides; on a CPU, where it is faster, as a 3x3 one and a shuffle."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__(fan_in, fan_out, 5, stride=2, padding=2, output_padding=1)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """An even place of the output sees the taps 4, 2, 0 of a 5-tap filter, an odd one 3 and 1."""
        if x.is_cuda:
            return super().forward(x.contiguous(), output_size)
        turned = pad(self.weight, (0, 1, 0, 1)).flip(2, 3).unflatten(3, (3, 2)).unflatten(2, (3, 2)).flip(3, 5)
        filters = turned.permute(1, 3, 5, 0, 2, 4).reshape(-1, self.in_channels, 3, 3)
        bias = None if self.bias is None else self.bias.repeat_interleave(4)
        return pixel_shuffle(conv2d(x, filters, bias, padding=1), 2)


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
        return torch.full((count, *tensor.shape), float(name in ("weight", "running_var", "spread")))
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


def apply(model: nn.Module, params: Params, x: Tensor) -> Tensor:
    """The logits of `model` with the weights `params`."""
    for layer in model.modules():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            raise BadInput(
                "a BatchNorm in training mode makes what a record gives depend on the others of its batch: freeze it "
                "with `model.eval()`, its statistics among the weights"
            )
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
