"""Deep nets with frozen BatchNorm, fine-tuned from a start that we pre-train: the paper's is not public."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from remanence.attacks import Search, SimuDy, Simulation, Surrogate, TotalVariation, with_search
from remanence.data import Split
from remanence.experiments import Claim, Experiment, Measurement, Outcome, Reconstructed, Scale, Victims
from remanence.experiments.evaluations import Accuracy
from remanence.models import Standardise, initial_params, resnet
from remanence.progress import track
from remanence.releases import fine_tuned
from remanence.seeds import derive_seed
from remanence.training import SGD, Adam, Training
from remanence.types import Data, Params
from remanence_recipes.tian2025.setting import PAPERS, Images, cut, images_of


@final
@dataclass(frozen=True, kw_only=True)
class DeepNet:
    """A net, and how long its start is trained."""

    family: Callable[..., nn.Sequential] = resnet
    blocks: tuple[int, ...]
    width: int
    side: int | None  # of the images; None: as they are
    public: int  # images that the start is trained on
    epochs: int


NETS: dict[Scale, DeepNet] = {
    "smoke": DeepNet(blocks=(1, 1), width=4, side=None, public=400, epochs=3),
    "small": DeepNet(blocks=(1, 1, 1), width=16, side=16, public=5000, epochs=4),
    "full": DeepNet(blocks=(2, 2, 2, 2), width=64, side=None, public=20_000, epochs=10),
}
FAST = replace(PAPERS, epochs=4, optimizer=SGD(lr=0.1))  # so that four epochs of a new head do
VICTIMS: dict[Scale, Training] = {"smoke": FAST, "small": PAPERS, "full": PAPERS}
FEWEST, FEWER = 4, 8  # epochs that first and further steps simulate; the authors' code: 8
STEEP = Surrogate(beta=(20.0, 40.0))  # of the last steps
SHORT = 40  # one step of so many simulates the victim's own
DEEP = SimuDy(
    prior=TotalVariation(weight=0.01),
    search=Search(optimizer=Adam(lr=0.03, beta1=0.8, beta2=0.9), steps=5000, scales=4, tf32=True),
    surrogate=Surrogate(beta=(2.0, 40.0)),
    simulation=Simulation(clip=10.0),
)


def resnet_20(scale: Scale) -> Sequence[Experiment]:
    """20 images from ResNet-18, fine-tuned from pre-trained layers under a new head, and under the pre-trained one.

    For 20 epochs at full batch; the layers have seen other images. With their own head the loss is so curved that a
    larger rate than the victim's diverges.
    """
    claim = Claim.mean(images_of(scale).ssim, printed=0.57, target=0.60, where="20 images, read off a picture")
    records, steps = 20 if scale == "full" else 10, {"smoke": 20, "small": 300, "full": 1500}[scale]
    start, victim = Start.of(scale, records), VICTIMS[scale]
    attack = deep(records, steps, [replace(victim, epochs=FEWER)] if victim.epochs > FEWER else [])
    kept = deep_cell(scale, start.net, start.parts, start.trained, attack)
    return [
        *_images(scale, start, records, steps, claim),
        replace(kept, label=f"{kept.label}, head pre-trained too"),
    ]


def resnet_50(scale: Scale) -> Sequence[Experiment]:
    """50 images from the same ResNet-18."""
    claim = Claim.mean(images_of(scale).ssim, printed=0.1982, target=0.35, where="50 images, greedy SSIM")
    records = 50 if scale == "full" else 20
    return _images(scale, Start.of(scale, records), records, {"smoke": 10, "small": 200, "full": 1200}[scale], claim)


def resnet_120(scale: Scale) -> Sequence[Experiment]:
    """120 images from the same ResNet-18, the largest set that the paper speaks of."""
    records = {"smoke": 30, "small": 40, "full": 120}[scale]
    return _images(scale, Start.of(scale, records), records, {"smoke": 8, "small": 80, "full": 500}[scale], None)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Start:
    """What a net is fine-tuned from, by the seed."""

    net: DeepNet
    parts: Callable[[int], Split]
    trained: Callable[[int], Params]
    new_head: Callable[[int], Params]

    @classmethod
    def of(cls, scale: Scale, records: int) -> "Start":
        images, net = images_of(scale), NETS[scale]
        parts = partial(cut, scale, records, public=net.public, side=net.side)
        trained = started(net, images, parts)
        return cls(net=net, parts=parts, trained=trained, new_head=with_new_head(net, images, parts, trained))


def _images(scale: Scale, start: Start, records: int, steps: int, claim: Claim | None) -> list[Experiment]:
    attack = deep(records, steps, leaping(VICTIMS[scale]))
    cell = deep_cell(scale, start.net, start.parts, start.new_head, attack)
    return [
        Experiment(
            label="the start",
            about="How good the net is whose layers fine-tuning starts from; the head is drawn anew, as for a new "
            "task. The paper's start is not public: ours is pre-trained on images that are neither private nor held "
            "out.",
            evaluations=(Measurement(measure=partial(_accuracy, start.trained, start.net, start.parts)),),
        ),
        replace(cell, claims=(claim,) if claim and scale == "full" else ()),
    ]


def deep(records: int, steps: int, shorter: Sequence[Training]) -> SimuDy:
    """First steps simulate shorter trainings than the victim's, which cost as much less; the last ones its own."""
    found = simulating(with_search(replace(DEEP, candidates=records), steps=steps), shorter[0] if shorter else None)
    adam = DEEP.search.optimizer
    assert isinstance(adam, Adam)
    for training in shorter[1:]:
        slower = with_search(found, steps=steps // 3, optimizer=replace(adam, lr=adam.lr / 3))
        found = simulating(replace(slower, start=found, surrogate=STEEP), training)
    if not shorter:
        return found
    last = with_search(found, steps=max(1, steps // SHORT), optimizer=replace(adam, lr=adam.lr / 10))
    return simulating(replace(last, start=found, surrogate=STEEP), None)


def simulating(attack: SimuDy, training: Training | None) -> SimuDy:
    """The attack with another training that it simulates."""
    return replace(attack, simulation=replace(attack.simulation, training=training))


def leaping(training: Training) -> list[Training]:
    """As far in fewer epochs; none where there are few already."""
    optimizer, epochs = training.optimizer, training.epochs
    return [
        replace(training, epochs=few, optimizer=replace(optimizer, lr=epochs / few * optimizer.lr))
        for few in (FEWEST, FEWER)
        if epochs > FEWER
    ]


def deep_cell(
    scale: Scale, net: DeepNet, parts: Callable[[int], Split], start: Callable[[int], Params], attack: SimuDy
) -> Experiment:
    images = images_of(scale)
    return Experiment(
        label=f"ResNet, {attack.candidates} images",
        victims=Victims(
            split=parts,
            model=built(net),
            training=VICTIMS[scale],
            initial=lambda _, seed: start(seed),
            reveal=fine_tuned,
        ),
        attack=attack,
        tuned_on_truth=True,  # scales, rate, prior, clip and leaps, on up to ten images of seed 0 at `small`
        evaluations=(Reconstructed(matching=images.matching, metrics=images.metrics),),
    )


def built(net: DeepNet) -> Callable[[Data], nn.Module]:
    def made(data: Data) -> nn.Module:
        inner = net.family(data.shape, data.num_classes, blocks=net.blocks, width=net.width)
        with torch.device("meta"):
            return nn.Sequential(Standardise(data.shape[0]), *inner).eval()

    return made


def started(net: DeepNet, images: Images, parts: Callable[[int], Split]) -> Callable[[int], Params]:
    @cache
    def start(seed: int) -> Params:
        public = parts(seed).public
        model = built(net)(public)
        initial = images.shown(initial_params(model, seed=derive_seed(seed, "start")))
        return pretrained(model, initial, public, epochs=net.epochs, seed=derive_seed(seed, "pre-training"))

    return start


def with_new_head(
    net: DeepNet, images: Images, parts: Callable[[int], Split], start: Callable[[int], Params]
) -> Callable[[int], Params]:
    """The same layers under a head that has learnt nothing yet."""

    def begun(seed: int) -> Params:
        model = built(net)(parts(seed).public)
        drawn = images.shown(initial_params(model, seed=derive_seed(seed, "head")))
        head = [name for name, _ in model.named_parameters()][-2:]
        return start(seed) | {name: drawn[name] for name in head}

    return begun


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
    start: Callable[[int], Params], net: DeepNet, parts: Callable[[int], Split], seed: int, device: torch.device
) -> Outcome:
    test = parts(seed).test.to(device)
    params = {name: p.to(device) for name, p in start(seed).items()}
    return Outcome(measures=(Accuracy().measure(built(net)(test), params, test),))
