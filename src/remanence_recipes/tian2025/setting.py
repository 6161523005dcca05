"""What the recipes of this paper share: images with as many of each class, its nets, and its scores."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import final

import torch
from torch import nn
from torch.nn.functional import interpolate

from remanence.data import Split, distinct, load
from remanence.experiments import Scale
from remanence.metrics import MSE, SSIM, Matching, Metric, greedy, normalised
from remanence.models import Standardise, torch_params
from remanence.seeds import derive_seed
from remanence.training import SGD, Training
from remanence.types import Data, Params

HELD_OUT: dict[Scale, int] = {"smoke": 500, "small": 1000, "full": 5000}
PAPERS = Training(optimizer=SGD(lr=0.01), epochs=20)


@final
@dataclass(frozen=True, kw_only=True)
class Images:
    """A data set, and the numbers that its images are normalised by."""

    name: str
    mean: tuple[float, ...]
    spread: tuple[float, ...]

    def load(self) -> Data:
        return load(self.name) if self.name == "digits" else load(self.name, part="train")

    @property
    def ssim(self) -> Metric:
        return normalised(SSIM, mean=self.mean, std=self.spread)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (self.ssim, SSIM, MSE)

    @property
    def matching(self) -> Matching:
        return greedy(self.ssim)

    def shown(self, params: Params) -> Params:
        """With the numbers of the net's first layer, which are not trained."""
        shift, scale = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.spread))
        return params | {"0.mean": shift, "0.std": scale}


CIFAR = Images(name="cifar10", mean=(0.4914, 0.4822, 0.4465), spread=(0.2023, 0.1994, 0.2010))
DIGITS = Images(name="digits", mean=(0.3053,), spread=(0.3760,))


def images_of(scale: Scale) -> Images:
    return DIGITS if scale == "smoke" else CIFAR


def cut(
    scale: Scale, records: int, seed: int, *, public: int = 0, side: int | None = None, balanced: bool = True
) -> Split:
    """As many private records of each class, drawn by the seed (the paper: the first in the files); or any classes."""
    whole = images_of(scale).load()
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
    data = distinct(whole.take(order[: 10 * records + 2 * (HELD_OUT[scale] + public)]))
    if side is not None:
        data = replace(data, x=interpolate(data.x, size=(side, side), mode="bilinear", antialias=True).clamp(0, 1))
    evenly = torch.cat([(data.y == label).nonzero()[: records // 10, 0] for label in range(10)])
    place = evenly if balanced else torch.arange(records)
    rest = torch.ones(len(data), dtype=torch.bool)
    rest[place] = False
    others, held_out = data.take(rest), HELD_OUT[scale]
    return Split(
        private=data.take(place),
        fixed=data.take(slice(0, 0)),
        public=others.take(slice(held_out, held_out + public)),
        test=others.take(slice(0, held_out)),
    )


def wide(width: int) -> Callable[[Data], nn.Module]:
    """The paper's MLP: two hidden layers of one width with ReLU, a bias in the first layer alone."""

    def net(data: Data) -> nn.Module:
        with torch.device("meta"):
            return nn.Sequential(
                *(Standardise(data.shape[0]), nn.Flatten()),
                *(nn.Linear(prod(data.shape), width), nn.ReLU()),
                *(nn.Linear(width, width, bias=False), nn.ReLU()),
                nn.Linear(width, data.num_classes, bias=False),
            )

    return net


def torch_start(images: Images) -> Callable[[nn.Module, int], Params]:
    return lambda model, seed: images.shown(torch_params(model, seed=derive_seed(seed, "start")))
