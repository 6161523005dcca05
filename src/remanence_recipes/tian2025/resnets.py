"""ResNets with frozen BatchNorm, fine-tuned from pre-trained layers; unknown sizes; where SimuDy breaks."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from remanence.attacks import (
    Cosine,
    Search,
    SimuDy,
    Simulation,
    Surrogate,
    TotalVariation,
    contributions,
    count_needed,
    with_search,
)
from remanence.experiments import (
    Claim,
    Experiment,
    Measure,
    Outcome,
    Point,
    Scale,
    Trial,
    Victims,
)
from remanence.experiments.evaluations import Accuracy
from remanence.experiments.finding import resumable
from remanence.metrics.statistics import bootstrap_mean
from remanence.models import Standardise, initial_params, resnet, vgg
from remanence.progress import track
from remanence.releases import fine_tuned
from remanence.seeds import derive_seed
from remanence.training import SGD, Training
from remanence.types import Data, Params
from remanence_recipes.records import shuffled
from remanence_recipes.tian2025.mlps import (
    ADAM,
    TRAINING,
    Images,
    image_split,
    images_of,
    mlp_victims,
    reconstruct,
    simudy,
    simulating,
)


@final
@dataclass(frozen=True, kw_only=True)
class DeepNet:
    """A network, and the pre-training of its layers on `public` images for `epochs`."""

    family: Callable[..., nn.Sequential] = resnet
    blocks: tuple[int, ...]
    width: int
    side: int | None  # of the images; None: as they are
    public: int
    epochs: int

    def build(self, data: Data) -> nn.Module:
        """The network for images of the shape of `data`, with BatchNorm in evaluation mode."""
        layers = self.family(data.shape, data.num_classes, blocks=self.blocks, width=self.width)
        with torch.device("meta"):
            return nn.Sequential(Standardise(data.shape[0]), *layers).eval()


NETS: Mapping[Scale, DeepNet] = {
    "smoke": DeepNet(blocks=(1, 1), width=4, side=None, public=400, epochs=3),
    "small": DeepNet(blocks=(1, 1, 1), width=16, side=16, public=5000, epochs=4),
    "full": DeepNet(blocks=(2, 2, 2, 2), width=64, side=None, public=20_000, epochs=10),  # ResNet-18
}
FAST = replace(TRAINING, epochs=4, optimizer=SGD(lr=0.1))  # four epochs of a new head
FINE_TUNING: Mapping[Scale, Training] = {"smoke": FAST, "small": TRAINING, "full": TRAINING}
FEWER_EPOCHS = (4, 8)  # that the first searches simulate; the authors' code always simulates 8
DEEP = SimuDy(  # scales, learning rate, prior and clipping were chosen on up to ten images of seed 0 at `small`
    distance=Cosine(),
    prior=TotalVariation(weight=0.01),
    search=Search(optimizer=replace(ADAM, lr=0.03), steps=5000, scales=4, tf32=True),
    whitening=None,
    surrogate=Surrogate(beta=(2.0, 40.0)),
    simulation=Simulation(clip=10.0),
)


def curriculum(records: int, steps: int, shorter: Sequence[Training]) -> SimuDy:
    """Searches that simulate each of the `shorter` trainings, which is as much cheaper, and last the victim's own.

    Each starts from what the one before found: `steps`, then a third as many, and a fortieth of the victim's own.
    """
    attack = simulating(with_search(replace(DEEP, candidates=records), steps=steps), shorter[0] if shorter else None)
    refined = replace(attack, surrogate=Surrogate(beta=(20.0, 40.0)))
    for training in shorter[1:]:
        slower = with_search(refined, steps=steps // 3, optimizer=ADAM)
        attack = simulating(replace(slower, start=attack), training)
    if not shorter:
        return attack
    last = with_search(refined, steps=max(1, steps // 40), optimizer=replace(ADAM, lr=0.003))
    return simulating(replace(last, start=attack), None)


def shorter_trainings(training: Training) -> list[Training]:
    """Trainings of fewer epochs at learning rates as much larger; none where `training` is short already."""
    optimizer, epochs = training.optimizer, training.epochs
    return [
        replace(training, epochs=fewer, optimizer=replace(optimizer, lr=epochs / fewer * optimizer.lr))
        for fewer in FEWER_EPOCHS
        if epochs > max(FEWER_EPOCHS)
    ]


@lru_cache(maxsize=8)
def pretrained(scale: Scale, net: DeepNet, records: int, seed: int) -> Params:
    """The weights of `net` after pre-training on public images, which are neither private nor held out."""
    public = image_split(scale, records, seed, public=net.public, side=net.side).public
    model = net.build(public)
    initial = images_of(scale).standardised(initial_params(model, seed=derive_seed(seed, "start")))
    return pretrain(model, initial, public, epochs=net.epochs, seed=derive_seed(seed, "pre-training"))


def pretrain(model: nn.Module, initial: Params, data: Data, *, epochs: int, seed: int) -> Params:
    """Train by SGD with momentum in mini-batches, with the statistics of each batch in BatchNorm.

    That is no `Training`, in which these are frozen; the running means that BatchNorm gathers are among the weights.
    On a CUDA device activations are in bfloat16: these weights are where an experiment begins, not what it measures.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # made before an experiment has a device
    real = deepcopy(model).to_empty(device=device).train()
    for name, tensor in real.state_dict().items():
        tensor.copy_(initial[name])
    data, generator = data.to(device), torch.Generator().manual_seed(seed)
    real = real.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs leave it out
    optimizer = torch.optim.SGD(real.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in track(range(epochs), total=epochs, label="pre-training"):
        for batch in torch.randperm(len(data), generator=generator).to(device).split(128):
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = cross_entropy(real(data.x[batch]), data.y[batch])
            loss.backward()
            optimizer.step()
        schedule.step()
    return {name: p.detach().cpu().contiguous() for name, p in real.state_dict().items()}


def with_new_head(images: Images, model: nn.Module, params: Params, seed: int) -> Params:
    """`params` with the last layer re-initialised, as for a new task."""
    sampled = images.standardised(initial_params(model, seed=derive_seed(seed, "head")))
    head = [name for name, _ in model.named_parameters()][-2:]
    return params | {name: sampled[name] for name in head}


def deep_victims(
    scale: Scale, records: int, *, training: Training, net: DeepNet | None = None, new_head: bool = False
) -> Victims:
    """One network, fine-tuned on all private records from pre-trained layers, with their head or a new one."""
    net = net or NETS[scale]

    def initial(model: nn.Module, seed: int) -> Params:
        params = pretrained(scale, net, records, seed)
        return with_new_head(images_of(scale), model, params, seed) if new_head else params

    split = partial(image_split, scale, records, public=net.public, side=net.side)
    return Victims(split=split, model=net.build, training=training, initial=initial, reveal=fine_tuned)


def resnet_20(scale: Scale) -> Sequence[Experiment]:
    """20 images from ResNet-18, fine-tuned from pre-trained layers under a new head, and under the pre-trained one.

    Under the pre-trained head the loss is so curved that a larger learning rate than the victim's diverges, so that the
    shorter training stops earlier instead.
    """
    claim = Claim.mean(
        images_of(scale).ssim, printed=0.57, target=0.60, where="20 images, measured on a picture of the authors' code"
    )
    records, steps = 20 if scale == "full" else 10, {"smoke": 20, "small": 300, "full": 1500}[scale]
    training, fewer = FINE_TUNING[scale], max(FEWER_EPOCHS)
    attack = curriculum(records, steps, [replace(training, epochs=fewer)] if training.epochs > fewer else [])
    victims = deep_victims(scale, records, training=training)
    return [
        *_fine_tuned(scale, records, steps, claim),
        reconstruct(scale, f"ResNet, {records} images, head pre-trained too", victims, attack),
    ]


def resnet_50(scale: Scale) -> Sequence[Experiment]:
    """50 images from the same ResNet-18 under a new head."""
    claim = Claim.mean(images_of(scale).ssim, printed=0.1982, target=0.35, where="50 images, greedy SSIM")
    return _fine_tuned(scale, 50 if scale == "full" else 20, {"smoke": 10, "small": 200, "full": 1200}[scale], claim)


def resnet_120(scale: Scale) -> Sequence[Experiment]:
    """120 images from the same ResNet-18 under a new head, the largest set that the paper's review speaks of."""
    records, steps = {"smoke": (30, 8), "small": (40, 80), "full": (120, 500)}[scale]
    return _fine_tuned(scale, records, steps)


def _fine_tuned(scale: Scale, records: int, steps: int, *claims: Claim) -> list[Experiment]:
    """The accuracy of the pre-trained network, and the attack on its fine-tuning under a new head."""
    training = FINE_TUNING[scale]
    about = (
        "How good the network is whose layers fine-tuning starts from, with its own head. The paper's is not public: "
        "ours is pre-trained on images that are neither private nor held out."
    )
    start = deep_victims(scale, records, training=training)
    victims = deep_victims(scale, records, training=training, new_head=True)
    attack = curriculum(records, steps, shorter_trainings(training))
    return [
        Experiment(label="the start", about=about, victims=start, evaluations=(Accuracy(weights="initial"),)),
        reconstruct(scale, f"ResNet, {records} images", victims, attack, claims=claims),
    ]


def unknown_size(scale: Scale) -> Sequence[Experiment]:
    """Half as many candidates again as there were records: which of them the training needs."""
    records, steps = {"smoke": (10, 60), "small": (20, 400), "full": (40, 1000)}[scale]
    candidates = records * 3 // 2
    if scale == "full":
        victims = deep_victims(scale, records, training=TRAINING, new_head=True)
        attack = curriculum(candidates, steps, shorter_trainings(TRAINING))
    else:
        victims = mlp_victims(scale, records=records, width=64, side=16 if scale == "small" else None)
        attack = replace(
            SimuDy.paper(candidates=candidates), search=Search(steps=steps, optimizer=replace(ADAM, lr=0.04))
        )
    quantity = "mean SSIM of those kept"
    claims = (
        Claim(quantity=quantity, higher_is_better=True, printed=0.2295, target=0.30, where="40 of 60"),
        Claim(
            quantity="contribution, matched over unmatched",
            higher_is_better=True,
            printed=2.83,
            where="norms of summed gradients, 40 of 60: 1.5458 over 0.5466",
        ),
    )
    return [
        replace(
            reconstruct(scale, "number of records", victims, attack),
            about="More candidates than records: as many as records are selected, by the norm of the sum of their "
            "gradients over the training.",
            evaluations=(partial(_needed, images_of(scale)),),
            claims=claims if scale == "full" else (),
        )
    ]


def _needed(images: Images, trial: Trial) -> Outcome:
    """Evaluation: attack with too many candidates, and select by their contributions to the simulated training."""
    case, seed, attack = trial.victims.cases[0], trial.seed, resumable(trial.attack, trial.store)
    assert isinstance(attack, SimuDy)
    truth, found = case.truth.x, attack.run(case.release, seed=seed)
    assert found.y is not None
    norms = contributions(case.release, found)
    selected = found.x[norms.argsort(descending=True)[: len(truth)]]
    selected = selected[images.matching(selected, truth)]
    others = shuffled(trial.victims.split.test, derive_seed(seed, "look-alikes")).x[: len(truth)]
    similarity = images.ssim.pairwise(found.x, truth)
    best = torch.isin(torch.arange(len(found.x), device=norms.device), similarity.argmax(0))  # copies of records
    count = count_needed(norms, found.y, seed=derive_seed(seed, "count"))
    measures = (
        Measure.from_interval(
            "mean SSIM of those kept",
            bootstrap_mean(images.ssim.paired(selected, truth), seed=seed),
            meaning="greedy, of normalised images; chance: as many unrelated images",
            chance=float(images.ssim.paired(others[images.matching(others, truth)], truth).mean()),
        ),
        Measure(
            name="matched contribute more than unmatched",
            value=float((norms[best][:, None] > norms[~best]).double().mean()),
            meaning="fraction of pairs, of the best copy of any record and a candidate that is none, in which the "
            "former contributes more",
            chance=0.5,
        ),
        Measure(
            name="contribution, matched over unmatched",
            value=float(norms[best].mean() / norms[~best].mean()),
            meaning="ratio of the means, of the best copies of records and of all other candidates",
            chance=1.0,
        ),
        Measure(
            name="records by two groups",
            value=count.value,
            low=count.low,
            high=count.high,
            meaning=f"of {len(found.x)} candidates; there were {len(truth)} records",
            chance=len(found.x) / 2,
        ),
    )
    return Outcome(
        measures=measures,
        pictures={"truth": truth, "selected": selected},
        arrays={"norms": norms, "is_best_copy": best, "nearest_ssim": similarity.amax(1)},
    )


Axes = Mapping[str, tuple[int, ...]]
MLPS: Mapping[Scale, tuple[Mapping[str, int], Axes]] = {  # the usual setting, at full batch, and what is tried
    "smoke": ({"images": 10, "epochs": 20, "width": 64}, {"images": (10, 20), "batch": (5, 10)}),
    "small": (
        {"images": 20, "epochs": 20, "width": 100},
        {"images": (10, 20, 50), "epochs": (20, 40, 80), "width": (50, 100, 300), "batch": (5, 10, 20)},
    ),
    "full": (
        {"images": 100, "epochs": 20, "width": 1000},
        {"images": (20, 50, 100, 200), "epochs": (20, 40, 80), "width": (100, 300, 1000, 3000), "batch": (25, 50, 100)},
    ),
}
DEEP_NETS: Mapping[Scale, tuple[Mapping[str, int], Axes]] = {
    "smoke": ({"images": 10, "epochs": 2, "width": 4}, {"epochs": (2, 4)}),
    "small": (
        {"images": 10, "epochs": 1, "width": 16},
        {"images": (10, 20), "epochs": (1, 4), "width": (8, 16), "batch": (5, 10)},
    ),
    "full": (
        {"images": 10, "epochs": 4, "width": 16},
        {"images": (10, 20, 50), "epochs": (1, 4, 8), "width": (8, 16, 32), "batch": (5, 10)},
    ),
}


def scaling(scale: Scale) -> Sequence[Experiment]:
    """SSIM against the number of images, the epochs, the width and the batch size: MLP, a small ResNet and VGG.

    Mini-batches are in the order of the records, which the attacker knows, while their labels are guessed.
    """
    deep, deep_axes = DEEP_NETS[scale]
    nets = {
        "MLP": (partial(_scaled_mlp, scale), *MLPS[scale]),
        "ResNet": (partial(_scaled_deep, scale, resnet), deep, deep_axes),
        "VGG": (partial(_scaled_deep, scale, vgg), deep, {"epochs": deep_axes["epochs"]}),
    }
    return [
        replace(
            build(**{**usual, axis: value}),
            label=f"{name}, {axis} {value}",
            point=Point(axis=axis, value=value, series=name, log=True),
        )
        for name, (build, usual, axes) in nets.items()
        for axis, values in axes.items()
        for value in values
    ]


def _scaled_mlp(scale: Scale, *, images: int, width: int, **training: int) -> Experiment:
    attack = simudy(scale, records=images, steps={"smoke": 20, "small": 200, "full": 500}[scale])
    victims = mlp_victims(scale, records=images, width=width, training=_in_batches(images, **training))
    return reconstruct(scale, "", victims, attack)


def _scaled_deep(
    scale: Scale, family: Callable[..., nn.Sequential], *, images: int, width: int, **training: int
) -> Experiment:
    net = replace(NETS["small"], side=None) if scale == "full" else NETS[scale]
    net = replace(net, family=family, width=width)
    attack = with_search(replace(DEEP, candidates=images), steps={"smoke": 5, "small": 150, "full": 500}[scale])
    victims = deep_victims(scale, images, training=_in_batches(images, **training), net=net)
    return reconstruct(scale, "", victims, attack)


def _in_batches(records: int, *, epochs: int, batch: int | None = None) -> Training:
    """The paper's training in batches of `batch` records; a batch of all of them is full batch."""
    return replace(TRAINING, epochs=epochs, batch_size=None if batch == records else batch, shuffled=False)
