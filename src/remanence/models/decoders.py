"""Networks that generate images, and a discriminator of them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad, pixel_shuffle

from remanence.errors import BadInput
from remanence.models.operations import Conv


def deconv(inputs: int, shape: Sequence[int], *, hidden: Sequence[int] = ()) -> nn.Sequential:
    """A decoder of vectors into images by two transposed convolutions: Balle et al., table VI (226,189,699
    parameters on CIFAR-10).

    The table's "64 x 64" is taken for 64 channels of 8x8, which the two strides of 2 bring to 32x32. `hidden` are the
    widths of linear layers before them, which the table does not have.
    """
    if len(shape) != 3 or shape[1] % 4 or shape[2] % 4:
        message = (
            f"`shape` of deconv() must be (channels, height, width) with sides that 4 divides, got {tuple(shape)}: use "
            "mlp()"
        )
        raise BadInput(message, code="shape-mismatch", argument="shape")
    channels, height, width = shape[0], shape[1] // 4, shape[2] // 4
    widths = [inputs, *hidden, 64 * height * width]
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(
            *(*layers, Image(64, height, width)), *(Doubling(64, 32), nn.ReLU(), Doubling(32, channels))
        )


def transposed_cnn(inputs: int, shape: Sequence[int], *, width: int = 64) -> nn.Sequential:
    """A decoder of vectors into logits of images: a linear layer to the smallest sides, then transposed convolutions
    that double them, a 3x3 convolution after each, down to `width` channels at the sides of the image.

    Sides are halved while they are even and above 4: three times for 32x32, twice for 28x28.
    """
    if len(shape) != 3 or min(shape[1:]) < 4:
        message = (
            f"`shape` of transposed_cnn() must be (channels, height, width) of at least 4x4, got {tuple(shape)}: use "
            "mlp()"
        )
        raise BadInput(message, code="shape-mismatch", argument="shape")
    channels, rows, columns = shape
    doublings = 0
    while rows % 2 == 0 and columns % 2 == 0 and min(rows, columns) > 4:
        rows, columns, doublings = rows // 2, columns // 2, doublings + 1
    widths = [width << k for k in reversed(range(doublings + 1))]
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Linear(inputs, widths[0] * rows * columns), nn.ReLU()]
        layers.append(Image(widths[0], rows, columns))
        for fan_in, fan_out in pairwise(widths):
            layers += [Doubling(fan_in, fan_out), nn.ReLU(), nn.Conv2d(fan_out, fan_out, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(width, channels, 3, padding=1))


@final
class Image(nn.Module):
    """A vector as an image in channels-last memory format, in which convolutions are fastest."""

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
        """Even positions of the output are sums of the taps 4, 2, 0 of a 5-tap filter, odd ones of 3 and 1."""
        if x.is_cuda:
            return super().forward(x.contiguous(), output_size)
        turned = pad(self.weight, (0, 1, 0, 1)).flip(2, 3).unflatten(3, (3, 2)).unflatten(2, (3, 2)).flip(3, 5)
        filters = turned.permute(1, 3, 5, 0, 2, 4).reshape(-1, self.in_channels, 3, 3)
        bias = None if self.bias is None else self.bias.repeat_interleave(4)
        return pixel_shuffle(conv2d(x, filters, bias, padding=1), 2)


def mirror(convolutions: Sequence[Conv], *, width: int = 64) -> nn.Sequential:
    """A decoder from the flattened outputs of these convolutions to images: each of them transposed, in reverse."""
    made, channels = convolutions[-1].out_shape, convolutions[0].in_shape[0]
    layers: list[nn.Module] = [nn.Unflatten(1, made)]
    with torch.device("meta"):
        for fan_in, conv in zip((made[0], *[width] * len(convolutions)), reversed(convolutions), strict=False):
            layers += [_transposed(conv, fan_in, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(width, channels, 3, padding=1))


def _transposed(conv: Conv, fan_in: int, fan_out: int) -> nn.ConvTranspose2d:
    """The transposed convolution to the inputs of `conv`; what its stride leaves out at the edge is padded."""
    sides = conv.in_shape[1:]
    (kernel, pad, stride), two = (tuple(pair) for pair in (conv.kernel_size, conv.padding, conv.stride)), range(2)
    lost = [(sides[i] + 2 * pad[i] - kernel[i]) % stride[i] for i in two]
    made = nn.ConvTranspose2d(fan_in, fan_out, (kernel[0], kernel[1]), (stride[0], stride[1]), (pad[0], pad[1]))
    made.output_padding = (lost[0], lost[1])
    return made


def patchgan(shape: Sequence[int]) -> nn.Sequential:
    """A discriminator with one logit for each of a few overlapping patches of an image: Balle et al., table VII."""
    if len(shape) != 3 or min(shape[1:]) < 24:
        message = f"`shape` of patchgan() must be (channels, height, width) of at least 24x24, got {tuple(shape)}"
        raise BadInput(message, code="out-of-range", argument="shape")
    # The paper gives neither padding nor normalisation. A padding of 1 leaves 2x2 logits on 32x32; without
    # normalisation a logit does not depend on the other images of the batch.
    widths = [(shape[0], 64, 2), (64, 128, 2), (128, 256, 2), (256, 512, 1)]
    with torch.device("meta"):
        layers: list[nn.Module] = []
        for fan_in, fan_out, stride in widths:
            layers += [nn.Conv2d(fan_in, fan_out, 4, stride=stride, padding=1), nn.LeakyReLU(0.2)]
        return nn.Sequential(*layers, nn.Conv2d(512, 1, 4, padding=1))
