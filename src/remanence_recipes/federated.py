"""What an honest but curious server reconstructs from the updates of federated clients: studies of our own.

    remanence run federated.first_layer       scale small, one CPU core: a few minutes, nearly all of them scoring

The weights are ordinary ones, random or trained, and not of the server's choice; `from_the_tensor` is the exception.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks import L2, LBFGS, Attack, FirstLayer, GradientMatching, Search, Stein, infer_labels, with_search
from remanence.data import Split, load, split
from remanence.engine import train
from remanence.experiments import (
    Claim,
    Experiment,
    Figure,
    Measure,
    Outcome,
    Point,
    Reconstructed,
    Scale,
    Trial,
    Victims,
)
from remanence.metrics import MSE, PSNR, SSIM, Interval, hungarian
from remanence.metrics.statistics import bootstrap_mean
from remanence.models import apply, cnn, initial_params, mlp, resnet, resnet18
from remanence.progress import track
from remanence.releases import Case, Gradient, Victim, gradient_at_final, gradient_at_initial, local_update
from remanence.seeds import derive_seed
from remanence.training import SGD, Training
from remanence.types import Params, Reconstruction
from remanence_recipes import exact_batches as exact
from remanence_recipes.curves import measured, measures_along, series_along
from remanence_recipes.records import repeated
from remanence_recipes.wang2023.setting import SquareAndCube, gradient_of

RECORDS = 4  # of a batch in `architectures` and `local_steps`
NEWTON = GradientMatching(distance=L2(), prior=None, search=Search(optimizer=LBFGS(), steps=1000))
SCORED = (Reconstructed(metrics=(SSIM, MSE, PSNR)),)


def architectures(scale: Scale) -> Sequence[Experiment]:
    """Gradient matching on an MLP, a CNN and a ResNet with frozen BatchNorm, by Adam and by L-BFGS."""
    steps = {"smoke": 8, "small": 300, "full": 2000}[scale]
    attacks = {"L-BFGS": with_search(NEWTON, steps=steps)}
    if scale != "smoke":
        attacks["Adam"] = with_search(GradientMatching(), steps=steps, restarts=1)
    return [
        Experiment(
            label=f"{name}, {optimizer}",
            victims=victims,
            attack=attack,
            tuned_on_truth=optimizer == "Adam",  # its learning rate and prior: on digits
            point=Point(axis="architecture", value=name, series=optimizer),
            evaluations=SCORED,
        )
        for name, victims in _clients(scale).items()
        for optimizer, attack in attacks.items()
    ]


def local_steps(scale: Scale) -> Sequence[Experiment]:
    """Federated averaging: updates of several local steps, simulated by the attack, or taken for one gradient."""
    steps, restarts = {"smoke": (50, 1), "small": (150, 2), "full": (400, 2)}[scale]
    clients = _clients(scale)["MLP"]
    return [
        Experiment(
            label=f"{count} local steps, {name}",
            victims=replace(clients, training=Training(optimizer=SGD(lr=0.1), epochs=count), reveal=reveal),
            attack=with_search(NEWTON, steps=steps, restarts=restarts),
            tuned_on_truth=True,  # the two restarts, and the exchange of labels: after a look at batches of seed 0
            point=Point(axis="local steps", value=count, series=name, log=True),
            evaluations=SCORED,
        )
        for count in {"smoke": (3,), "small": (1, 2, 5, 10), "full": (1, 2, 5, 10, 20, 50)}[scale]
        for name, reveal in (("simulated", local_update), ("taken for one gradient", _as_gradient))
    ]


def _clients(scale: Scale) -> dict[str, Victims]:
    """Clients that send one gradient at random weights, by their network: at full scale ResNet-18, below it a residual
    network of three blocks."""
    hidden, width = (64, 2) if scale == "smoke" else (256, 16)
    deep = resnet18 if scale == "full" else partial(resnet, blocks=(1, 1, 1), width=width)
    makers: dict[str, Callable[..., nn.Module]] = {"MLP": partial(mlp, hidden=(hidden,)), "CNN": cnn, "ResNet": deep}

    def clients(make: Callable[..., nn.Module]) -> Victims:
        return Victims(
            split=partial(_batches, scale),
            model=lambda data: make(data.shape, data.num_classes),
            training=Training(epochs=0),
            reveal=gradient_at_initial,
            per_victim=RECORDS,
        )

    return {name: clients(make) for name, make in makers.items()}


def _as_gradient(victim: Victim) -> Case[Gradient]:
    """The update of several steps, revealed to a server that takes it for one gradient."""
    case = local_update(victim)
    names = ("model", "at", "batch_size", "shape", "loss")
    known = {name: getattr(case.release, name) for name in names}
    return Case(release=Gradient(**known, gradient=case.release.sent, labels=None), truth=case.truth)


def _batches(scale: Scale, seed: int) -> Split:
    data = load("cifar10", part="test") if scale == "full" else repeated(load("digits"), 12)
    private = {"smoke": 1, "small": 2, "full": 25}[scale] * RECORDS
    return split(data, private=private, fixed=0, public=0, test=1000, seed=seed)


def first_layer(scale: Scale) -> Sequence[Experiment]:
    """Batches in closed form from the first layer of a ReLU net: larger and larger ones, fresh and trained weights."""
    sizes = {"smoke": (4, 16), "small": (8, 64, 128), "full": (8, 32, 64, 128, 256)}[scale]
    width = {"smoke": 256, "small": 500, "full": 2000}[scale]
    return [
        Experiment(
            label=f"{name}, batches of {records}",
            victims=Victims(
                split=partial(_first_layer_split, scale, records),
                model=lambda data: mlp(data.shape, data.num_classes, hidden=(width,), activation=nn.ReLU),
                training=Training(epochs=epochs, optimizer=SGD(lr=0.1, momentum=0.9)),
                reveal=gradient_at_final,
                per_victim=records,
            ),
            attack=FirstLayer(),
            point=Point(axis="records of a batch", value=records, series=name, log=True),
            evaluations=SCORED,
        )
        for name, epochs in (("fresh weights", 0), ("trained weights", 5 if scale == "smoke" else 10))
        for records in sizes
    ]


def _first_layer_split(scale: Scale, records: int, seed: int) -> Split:
    data = load("digits") if scale == "smoke" else load("cifar10", part="test")
    private = max(records, {"smoke": 16, "small": 64, "full": 512}[scale])
    return split(data, private=private, fixed=500, public=0, test=1000, seed=seed)


def exact_batches(scale: Scale) -> Sequence[Experiment]:
    """Exact records by FirstLayer and by SPEAR from the same gradients: batch, weights, classes, precision, noise."""
    return exact.head_to_head(scale)


ESTIMATE = Stein(refine=False, norm=1.0)
SHARPENED = replace(NEWTON, search=replace(NEWTON.search, steps=100), start=ESTIMATE)
STARTS = ("estimate", "sharpened", "from random images")
MEASURED = {2: 0.015, 4: 0.051, 8: 0.212}  # rms of the exact span alone, by an independent implementation


@final
@dataclass(frozen=True, eq=False)
class RandomImages:
    """A start that knows no more of the records than their labels and their norm, which is one."""

    labels: Tensor

    def run(self, release: Gradient, *, seed: int) -> Reconstruction:
        x = torch.rand(len(self.labels), *release.shape, generator=torch.Generator().manual_seed(seed))
        return Reconstruction(x=_unit_norm(x).to(self.labels.device), y=self.labels)


def from_the_tensor(scale: Scale) -> Sequence[Experiment]:
    """Gradient matching from the estimate of Stein's tensor and from random images: MNIST, weights of the server."""
    return [
        measured(
            f"{records} images",
            "Images of norm one from one gradient of a wide net: the estimate, sharpened, and matching without it but "
            "with the labels.",
            partial(_from_the_tensor, scale, records),
            claims=tuple(
                Claim(quantity=f"rms error, {name}", higher_is_better=False, target=target, where="ours")
                for name, target in (("estimate", MEASURED[records]), ("sharpened", min(0.05, MEASURED[records])))
                if scale != "smoke"
            ),
        )
        for records in ((8,) if scale == "smoke" else MEASURED)
    ]


def _from_the_tensor(scale: Scale, records: int, seed: int, device: torch.device) -> Outcome:
    rows, batches = {"smoke": (4000, 1), "small": (5000, 2), "full": (5000, 10)}[scale]
    data = load("digits" if scale == "smoke" else "mnist")
    images = split(data, private=batches * records, fixed=0, public=0, test=batches * records, seed=seed)
    errors: dict[str, list[float]] = {name: [] for name in (*STARTS, "chance")}
    pictures: dict[str, Tensor] = {}
    for i in track(range(batches), total=batches, label="batches"):
        batch, others = (part.take(slice(i * records, (i + 1) * records)) for part in (images.private, images.test))
        truth, labels = _unit_norm(batch.x), batch.y.to(device) % 2
        release = gradient_of(
            truth.to(device),
            labels,
            activation=SquareAndCube,
            rows=rows,
            seed=derive_seed(seed, "weights", i),
        )
        attacks: tuple[Attack[Gradient], ...] = ESTIMATE, SHARPENED, replace(SHARPENED, start=RandomImages(labels))
        found = {
            name: attack.run(release, seed=derive_seed(seed, "attack", i)).x.cpu()
            for name, attack in zip(STARTS, attacks, strict=True)
        }
        for name, x in {**found, "chance": _unit_norm(others.x)}.items():
            squared = (x[hungarian(x, truth)] - truth).flatten(1).square().sum(1)
            errors[name].append(float(squared.mean().sqrt()))
        pictures = pictures or {name: _brightened(x) for name, x in {"truth": truth, **found}.items()}
    measures = tuple(
        Measure.from_interval(
            f"rms error, {name}",
            bootstrap_mean(torch.tensor(errors[name]), seed=derive_seed(seed, "interval", name)),
            meaning="root of the mean squared distance; chance is that of other images",
            chance=sum(errors["chance"]) / batches,
        )
        for name in STARTS
    )
    return Outcome(measures=measures, pictures=pictures)


def _unit_norm(x: Tensor) -> Tensor:
    norms: Tensor = x.double().flatten(1).norm(dim=1)
    return x.double() / norms[:, None, None, None]


def _brightened(x: Tensor) -> Tensor:
    return x / x.amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-9)


SIZES = (1, 2, 4, 8, 16, 32)
GUESS = "guessed by frequency"


def labels(scale: Scale) -> Sequence[Experiment]:
    """Label inference: the fraction of a batch's labels that is right, repeated ones included, and that of guesses."""
    about = (
        "The labels of a batch from the gradient of the last bias. The mean softmax is that of noise or of public "
        "records; the net is a 256-neuron MLP."
    )
    data, batches = "digits" if scale == "smoke" else "mnist", {"smoke": 2, "small": 20, "full": 100}[scale]

    def parts(seed: int) -> Split:
        return split(load(data), private=500, fixed=500, public=300, test=1, seed=seed)

    def victims(epochs: int) -> Victims:
        return Victims(
            split=parts,
            model=lambda data: mlp(data.shape, data.num_classes, hidden=(256,)),
            training=Training(epochs=0),
            initial=partial(trained_on_fixed, Training(epochs=epochs), parts),
            reveal=gradient_at_initial,
        )

    return [
        Experiment(
            label=f"after {epochs} epochs",
            about=about,
            victims=victims(epochs),
            evaluations=(partial(_labels, batches),),
        )
        for epochs in ((0, 5) if scale == "smoke" else (0, 5, 30, 100))
    ]


def _labels(batches: int, trial: Trial) -> Outcome:
    """Evaluation: the fraction of labels that each inference gets right, over batches of several sizes."""
    victim, public, seed = trial.victims.trained[0], trial.victims.split.public, trial.seed
    noise = torch.rand(256, *public.shape, generator=torch.Generator().manual_seed(derive_seed(seed, "noise")))
    guesses = torch.Generator().manual_seed(derive_seed(seed, "guesses"))
    inferences: dict[str, Callable[[Gradient], Tensor]] = {
        "by noise": lambda release: infer_labels(release, noise),
        "by public records": lambda release: infer_labels(release, public.x),
        GUESS: lambda release: public.y.cpu()[
            torch.randint(len(public), (release.batch_size or 0,), generator=guesses)
        ],
    }

    def accuracy(name: str, size: int) -> Interval:
        """The mean fraction of right labels over batches of `size` records."""
        fractions, generator = [], torch.Generator().manual_seed(derive_seed(seed, "batches", size))
        for _ in range(batches):
            batch = victim.private.take(torch.randperm(len(victim.private), generator=generator)[:size])
            release = gradient_at_initial(replace(victim, private=batch)).release
            right = Counter(batch.y.tolist()) & Counter(inferences[name](release).tolist())
            fractions.append(right.total() / size)
        return bootstrap_mean(torch.tensor(fractions), seed=derive_seed(seed, name, size), resamples=500)

    found = {name: [accuracy(name, size) for size in SIZES] for name in inferences}
    guessed = found.pop(GUESS)
    fitted = apply(victim.model, victim.final, public.x).argmax(1) == public.y
    measures = measures_along(
        {f"labels right {name}": estimates for name, estimates in found.items()},
        [f"batches of {size}" for size in SIZES],
        meaning="mean fraction of a batch's labels; chance draws them by their frequency",
        chance=[each.value for each in guessed],
    )
    fit = Measure(
        name="accuracy of the net",
        value=float(fitted.double().mean()),
        chance=float(public.y.bincount().max()) / len(public),
        meaning="on public records",
    )
    *ours, chance = series_along({**found, GUESS: guessed}, tuple(map(float, SIZES)))
    figure = Figure(
        title="Labels read right",
        x_label="records of a batch",
        y_label="fraction of the labels",
        series=(*ours, replace(chance, role="chance")),
        log_x=True,
    )
    return Outcome(measures=(*measures, fit), figures=(figure,))


def trained_on_fixed(training: Training, split: Callable[[int], Split], model: nn.Module, seed: int) -> Params:
    """Weights trained on the fixed records of `split`: those of the clients are new to the net."""
    fixed = split(seed).fixed
    initial = {name: p.to(fixed.x) for name, p in initial_params(model, seed=seed).items()}
    return train(training, model, initial, fixed, seed=seed)
