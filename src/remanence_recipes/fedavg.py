"""Clients of federated averaging as they send: epochs of shuffled mini-batches, Adam, means over several clients.

remanence run fedavg.local_training       scale small, one CPU core: about ten minutes, most of them for Adam
expected      most records of a client that trained by SGD, some of one that trained by Adam; found falls with the
              number of clients whose updates are averaged, labels stay readable
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

from remanence.attacks import (
    FirstLayer,
    GradientMatching,
    SimuDy,
    SoftLabels,
    TotalVariation,
    infer_labels,
    with_search,
)
from remanence.bounds import sample
from remanence.data import load
from remanence.errors import BadInput
from remanence.experiments import Experiment, Measure, Measurement, Outcome, Scale, Trial
from remanence.experiments.checks import tuned_on_truth
from remanence.metrics import SSIM, Scores, evaluate
from remanence.metrics.exchangeability import FDR
from remanence.metrics.statistics import binomial_proportion
from remanence.models import mlp, torch_params
from remanence.progress import track
from remanence.releases import Case, Gradient, KnowsUpdate, LocalUpdate, Victim, gradient_at_initial, local_update
from remanence.seeds import derive_seed
from remanence.training import SGD, Adam, Training
from remanence.types import Data, Reconstruction
from remanence_recipes.curves import figure_along
from remanence_recipes.records import shuffled

ROUNDS: dict[Scale, int] = {"smoke": 1, "small": 3, "full": 10}
HIDDEN: dict[Scale, int] = {"smoke": 60, "small": 200, "full": 200}
RECORDS: dict[Scale, int] = {"smoke": 8, "small": 16, "full": 16}
STEPS: dict[Scale, int] = {"smoke": 40, "small": 600, "full": 2000}
PER_CLIENT = 8  # records, in `clients`
WIDE: dict[Scale, int] = {"smoke": 200, "small": 500, "full": 500}
HELD_OUT = 1000
NOISE = 256  # records of noise, with which labels are inferred
Attempt: TypeAlias = Callable[["Round", Victim, int], tuple[KnowsUpdate, Tensor | None]]  # None: the attack was refused


@final
@dataclass(frozen=True, kw_only=True)
class Round:
    """A round of federated averaging at fresh weights: how many records and clients, and how a client trains."""

    scale: Scale
    records: int
    training: Training
    hidden: int = 0  # neurons of an MLP; 0: Flower's quickstart CNN
    clients: int = 1

    def split(self, seed: int) -> tuple[Data, Data]:
        """The records of all clients, and others that are held out."""
        source = load("digits") if self.scale == "smoke" else load("cifar10", part="test")
        data = shuffled(source, derive_seed(seed, "records"))
        return data.take(slice(0, self.records)), data.take(slice(self.records, self.records + HELD_OUT))

    def client(self, private: Data, seed: int) -> Victim:
        """The clients with their records, before they train."""
        model: nn.Module = quickstart_cnn(private)
        if self.hidden:
            model = mlp(private.shape, private.num_classes, hidden=(self.hidden,), activation=nn.ReLU)
        initial = {name: p.to(private.x) for name, p in torch_params(model, seed=derive_seed(seed, "start")).items()}
        none = private.take(slice(0, 0))
        return Victim(model=model, training=self.training, initial=initial, final=initial, fixed=none, private=private)


def local_training(scale: Scale) -> Sequence[Experiment]:
    """A client that trained for five epochs on mini-batches of four, by SGD and Adam, simulated in another order."""
    trainings = {
        "SGD": Training(optimizer=SGD(lr=0.05), epochs=5, batch_size=4),
        "SGD with momentum": Training(optimizer=SGD(lr=0.01, momentum=0.9), epochs=5, batch_size=4),
        "Adam": Training(optimizer=Adam(lr=1e-3), epochs=5, batch_size=4),
    }
    about = (
        f"One hidden layer of {HIDDEN[scale]} neurons, {RECORDS[scale]} records, mini-batches of four in an order that "
        "is not sent; the server knows the recipe and the number of records. Labels are not known."
    )
    rounds = {
        name: Round(scale=scale, records=RECORDS[scale], training=training, hidden=HIDDEN[scale])
        for name, training in trainings.items()
    }
    return [_experiment(name, about, each, ROUNDS[scale], _simulated) for name, each in rounds.items()]


def clients(scale: Scale) -> Sequence[Experiment]:
    """Gradients of clients of eight records, of which the server sees the mean: found and labels by their number."""
    counts = {"smoke": (1, 2), "small": (1, 2, 5, 10), "full": (1, 2, 5, 10, 20)}[scale]
    training = Training(optimizer=SGD(lr=0.1), epochs=1)

    def measure(seed: int, device: torch.device) -> Outcome:
        found, labels, measures = [], [], list[Measure]()
        for count in track(counts, total=len(counts), label="numbers of clients"):
            each = Round(scale=scale, records=count * PER_CLIENT, training=training, hidden=WIDE[scale], clients=count)
            of_rounds = [_attacked(each, one, device, _exact) for one in _seeds(seed, ROUNDS[scale])]
            pair = tuple(_measures(of_rounds, f"{count} clients"))
            measures += pair
            found.append(pair[0])
            labels.append(pair[1])
        lines = {"records found": found, "labels": labels}
        chance = {"labels by chance": [each.chance or 0.0 for each in labels]}
        figure = figure_along("Means over clients", ("clients", "fraction"), lines, counts, chance, log_x=True)
        return Outcome(measures=tuple(measures), figures=(figure,))

    about = f"One hidden layer of {WIDE[scale]} neurons at fresh weights, {PER_CLIENT} records for each client."
    evaluations = (Measurement(measure=measure), _tuned)
    return [Experiment(label="found against clients", about=about, evaluations=evaluations)]


def convolutions(scale: Scale) -> Sequence[Experiment]:
    """One gradient of Flower's quickstart CNN at fresh weights: batches of 1, 4 and 16 by gradient matching."""
    batches = {"smoke": {1: 1}, "small": {1: 10, 4: 5, 16: 3}, "full": {1: 50, 4: 25, 16: 10}}[scale]
    about = "Two convolutions with max pooling and three linear layers; labels are not known."
    training = Training(optimizer=SGD(lr=0.1), epochs=1)
    return [
        _experiment(f"batches of {n}", about, Round(scale=scale, records=n, training=training), count, _matched)
        for n, count in batches.items()
    ]


def quickstart_cnn(data: Data) -> nn.Module:
    """The network of Flower's quickstart for PyTorch, LeNet's layers for colour images; digits have smaller kernels."""
    kernel, side = (5, 5) if data.shape[-1] == 32 else (3, 2)
    pad = 0 if kernel == 5 else 1
    with torch.device("meta"):
        return nn.Sequential(
            *(nn.Conv2d(data.shape[0], 6, kernel, padding=pad), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, kernel, padding=pad), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(16 * side * side, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
            nn.Linear(84, data.num_classes),
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Attacked:
    """What was found of one round's records, and how many labels were inferred rightly, with chance."""

    scores: Scores | None  # None: the attack was refused
    labels: int
    by_chance: float
    pictures: dict[str, Tensor]
    records: int


def _attacked(each: Round, seed: int, device: torch.device, attack: Attempt) -> Attacked:
    private, held_out = (part.to(device) for part in each.split(seed))
    release, x = attack(each, each.client(private, seed), seed)
    inferred = _inferred(release, seed)
    scores, pictures = None, dict[str, Tensor]()
    if x is not None:
        scores = evaluate(Reconstruction(x=x), private, unrelated=held_out, metrics=(SSIM,), seed=seed)
        pictures = {"truth": private.x[:10], "reconstructed": x[scores.index[:10]]}
    others = held_out.y[: len(private)]
    return Attacked(
        scores=scores,
        labels=_in_common(inferred, private.y, private.num_classes),
        by_chance=_in_common(others, private.y, private.num_classes),
        pictures=pictures,
        records=len(private),
    )


def _simulated(each: Round, client: Victim, seed: int) -> tuple[KnowsUpdate, Tensor | None]:
    """By SimuDy, in an order of mini-batches of its own."""
    case: Case[LocalUpdate] = local_update(client, seed=seed)
    shown = case.release.fine_tuned(client.private.num_classes)
    attack = with_search(SimuDy(candidates=each.records, labels=SoftLabels()), steps=STEPS[each.scale])
    return case.release, attack.run(shown, seed=derive_seed(seed, "attack")).x


def _exact(each: Round, client: Victim, seed: int) -> tuple[KnowsUpdate, Tensor | None]:
    """In closed form. The mean of the gradients of clients of equal sizes is the gradient of all their records."""
    case: Case[Gradient] = gradient_at_initial(client)
    try:
        return case.release, FirstLayer().run(case.release, seed=seed).x
    except BadInput:  # no neuron is active on one record alone
        return case.release, None


def _matched(each: Round, client: Victim, seed: int) -> tuple[KnowsUpdate, Tensor | None]:
    """By gradient matching, with images at several scales."""
    case: Case[Gradient] = gradient_at_initial(client)
    attack = GradientMatching(prior=TotalVariation(weight=0.01))
    steps = {"smoke": 20, "small": 1000, "full": 4000}[each.scale]
    scales = 1 if each.scale == "smoke" else 4
    attack = with_search(attack, steps=steps, scales=scales, optimizer=Adam(lr=0.03))
    return case.release, attack.run(case.release, seed=derive_seed(seed, "attack")).x


def _inferred(release: KnowsUpdate, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(derive_seed(seed, "noise"))
    return infer_labels(release, sample(NOISE, *release.shape, bounds=release.bounds, generator=generator))


def _in_common(one: Tensor, other: Tensor, classes: int) -> int:
    """The number of labels that two batches share, counted with their repetitions."""
    counts = [torch.bincount(labels.cpu(), minlength=classes) for labels in (one, other)]
    return int(torch.minimum(*counts).sum())


def _experiment(label: str, about: str, each: Round, rounds: int, attack: Attempt) -> Experiment:
    def measure(seed: int, device: torch.device) -> Outcome:
        seeds = _seeds(seed, rounds)
        of_rounds = [_attacked(each, one, device, attack) for one in track(seeds, total=rounds, label="clients")]
        return Outcome(measures=tuple(_measures(of_rounds, "")), pictures=of_rounds[0].pictures)

    return Experiment(label=label, about=about, evaluations=(Measurement(measure=measure), _tuned))


def _tuned(trial: Trial) -> Outcome:
    caveat = tuned_on_truth("Learning rates, priors and the defaults of attacks were chosen on true images.")
    return Outcome(caveats=(caveat,))


def _seeds(seed: int, count: int) -> list[int]:
    return [derive_seed(seed, "client", index) for index in range(count)]


def _measures(of_rounds: Sequence[Attacked], suffix: str) -> Iterator[Measure]:
    """The fractions of records found and of labels inferred."""
    records = sum(each.records for each in of_rounds)
    counts = [0 if each.scores is None else int(each.scores.found.sum()) for each in of_rounds]
    found, each_of = binomial_proportion(sum(counts), records), of_rounds[0].records
    yield Measure.from_interval(
        ", ".join(filter(None, ("share found", suffix))),
        found,
        chance=FDR * found.value,
        meaning=f"{', '.join(map(str, counts))} of {each_of} records, at a false-discovery rate of {FDR:.0%}",
    )
    yield Measure.from_interval(
        ", ".join(filter(None, ("labels inferred", suffix))),
        binomial_proportion(sum(each.labels for each in of_rounds), records),
        chance=sum(each.by_chance for each in of_rounds) / records,
        meaning="fraction of the labels, counted with repetitions; chance: labels of other records",
    )
