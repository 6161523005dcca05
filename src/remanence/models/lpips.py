"""LPIPS: how different two images look, as the distance between features of a network that was trained on photographs.

Zhang, Isola, Efros, Shechtman, Wang, "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric" (CVPR
2018), version 0.1 on AlexNet: features after each of the five convolutions, normalised over the channels, squared
differences weighted by a learnt head, averaged over positions and summed over layers. With the head's weights
multiplied into the features that is one squared Euclidean distance, so `embed` serves pairs and all pairs alike.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import final

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from remanence.data import data_folders
from remanence.errors import BadInput
from remanence.types import Params

FILE = "lpips-alexnet.safetensors"
_FLOOR = 1e-10  # of a squared norm: the derivative of the root is infinite at 0, where black patches lie
# AlexNet halves a side five times over: 28 pixels leave nothing for its third layer and 32 leave one position. Smaller
# images are enlarged to this side, so values on CIFAR-10 are not those of the original run at 32x32.
_SIDE = 64
_RANGE = ((-0.030, -0.088, -0.188), (0.458, 0.448, 0.450))  # shift and scale of the channels, after [-1, 1]
STRIDES = ((4, 2), (1, 2), (1, 1), (1, 1), (1, 1))  # stride and padding of each convolution
_POOLED = (1, 2)  # layers that begin by halving
SHAPES = {
    **{"conv1.weight": (64, 3, 11, 11), "conv1.bias": (64,), "conv2.weight": (192, 64, 5, 5), "conv2.bias": (192,)},
    **{"conv3.weight": (384, 192, 3, 3), "conv3.bias": (384,), "conv4.weight": (256, 384, 3, 3), "conv4.bias": (256,)},
    **{"conv5.weight": (256, 256, 3, 3), "conv5.bias": (256,)},
    **{f"head{i}.weight": (1, width, 1, 1) for i, width in enumerate((64, 192, 384, 256, 256), start=1)},
}


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Lpips:
    """`lpips(a, b)` is the distance of each pair of images in [0, 1]; it can be differentiated."""

    weights: Params

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        return (self.embed(a) - self.embed(b)).square().sum(1)

    def embed(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) to (n, features), whose squared distances are LPIPS."""
        parts = []
        for i, features in enumerate(alexnet_outputs(self.weights, x)):
            unit = features * (features.square().sum(1, keepdim=True) + _FLOOR).rsqrt()
            positions = features.shape[2] * features.shape[3]
            parts.append((unit * (self.weights[f"head{i + 1}.weight"] / positions).sqrt()).flatten(1))
        return torch.cat(parts, dim=1)

    def to(self, like: Tensor) -> "Lpips":
        """The same network on the device and in the number format of `like`."""
        return Lpips(weights={name: p.to(like) for name, p in self.weights.items()})


def alexnet_outputs(weights: Params, x: Tensor) -> list[Tensor]:
    """The outputs of AlexNet's five convolutions after ReLU, (n, channels, height, width) each, for images in
    [0, 1]."""
    features, outputs = _prepared(x), list[Tensor]()
    for i, (stride, padding) in enumerate(STRIDES):
        if i in _POOLED:
            features = F.max_pool2d(features, 3, stride=2)
        weight, bias = weights[f"conv{i + 1}.weight"], weights[f"conv{i + 1}.bias"]
        features = F.conv2d(features, weight, bias, stride=stride, padding=padding).relu()
        outputs.append(features)
    return outputs


def load_lpips(like: Tensor) -> Lpips:
    """The published network, from the data folder, for images such as `like`."""
    paths = [folder / FILE for folder in data_folders()]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        looked = " and ".join(str(path.parent) for path in paths)
        raise BadInput(
            f"LPIPS needs the file {FILE}, got none in {looked}: put it into `$REMANENCE_DATA` (float32 tensors "
            "conv1.weight to conv5.bias of AlexNet and head1.weight to head5.weight of LPIPS 0.1), or do without LPIPS",
            code="missing-file",
        )
    return _read(path).to(like)


@lru_cache(maxsize=1)
def _read(path: Path) -> Lpips:
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise BadInput(
            f"{path} must be a safetensors file, got {error}: download it again", code="damaged-file"
        ) from error
    found = {name: tuple(p.shape) for name, p in weights.items()}
    wrong = sorted(name for name in SHAPES.keys() | found.keys() if SHAPES.get(name) != found.get(name))
    if wrong:
        raise BadInput(
            f"{path} must hold the tensors of LPIPS on AlexNet, got `{wrong[0]}` of shape {found.get(wrong[0])} "
            f"instead of {SHAPES.get(wrong[0])}: download the file again",
            code="damaged-file",
        )
    return Lpips(weights=weights)


def _prepared(x: Tensor) -> Tensor:
    """Three channels, at least 64 pixels a side, standardised as the network was trained."""
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        raise BadInput(
            f"LPIPS needs images of 1 or 3 channels, got records of shape {tuple(x.shape[1:])}: use another metric",
            code="shape-mismatch",
        )
    short = min(x.shape[2:])
    if short < _SIDE:
        size = [round(side * _SIDE / short) for side in x.shape[2:]]
        x = F.interpolate(x, size=size, mode="bilinear", align_corners=False)
    channels = x.expand(-1, 3, -1, -1).unbind(1)
    return torch.stack([(2 * c - 1 - shift) / scale for c, shift, scale in zip(channels, *_RANGE, strict=True)], dim=1)
