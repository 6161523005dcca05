"""Where simulated training breaks: one change at a time, on the MLP and on small deep nets."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import final

from torch import nn

from remanence.attacks import SimuDy, with_search
from remanence.data import Split
from remanence.experiments import Experiment, Point, Scale
from remanence.models import resnet, vgg
from remanence.training import Training
from remanence.types import Params
from remanence_recipes.tian2025.mlps import simulated
from remanence_recipes.tian2025.resnets import DEEP, NETS, DeepNet, deep_cell, started
from remanence_recipes.tian2025.setting import PAPERS, cut, images_of, wide


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    images: int
    epochs: int
    width: int
    batch: int | None  # None: all images; in their order, which the attacker knows, while their labels are guessed


MLPS: dict[Scale, tuple[Setting, dict[str, tuple[int, ...]]]] = {
    "smoke": (
        Setting(images=10, epochs=20, width=64, batch=None),
        {"images": (20,), "batch": (5,)},
    ),
    "small": (
        Setting(images=20, epochs=20, width=100, batch=None),
        {"images": (10, 50), "epochs": (40, 80), "width": (50, 300), "batch": (5, 10)},
    ),
    "full": (
        Setting(images=100, epochs=20, width=1000, batch=None),
        {"images": (20, 50, 200), "epochs": (40, 80), "width": (100, 300, 3000), "batch": (25, 50)},
    ),
}
DEEPS: dict[Scale, tuple[Setting, dict[str, tuple[int, ...]]]] = {
    "smoke": (Setting(images=10, epochs=2, width=4, batch=None), {"epochs": (4,)}),
    "small": (
        Setting(images=10, epochs=1, width=16, batch=None),
        {"images": (20,), "epochs": (4,), "width": (8,), "batch": (5,)},
    ),
    "full": (
        Setting(images=10, epochs=4, width=16, batch=None),
        {"images": (20, 50), "epochs": (1, 8), "width": (8, 32), "batch": (5,)},
    ),
}
STEPS: dict[Scale, tuple[int, int]] = {"smoke": (20, 5), "small": (200, 150), "full": (500, 500)}


def scaling(scale: Scale) -> Sequence[Experiment]:
    """SSIM against the number of images, the epochs, the width and the batch size: MLP, a small ResNet and VGG."""
    begun = cache(partial(_begun, scale))
    middle, axes = DEEPS[scale]
    by_epochs = {"epochs": axes["epochs"]}
    return [
        *_around("MLP", *MLPS[scale], partial(_shallow, scale)),
        *_around("ResNet", middle, axes, partial(_deep, scale, partial(begun, resnet))),
        *_around("VGG", middle, by_epochs, partial(_deep, scale, partial(begun, vgg))),
    ]


def _around(
    name: str, middle: Setting, axes: dict[str, tuple[int, ...]], made: Callable[[Setting], Experiment]
) -> Iterator[Experiment]:
    """The cells of each axis, the one in the middle on all of them."""
    for axis, values in axes.items():
        usual = getattr(middle, axis) or middle.images
        for value in sorted({*values, usual}):
            setting = middle if value == usual else replace(middle, **{axis: value})
            yield replace(
                made(setting),
                label=f"{name}, {axis} {value}",
                point=Point(axis=axis, value=value, series=name, log=True),
            )


def _shallow(scale: Scale, setting: Setting) -> Experiment:
    usual = simulated(scale)
    assert isinstance(usual.attack, SimuDy)
    return replace(
        usual.with_victims(
            split=partial(cut, scale, setting.images), model=wide(setting.width), training=_training(setting)
        ),
        attack=with_search(replace(usual.attack, candidates=setting.images), steps=STEPS[scale][0]),
        claims=(),
    )


Begun = tuple[DeepNet, Callable[[int], Split], Callable[[int], Params]]  # a net, the records and the start


def _begun(scale: Scale, family: Callable[..., nn.Sequential], images: int, width: int) -> Begun:
    net = replace(NETS["small"], side=None) if scale == "full" else NETS[scale]
    net = replace(net, family=family, width=width)
    parts = partial(cut, scale, images, public=net.public, side=net.side)
    return net, parts, started(net, images_of(scale), parts)


def _deep(scale: Scale, begun: Callable[[int, int], Begun], setting: Setting) -> Experiment:
    attack = with_search(replace(DEEP, candidates=setting.images), steps=STEPS[scale][1])
    usual = deep_cell(scale, *begun(setting.images, setting.width), attack)
    return usual.with_victims(training=_training(setting))


def _training(setting: Setting) -> Training:
    return replace(PAPERS, epochs=setting.epochs, batch_size=setting.batch, shuffled=False)
