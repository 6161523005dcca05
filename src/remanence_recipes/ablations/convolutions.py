"""Convolutional nets, weights alone: which layers the records explain, and what of them can be reconstructed.

remanence run ablations.convolutions --scale full --device cuda      one GPU: meant for two minutes
expected      images in part, blurred, by ConvStationarity from nets with fully connected layers; none from a net with
              one linear layer after global average pooling; kernels that other images explain as well as the records do
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import final

import torch
from torch import nn

from remanence.attacks import ConvStationarity, ImagePrior, Powers, Search, Stationarity, TotalVariation
from remanence.bounds import sample_about_centre
from remanence.data import load
from remanence.data.splits import distinct
from remanence.errors import BadInput
from remanence.experiments import Experiment, Measure, Measurement, Outcome, Scale, Trial
from remanence.experiments.checks import tuned_on_truth
from remanence.metrics import COSINE, SSIM, Scores, evaluate
from remanence.models import embedded, torch_params
from remanence.releases import Victim, WeightsOnly, check_fit, split_release, train_victim, weights_only
from remanence.search import balanced, minimise
from remanence.seeds import derive_seed
from remanence.training import SGD, Adam, Training
from remanence.types import Data, Reconstruction
from remanence_recipes.records import first_of_each_class, resized, shuffled
from remanence_recipes.weights_alone.evaluation import ROW, accuracy_of, found
from remanence_recipes.weights_alone.kernels import ExplainedKernels, layer_names, outside_span, unexplained_by_layer
from remanence_recipes.weights_alone.linear_heads import combinations

_PIXEL_STD = 0.25  # for which the settings of Stationarity were chosen


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """A CNN of two 3x3 convolutions, how it is trained on how many images, and how long attacks on it search."""

    scale: Scale
    per_class: int
    channels: tuple[int, int]
    stride: int  # of both convolutions
    hidden: tuple[int, ...]  # fully connected layers; none: global average pooling before the last one
    epochs: int
    decay: float
    lr: float
    steps: int
    kernel_steps: int = 0  # of the search for images that explain the convolutions alone; 0: none
    restarts: int = 4
    batch_size: int | None = None
    side: int | None = None  # to which images are resized
    variation: float = 0.0  # weight of the total variation

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.scale == "smoke" else torch.float32

    def images(self, seed: int, device: torch.device) -> tuple[Data, Data]:
        """Private images, as many of each class, and others that are held out."""
        data = distinct(load("digits", part="all") if self.scale == "smoke" else load("cifar10", part="train"))
        private, others = first_of_each_class(shuffled(data, seed), self.per_class)
        held_out = others.take(slice(0, 400 if self.scale == "smoke" else 5000))
        small = [part if self.side is None else resized(part, self.side) for part in (private, held_out)]
        return small[0].to(device, self.dtype), small[1].to(device, self.dtype)

    def victim(self, private: Data, seed: int) -> Victim:
        """SGD with momentum and weight decay. The learning rate falls to a five-hundredth: features are long vectors,
        and a larger one leaves neurons jumping over the boundary of their ReLU."""
        falls = ((0.4, 0.3), (0.6, 0.1), (0.75, 0.02), (0.875, 0.002))
        training = Training(
            optimizer=SGD(lr=self.lr, momentum=0.9),
            epochs=self.epochs,
            batch_size=self.batch_size,
            weight_decay=self.decay,
            lr_schedule=tuple((int(self.epochs * part), factor) for part, factor in falls),
        )
        model = build(private.shape, private.num_classes, self.channels, self.stride, self.hidden)
        sampled = torch_params(model, seed=derive_seed(seed, "initial"))
        initial = {name: p.to(private.x) for name, p in sampled.items()}
        none = private.take(slice(0, 0))
        victim = train_victim(model, training, initial, none, private, seed=derive_seed(seed, "training"))
        check_fit(victim)
        return victim

    def search(self, steps: int, lr: float) -> Search:
        return Search(optimizer=Adam(lr=lr, eps=1e-20), steps=steps, restarts=self.restarts)


def build(
    shape: Sequence[int], num_classes: int, channels: tuple[int, int], stride: int, hidden: Sequence[int]
) -> nn.Sequential:
    """Two convolutions with ReLU, then fully connected layers or, where `hidden` is empty, the mean over the image and
    one linear layer."""
    sides = [(side + stride**2 - 1) // stride**2 for side in shape[1:]]
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Conv2d(shape[0], channels[0], 3, stride=stride, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(*channels, 3, stride=stride, padding=1), nn.ReLU()]
        layers += [nn.Flatten()] if hidden else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        fan_in = channels[1] * (prod(sides) if hidden else 1)
        for fan_out in hidden:
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
            fan_in = fan_out
        return nn.Sequential(*layers, nn.Linear(fan_in, num_classes))


def settings(scale: Scale) -> dict[str, Setting]:
    """The victims by what is special of them."""
    if scale == "smoke":
        few = Setting(
            scale=scale,
            per_class=1,
            channels=(4, 8),
            stride=1,
            hidden=(80,),
            epochs=3000,
            decay=0.01,
            lr=0.05,
            steps=1500,
            kernel_steps=500,
        )
    elif scale == "small":
        few = Setting(
            scale=scale,
            per_class=1,
            channels=(12, 24),
            stride=2,
            hidden=(200,),
            epochs=6000,
            decay=0.005,
            lr=0.05,
            steps=3000,
            kernel_steps=500,
            side=16,
            variation=1.0,
        )
    else:
        few = Setting(
            scale=scale,
            per_class=5,
            channels=(16, 32),
            stride=2,
            hidden=(500,),
            epochs=6000,
            decay=0.005,
            lr=0.05,
            steps=3000,
            kernel_steps=500,
            variation=1.0,
        )
    count = 10 * few.per_class
    batches = replace(few, batch_size=count // 2, epochs=few.epochs // 2, kernel_steps=0)
    # with all of the decay a deeper net may never leave its initial loss
    deeper = replace(few, hidden=few.hidden * 2, decay=few.decay / 2, kernel_steps=0)
    channels = (few.channels[0], max(few.channels[1], 32))
    pooled = replace(few, per_class=max(few.per_class, 2), hidden=(), channels=channels, kernel_steps=0)
    return {
        f"{count} images": few,
        f"{count} images, mini-batches": batches,
        f"{count} images, three fully connected layers": deeper,
        f"{10 * pooled.per_class} images, global average pooling": pooled,
    }


def convolutions(scale: Scale) -> Sequence[Experiment]:
    """CNNs trained with weight decay: which layers the records explain, and images from the weights alone."""
    return [_experiment(label, setting) for label, setting in settings(scale).items()]


def _experiment(label: str, setting: Setting) -> Experiment:
    head = f"{len(setting.hidden) + 1} fully connected layers" if setting.hidden else "one linear layer on means"
    about = (
        f"Two convolutions and {head}, biases everywhere, trained with weight decay. The weights alone are released; "
        "the number of images and that classes are equally frequent are known."
    )
    return Experiment(label=label, about=about, evaluations=(Measurement(measure=partial(_measure, setting)), _tuned))


def _measure(setting: Setting, seed: int, device: torch.device) -> Outcome:
    private, held_out = setting.images(seed, device)
    victim = setting.victim(private, seed)
    measures = [accuracy_of(victim, held_out), *_conditions(victim, held_out, private)]
    outcome = (_attacked if setting.hidden else _pooled)(setting, victim, held_out, seed)
    if setting.kernel_steps:
        measures += _from_kernels(setting, victim, held_out, seed)
    return replace(outcome, measures=(*outcome.measures, *measures))


def _conditions(victim: Victim, held_out: Data, private: Data) -> Iterator[Measure]:
    """What the true records, and as many held-out ones, leave unexplained of each layer."""
    others = first_of_each_class(held_out, len(private) // private.num_classes)[0]
    layers = layer_names(victim.model, private.shape)
    truth, chance = (
        unexplained_by_layer(victim.model, victim.final, layers, victim.training.loss, part.x, part.y)
        for part in (private, others)
    )
    kinds = {path: "convolution" if victim.final[names[0]].ndim == 4 else "linear" for path, names in layers.items()}
    for position, (path, kind) in enumerate(kinds.items()):
        yield Measure(
            name=f"unexplained of layer {position + 1}, {kind}, at the truth",
            value=float(truth[path].detach()),
            chance=float(chance[path].detach()),
            meaning="fraction of its squared weights that the gradient of the loss leaves, times the best factor; "
            "ReLU's boundaries count as 0 or 1; chance: as many held-out images",
        )
    parts = split_release(weights_only(victim).release)
    first = next(p for p in parts.head.final.values() if p.ndim == 2)
    yield Measure(
        name="outside the span of the features, first linear layer",
        value=outside_span(first, parts.backbone.embed(private.x)),
        chance=outside_span(first, parts.backbone.embed(others.x)),
        meaning="fraction of its squared weights; whatever ReLU's boundaries are; chance: as many held-out images",
    )


def _attacked(setting: Setting, victim: Victim, held_out: Data, seed: int) -> Outcome:
    """Images by ConvStationarity, and features by Stationarity on the head alone."""
    release, private = weights_only(victim).release, victim.private
    attack = ConvStationarity(
        candidates=len(private),
        search=setting.search(setting.steps, 0.03),
        prior=TotalVariation(weight=setting.variation),
    )
    reconstruction = attack.run(release, seed=seed)
    scores = evaluate(reconstruction, private, unrelated=held_out, metrics=(SSIM,), seed=seed)
    parts = split_release(release)
    features, others = embedded(parts.backbone, private), embedded(parts.backbone, held_out)
    again = evaluate(
        Reconstruction(x=parts.backbone.embed(reconstruction.x)),
        features,
        unrelated=others,
        metrics=(COSINE,),
        seed=seed,
    )
    unit = float(others.x.std(0).square().mean().sqrt()) / _PIXEL_STD  # more than an attacker of the head knows
    alone = Stationarity(
        candidates=len(private),
        search=setting.search(setting.steps, 0.01 * unit),
        init_std=0.3 * unit,
        whitening=Powers(first=0.3),
        prior=ImagePrior(),
    ).run(parts.head, seed=seed)
    baseline = evaluate(alone, features, unrelated=others, metrics=(COSINE,), seed=seed)
    sharp = replace(attack, beta=(attack.beta[1],) * 2)
    at_truth = minimise(sharp.objective(release, private.x[None]), setting.search(setting.steps // 2, 0.001))
    return Outcome(
        measures=(
            *_of_images("", scores),
            *_of_features("by ConvStationarity", again),
            *_of_features("by Stationarity on the head alone", baseline),
            Measure(
                name="objective of ConvStationarity",
                value=reconstruction.objective,
                meaning=f"of the best restart; a search from the true images ends at {float(at_truth.value[0]):.3g}",
            ),
        ),
        pictures={"truth": private.x[:ROW], "ConvStationarity": scores.matched(reconstruction.x)[:ROW]},
    )


def _of_images(name: str, scores: Scores) -> Iterator[Measure]:
    yield found(f"share of images found{name}", scores)
    yield Measure.from_interval(
        f"mean SSIM{name}",
        scores.means[SSIM.name],
        chance=float(scores.nulls["unrelated"].values[SSIM.name].mean()),
        meaning="of the images with the private ones; chance: as many unrelated images",
    )


def _of_features(name: str, scores: Scores) -> Iterator[Measure]:
    yield found(f"share of features found, {name}", scores)
    yield Measure.from_interval(
        f"mean cosine of features, {name}",
        scores.means[COSINE.name],
        chance=float(scores.nulls["unrelated"].values[COSINE.name].mean()),
        meaning="with those of the private images; chance: features of as many unrelated images",
    )


def _pooled(setting: Setting, victim: Victim, held_out: Data, seed: int) -> Outcome:
    """One linear layer on the means of channels: as many combinations of records as there are classes, no attack."""
    release, n = weights_only(victim).release, len(victim.private)
    weight = next(p for p in split_release(release).head.final.values() if p.ndim == 2)
    counted = combinations(weight, n, layer="linear layer")
    rank, *others = counted.measures
    return replace(counted, measures=(replace(rank, meaning=f"{rank.meaning}. {_refusal(release, n, seed)}"), *others))


def _refusal(release: WeightsOnly, n: int, seed: int) -> str:
    try:
        ConvStationarity(candidates=n).run(release, seed=seed)
    except BadInput as refusal:
        return str(refusal)
    raise AssertionError


def _from_kernels(setting: Setting, victim: Victim, held_out: Data, seed: int) -> Iterator[Measure]:
    """Images that explain the convolutions alone, from random ones."""
    release, private = weights_only(victim).release, victim.private
    layers = {
        path: names
        for path, names in layer_names(victim.model, private.shape).items()
        if victim.final[names[0]].ndim == 4
    }
    shape, generator = (2, *private.x.shape), torch.Generator().manual_seed(derive_seed(seed, "kernels"))
    problem = ExplainedKernels(
        release=release,
        layers=layers,
        loss=victim.training.loss,
        labels=balanced(len(private), private.num_classes).to(private.x.device),
        initial=sample_about_centre(*shape, bounds=release.bounds, std=0.3, generator=generator).to(private.x),
    )
    solution = minimise(problem, replace(setting.search(setting.kernel_steps, 0.02), restarts=2), label="kernels")
    x = solution.best()[0]["x"]
    scores = evaluate(Reconstruction(x=x), private, unrelated=held_out, metrics=(SSIM,), seed=seed)
    numbers = sum(victim.final[name].numel() for names in layers.values() for name in names)
    yield Measure(
        name="unexplained of the convolutions, by a search over images",
        value=float(solution.value.min()),
        chance=float(problem.value(problem.initial[0]).detach()),
        meaning=f"mean over them; the true images leave {float(problem.value(private.x).detach()):.2g}; chance: random "
        "images. Where it is as low, other images explain the kernels as well",
    )
    yield Measure(
        name="numbers in kernels for each unknown pixel",
        value=numbers / private.x.numel(),
        meaning="below one images are not determined",
    )
    yield from _of_images(", from the convolutions alone", scores)


def _tuned(trial: Trial) -> Outcome:
    caveat = tuned_on_truth(
        "The settings of ConvStationarity, and how long and at which learning rates victims are trained, were chosen "
        "by looking at true digits of seeds 0 to 2 and CIFAR-10 images of seed 1: quote another seed."
    )
    return Outcome(caveats=(caveat,))
