"""Backbones of recipes, with decoders of their embeddings: AlexNet as published, and a ResNet-18 that is trained on
public images here. Nothing of them is stored.

On one GPU the ResNet takes about a minute and each decoder less; `smoke` has two random convolutions in place of
AlexNet, whose file need not be there.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from math import cos, pi
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from remanence.attacks import DecoderFitting, EmbeddingInversion, FittedInversion, Search, TotalVariation, with_search
from remanence.data import distinct, load
from remanence.experiments import Measure, Scale
from remanence.experiments.evaluations import Accuracy
from remanence.models import (
    Backbone,
    Standardise,
    alexnet,
    embedded,
    initial_params,
    resnet,
    torch_params,
    without_head,
)
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence.training import Adam
from remanence.types import Data, Params, concat
from remanence_recipes.records import first_of_each_class, shuffled

Kind: TypeAlias = Literal["published", "trained"]
NOISE = 0.3  # on a decoder's embeddings: those from heads are off by about half a standard deviation of a feature


@final
@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How many images there are of each part, how long the ResNet and the decoders are trained."""

    per_class: int  # private images of each class, at most
    held_out: int
    pretraining: int  # images that the ResNet is trained on
    public: int  # other public images
    blocks: tuple[int, ...]
    width: int  # of the ResNet's first group
    epochs: int  # of the ResNet
    batch_size: int
    inversion: EmbeddingInversion


SIZES: dict[Scale, Sizes] = {
    "smoke": Sizes(
        per_class=2,
        held_out=400,
        pretraining=500,
        public=700,
        blocks=(1, 1),
        width=48,
        epochs=2,
        batch_size=64,
        inversion=EmbeddingInversion(
            decoder=DecoderFitting(width=16, epochs=8, batch_size=64, optimizer=Adam(lr=3e-3)),
            search=Search(optimizer=Adam(lr=0.01), steps=30),
            prior=TotalVariation(weight=0.02),
        ),
    ),
    "small": Sizes(
        per_class=5,
        held_out=1000,
        pretraining=3000,
        public=2000,
        blocks=(1, 1, 1),
        width=32,
        epochs=6,
        batch_size=128,
        inversion=with_search(EmbeddingInversion(decoder=DecoderFitting(width=16, epochs=5, noise=NOISE)), steps=100),
    ),
    "full": Sizes(  # ResNet-18, on half of the 50,000 training images
        per_class=20,
        held_out=5000,
        pretraining=25_000,
        public=19_500,
        blocks=(2, 2, 2, 2),
        width=64,
        epochs=24,
        batch_size=512,
        inversion=EmbeddingInversion(decoder=DecoderFitting(epochs=14, noise=NOISE)),
    ),
}
LR = 0.1  # of the ResNet, for a batch of 128
WARM_UP = 0.2  # fraction of the steps in which the learning rate rises
PADDING = 4  # pixels by which photographs are shifted at most
PIXEL_STD = 0.25  # about that of a pixel over photographs, for which the settings of attacks were chosen


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """Disjoint parts of a data set: private images, as many of each class, images held out, and public images, the
    first of which the ResNet is trained on."""

    private: Data
    held_out: Data
    pretraining: Data
    public: Data

    @classmethod
    def sample(cls, scale: Scale, seed: int) -> "Images":
        """The parts by a seed."""
        sizes = SIZES[scale]
        private, others = first_of_each_class(shuffled(_images(scale), seed), sizes.per_class)
        counts, start = (sizes.held_out, sizes.pretraining, sizes.public), 0
        parts = list[Data]()
        for count in counts:
            parts.append(others.take(slice(start, start + count)))
            start += count
        return cls(private=private, held_out=parts[0], pretraining=parts[1], public=parts[2])

    def to(self, device: torch.device) -> "Images":
        """The same images on a device."""
        private, held_out, pretraining, public = (
            data.to(device) for data in (self.private, self.held_out, self.pretraining, self.public)
        )
        return Images(private=private, held_out=held_out, pretraining=pretraining, public=public)

    @property
    def known(self) -> Data:
        """All images that the attacker owns."""
        return concat([self.pretraining, self.public])


@lru_cache(maxsize=2)
def _images(scale: Scale) -> Data:
    return distinct(load("digits", part="all") if scale == "smoke" else load("cifar10", part="train"))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """A backbone on a device, the images, and the inversion that is fitted on public ones."""

    images: Images
    backbone: Backbone
    inversion: FittedInversion
    held_out: Data  # embeddings, as the next
    known: Data
    accuracy: Measure | None  # of the network that the backbone is part of

    def private(self, per_class: int) -> tuple[Data, Data]:
        """So many private images of each class, and their embeddings."""
        images = first_of_each_class(self.images.private, per_class)[0]
        return images, embedded(self.backbone, images)


@lru_cache(maxsize=2)
def setting(scale: Scale, kind: Kind, seed: int, device: torch.device) -> Setting:
    """The backbone of this kind, and the inversion of its embeddings, for one seed."""
    images = Images.sample(scale, seed).to(device)
    known, accuracy = images.known, None
    if kind == "trained":
        backbone, accuracy = trained_resnet(scale, images, seed=derive_seed(seed, "backbone"))
    elif scale == "smoke":
        backbone = random_convolutions(known.shape, seed=derive_seed(seed, "backbone"))
    else:
        backbone = alexnet(known.shape, like=known.x[:0])
    raw = backbone.to(device).embed(known.x)
    backbone = replace(backbone.to(device), scale=float(raw.std(0).square().mean().sqrt()) / PIXEL_STD)
    # of a trained network the decoder learns from images that are as new to it as the private ones are
    learnt = known if kind == "published" else images.public
    if scale != "smoke":
        learnt = concat([learnt, replace(learnt, x=learnt.x.flip(3))])
    return Setting(
        images=images,
        backbone=backbone,
        inversion=SIZES[scale].inversion.fit(backbone, learnt, seed=derive_seed(seed, "inversion")),
        held_out=embedded(backbone, images.held_out),
        known=embedded(backbone, known),
        accuracy=accuracy,
    )


def random_convolutions(shape: tuple[int, ...], *, seed: int, channels: int = 32) -> Backbone:
    """Two random 3x3 convolutions with ReLU, and the means of each channel over four quarters."""
    with torch.device("meta"):
        model = nn.Sequential(
            *(nn.Conv2d(shape[0], channels, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        )
    return Backbone(name="random convolutions", model=model, params=torch_params(model, seed=seed), shape=shape)


def trained_resnet(scale: Scale, images: Images, *, seed: int) -> tuple[Backbone, Measure]:
    """A ResNet without its last layer, trained on the public images `pretraining`; its accuracy on held-out ones."""
    sizes, data = SIZES[scale], images.pretraining
    layers = resnet(data.shape, data.num_classes, blocks=sizes.blocks, width=sizes.width)
    with torch.device("meta"):
        model = nn.Sequential(Standardise(data.shape[0]), *layers).eval()
    initial = initial_params(model, seed=derive_seed(seed, "initial"))
    channels = data.x.transpose(0, 1).flatten(1)
    initial |= {"0.mean": channels.mean(1).view(-1, 1, 1), "0.std": channels.std(1).view(-1, 1, 1)}
    params = pretrain(
        *(model, initial, data),
        epochs=sizes.epochs,
        batch_size=sizes.batch_size,
        augmented=scale != "smoke",
        seed=derive_seed(seed, "training"),
    )
    accuracy = Accuracy(name="accuracy of the backbone's network", meaning="on held-out images, with its last layer")
    name = "ResNet-18" if scale == "full" else "a small ResNet"
    measure = accuracy.measure(model, params, images.held_out)
    return without_head(model, params, data.shape, name=name), measure


def pretrain(
    model: nn.Module, initial: Params, data: Data, *, epochs: int, batch_size: int, augmented: bool, seed: int
) -> Params:
    """Train by SGD with Nesterov momentum, a learning rate that rises and falls, and the statistics of each batch in
    BatchNorm, on the device of the data: on a GPU in bfloat16. Photographs are shifted and mirrored."""
    device, generator = data.x.device, torch.Generator().manual_seed(seed)
    real = deepcopy(model).to_empty(device=device).train()
    for name, tensor in real.state_dict().items():
        tensor.copy_(initial[name])
    real = real.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps_per_epoch = -(-len(data) // batch_size)
    steps, done, peak = epochs * steps_per_epoch, 0, LR * batch_size / 128
    optimizer = torch.optim.SGD(real.parameters(), lr=peak, momentum=0.9, weight_decay=5e-4, nesterov=True)
    for _ in track(range(epochs), total=epochs, label="backbone"):
        for batch in torch.randperm(len(data), generator=generator).split(batch_size):
            for group in optimizer.param_groups:
                group["lr"] = peak * _factor(done / steps)
            x, y = data.x[batch.to(device)], data.y[batch.to(device)]
            x = augmented_images(x, generator) if augmented else x
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                loss = cross_entropy(real(x.contiguous(memory_format=torch.channels_last)), y)
            loss.backward()
            optimizer.step()
            done += 1
    return {name: p.detach().clone(memory_format=torch.contiguous_format) for name, p in real.state_dict().items()}


def _factor(progress: float) -> float:
    """Of the learning rate: a line from 0 to 1, then half a cosine to 0."""
    if progress < WARM_UP:
        return progress / WARM_UP
    return (1 + cos(pi * (progress - WARM_UP) / (1 - WARM_UP))) / 2


def augmented_images(x: Tensor, generator: torch.Generator) -> Tensor:
    """Images shifted by up to four pixels in each direction, half of them mirrored; borders are reflected."""
    n, channels, height, width = x.shape
    shifts = torch.randint(2 * PADDING + 1, (2, n, 1), generator=generator).to(x.device)
    mirrored = (torch.rand(n, generator=generator) < 0.5).to(x.device)
    rows, columns = (torch.arange(side, device=x.device) + s for side, s in zip((height, width), shifts, strict=True))
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    padded = pad(x, (PADDING,) * 4, mode="reflect")
    index = torch.arange(n, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[None, :, None, None]
    return padded[index, channel, rows[:, None, :, None], columns[:, None, None, :]]
