"""Residual nets with frozen BatchNorm, fine-tuned from a start that we pre-train: the paper's is not public."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from remanence.attacks import SimuDy
from remanence.data import Split
from remanence.experiment import Cell, Claim, Measure, Outcome, Scale, Study
from remanence.metrics.statistics import binomial_share
from remanence.nets import Standardise, apply, initial_params, resnet
from remanence.progress import track
from remanence.release import initial_and_final
from remanence.seeds import stream
from remanence.types import Data, Params
from remanence_recipes.tian2025.setting import PAPERS, Images, cut, images_of


@final
@dataclass(frozen=True, kw_only=True)
class Residual:
    """A net, and how long its start is trained and how long is searched."""

    blocks: tuple[int, ...]
    width: int
    side: int | None  # of the images; None: as they are
    public: int  # images that the start is trained on
    epochs: int
    steps: int


NETS: dict[Scale, Residual] = {
    "smoke": Residual(blocks=(1, 1), width=4, side=None, public=400, epochs=3, steps=20),
    "small": Residual(blocks=(1, 1, 1), width=16, side=16, public=5000, epochs=4, steps=200),
    "paper": Residual(blocks=(2, 2, 2, 2), width=64, side=None, public=20_000, epochs=15, steps=10_000),
}


def resnet_20(scale: Scale) -> Sequence[Cell | Study]:
    """20 images from ResNet-18, fine-tuned for 20 epochs at full batch from a start pre-trained on other images."""
    records, images, net = 20 if scale == "paper" else 10, images_of(scale), NETS[scale]
    parts = partial(cut, scale, records, public=net.public, side=net.side)
    start = started(net, images, parts)
    claim = Claim.mean(images.ssim, printed=0.57, target=0.60, where="20 images, read off the authors' picture")
    return [
        Study(
            label="the start",
            about="How good the net is that fine-tuning starts from. The paper's is not public: ours is pre-trained on "
            "images that are neither private nor held out.",
            run=partial(_accuracy, start, net, parts),
        ),
        Cell(
            label=f"ResNet, {records} images",
            split=parts,
            model=residual(net),
            training=replace(PAPERS, epochs=4) if scale == "smoke" else PAPERS,
            start=lambda _, seed: start(seed),
            reveal=initial_and_final,
            attack=SimuDy(candidates=records, steps=net.steps),
            matching=images.matching,
            metrics=images.metrics,
            claims=(claim,) if scale == "paper" else (),
        ),
    ]


def residual(net: Residual) -> Callable[[Data], nn.Module]:
    def made(data: Data) -> nn.Module:
        inner = resnet(data.shape, data.num_classes, blocks=net.blocks, width=net.width)
        with torch.device("meta"):
            return nn.Sequential(Standardise(data.shape[0]), *inner).eval()

    return made


def started(net: Residual, images: Images, parts: Callable[[int], Split]) -> Callable[[int], Params]:
    @cache
    def start(seed: int) -> Params:
        public = parts(seed).public
        model = residual(net)(public)
        initial = images.shown(initial_params(model, seed=stream(seed, "start")))
        return pretrained(model, initial, public, epochs=net.epochs, seed=stream(seed, "pre-training"))

    return start


def pretrained(model: nn.Module, initial: Params, data: Data, *, epochs: int, seed: int) -> Params:
    """By SGD with momentum in mini-batches, with the statistics of each batch in BatchNorm: not a `Training`, in which
    they are frozen. The means that BatchNorm gathers are among the weights."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # a start is made before a cell has a device
    real = deepcopy(model).to_empty(device=device).train()
    for name, tensor in real.state_dict().items():
        tensor.copy_(initial[name])
    data, generator = data.to(device), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(real.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in track(range(epochs), total=epochs, label="pre-training"):
        for batch in torch.randperm(len(data), generator=generator).to(device).split(128):
            optimizer.zero_grad()
            cross_entropy(real(data.x[batch]), data.y[batch]).backward()
            optimizer.step()
        schedule.step()
    return {name: p.detach().cpu() for name, p in real.state_dict().items()}


def _accuracy(
    start: Callable[[int], Params], net: Residual, parts: Callable[[int], Split], seed: int, device: torch.device
) -> Outcome:
    test = parts(seed).test.to(device)
    params = {name: p.to(device) for name, p in start(seed).items()}
    with torch.no_grad():
        guesses = [apply(residual(net)(test), params, x).argmax(1) for x in test.x.split(500)]
    share = binomial_share(int((torch.cat(guesses) == test.y).sum()), len(test))
    chance = float(test.y.bincount().max()) / len(test)
    meaning = "share of held-out images that the start classifies rightly"
    return Outcome(measures=(Measure.of("test accuracy", share, meaning=meaning, chance=chance),))
