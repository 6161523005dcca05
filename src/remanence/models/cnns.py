"""The convolutional network of Balle et al., a LeNet, and ResNets and VGGs for small images, with frozen BatchNorm."""

from collections.abc import Callable, Sequence
from math import prod
from typing import final

import torch
from torch import Tensor, nn

from remanence.errors import BadInput


def cnn(shape: Sequence[int], num_classes: int, *, activation: Callable[[], nn.Module] = nn.ELU) -> nn.Sequential:
    """Two valid 4x4 convolutions and two linear layers: Balle et al., table V (55,208 parameters on CIFAR-10)."""
    if len(shape) != 3 or min(shape[1:]) < 10:
        message = f"`shape` of cnn() must be (channels, height, width) of at least 10x10, got {tuple(shape)}: use mlp()"
        raise BadInput(message, code="out-of-range", argument="shape")
    channels, height, width = shape
    sides = [(side - 4) // 2 + 1 - 3 for side in (height, width)]
    with torch.device("meta"):
        return nn.Sequential(
            *(nn.Conv2d(channels, 16, 4, stride=2), activation(), nn.Conv2d(16, 32, 4), activation(), nn.Flatten()),
            *(nn.Linear(32 * prod(sides), 10), activation(), nn.Linear(10, num_classes)),
        )


def lenet(shape: Sequence[int], num_classes: int, *, activation: Callable[[], nn.Module] = nn.Sigmoid) -> nn.Sequential:
    """Three 5x5 convolutions of twelve channels, of which two halve the sides, and one linear layer: the LeNet of Zhu,
    Liu, Han, "Deep Leakage from Gradients" (15,826 parameters on CIFAR-10)."""
    if len(shape) != 3:
        message = f"`shape` of lenet() must be (channels, height, width), got {tuple(shape)}: use mlp()"
        raise BadInput(message, code="shape-mismatch", argument="shape")
    sides = [-(-side // 4) for side in shape[1:]]
    with torch.device("meta"):
        return nn.Sequential(
            *(nn.Conv2d(shape[0], 12, 5, stride=2, padding=2), activation()),
            *(nn.Conv2d(12, 12, 5, stride=2, padding=2), activation()),
            *(nn.Conv2d(12, 12, 5, padding=2), activation(), nn.Flatten()),
            nn.Linear(12 * prod(sides), num_classes),
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
    """A ResNet of groups of residual blocks; each group but the first halves the sides and doubles the width. Its
    BatchNorm is frozen."""
    if len(shape) != 3:
        message = f"`shape` of resnet() must be (channels, height, width), got {tuple(shape)}: use mlp()"
        raise BadInput(message, code="shape-mismatch", argument="shape")
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Conv2d(shape[0], width, 3, padding=1, bias=False), _norm(width), activation()]
        fan_in = width
        for group, count in enumerate(blocks):
            fan_out = width << group
            for i in range(count):
                layers.append(Residual(fan_in, fan_out, stride=2 if group and not i else 1, activation=activation))
                fan_in = fan_out
        return nn.Sequential(*layers, *_pooled(fan_in, num_classes)).eval()


@final
class Residual(nn.Module):
    """The sum of two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

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
    """VGG-16 for small images (Simonyan, Zisserman 2015), with global average pooling, one linear layer at the end and
    frozen BatchNorm (14,724,042 parameters on CIFAR-10). `blocks` counts the convolutions between poolings: (1, 1, 2,
    2, 2) is VGG-11."""
    side = 1 << len(blocks)
    if len(shape) != 3 or min(shape[1:]) < side:
        message = (
            f"`shape` of vgg() with {len(blocks)} poolings must be (channels, height, width) of at least "
            f"{side}x{side}, got {tuple(shape)}: use fewer `blocks`, or mlp()"
        )
        raise BadInput(message, code="out-of-range", argument="shape")
    with torch.device("meta"):
        layers, fan_in = list[nn.Module](), shape[0]
        for group, count in enumerate(blocks):
            for fan_out in [width << min(group, 3)] * count:
                layers += [nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False), _norm(fan_out), activation()]
                fan_in = fan_out
            layers.append(nn.MaxPool2d(2))
        return nn.Sequential(*layers, *_pooled(fan_in, num_classes)).eval()


def _pooled(fan_in: int, num_classes: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(fan_in, num_classes)


def _norm(width: int) -> nn.BatchNorm2d:
    """A BatchNorm that counts no batches, as it is never in training mode; its statistics are part of `Params`."""
    norm = nn.BatchNorm2d(width)
    norm.num_batches_tracked = None
    return norm
