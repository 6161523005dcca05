"""Rounds of federated averaging at fresh weights: clients, an attack on what they send, and what it found."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

from remanence.attacks import infer_labels
from remanence.bounds import sample
from remanence.data import load
from remanence.experiments import Experiment, Measure, Measurement, Outcome, Scale, Trial
from remanence.experiments.checks import tuned_on_truth
from remanence.metrics import SSIM, Scores, evaluate
from remanence.metrics.exchangeability import FDR
from remanence.metrics.statistics import bootstrap_mean, clustered_proportion
from remanence.models import torch_params
from remanence.progress import track
from remanence.releases import KnowsUpdate, Victim
from remanence.seeds import derive_seed
from remanence.training import Training
from remanence.types import Data, Params, Reconstruction
from remanence_recipes.records import shuffled

HELD_OUT = 1000
NOISE = 256  # records of noise, with which labels are inferred
Attempt: TypeAlias = Callable[["Round", Victim, int], tuple[KnowsUpdate, Tensor | None]]  # None: the attack was refused


def torch_weights(model: nn.Module, seed: int) -> Params:
    """Fresh weights as torch initialises them."""
    return torch_params(model, seed=seed)


@final
@dataclass(frozen=True, kw_only=True)
class Round:
    """A round of federated averaging at fresh weights: how many records and clients, and how a client trains."""

    scale: Scale
    records: int
    training: Training
    network: Callable[[Data], nn.Module]
    weights: Callable[[nn.Module, int], Params] = torch_weights  # the server's
    clients: int = 1

    def split(self, seed: int) -> tuple[Data, Data]:
        """The records of all clients, and others that are held out."""
        source = load("digits") if self.scale == "smoke" else load("cifar10", part="test")
        data = shuffled(source, derive_seed(seed, "records"))
        return data.take(slice(0, self.records)), data.take(slice(self.records, self.records + HELD_OUT))

    def client(self, private: Data, seed: int) -> Victim:
        """The clients with their records, before they train."""
        model, none = self.network(private).eval(), private.take(slice(0, 0))
        initial = {name: p.to(private.x) for name, p in self.weights(model, derive_seed(seed, "start")).items()}
        return Victim(model=model, training=self.training, initial=initial, final=initial, fixed=none, private=private)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Attacked:
    """What was found of one round's records, and how many labels were inferred rightly, with chance."""

    scores: Scores | None  # None: the attack was refused
    labels: int
    by_chance: float
    pictures: dict[str, Tensor]
    records: int


def attacked(each: Round, seed: int, device: torch.device, attack: Attempt) -> Attacked:
    """What `attack` finds of one round."""
    private, held_out = (part.to(device) for part in each.split(seed))
    release, x = attack(each, each.client(private, seed), seed)
    inferred = _inferred(release, seed)
    scores, pictures = None, dict[str, Tensor]()
    if x is not None:
        scores = evaluate(Reconstruction(x=x), private, unrelated=held_out, metrics=(SSIM,), seed=seed)
        pictures = {"truth": private.x[:10], "reconstructed": scores.matched(x)[:10]}
    others = held_out.y[: len(private)]
    return Attacked(
        scores=scores,
        labels=_in_common(inferred, private.y, private.num_classes),
        by_chance=_in_common(others, private.y, private.num_classes),
        pictures=pictures,
        records=len(private),
    )


def _inferred(release: KnowsUpdate, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(derive_seed(seed, "noise"))
    return infer_labels(release, sample(NOISE, *release.shape, bounds=release.bounds, generator=generator))


def _in_common(one: Tensor, other: Tensor, classes: int) -> int:
    """The number of labels that two batches share, counted with their repetitions."""
    counts = [torch.bincount(labels.cpu(), minlength=classes) for labels in (one, other)]
    return int(torch.minimum(*counts).sum())


def experiment(label: str, about: str, each: Round, rounds: int, attack: Attempt) -> Experiment:
    """An experiment of several rounds by one attack."""

    def measure(seed: int, device: torch.device) -> Outcome:
        seeds = seeds_of(seed, rounds)
        of_rounds = [attacked(each, one, device, attack) for one in track(seeds, total=rounds, label="clients")]
        pictures = [one.pictures for one in of_rounds if one.pictures]
        shown = {name: torch.cat([one[name] for one in pictures])[:10] for name in (pictures[0] if pictures else ())}
        return Outcome(measures=tuple(measures(of_rounds, "")), pictures=shown)

    return Experiment(label=label, about=about, evaluations=(Measurement(measure=measure), tuned))


def tuned(trial: Trial) -> Outcome:
    """The caveat of all these recipes."""
    caveat = tuned_on_truth("Learning rates, priors and the defaults of attacks were chosen on true images.")
    return Outcome(caveats=(caveat,))


def seeds_of(seed: int, count: int) -> list[int]:
    """The seeds of so many rounds."""
    return [derive_seed(seed, "client", index) for index in range(count)]


def measures(of_rounds: Sequence[Attacked], suffix: str) -> Iterator[Measure]:
    """The fractions of records found and of labels inferred, and the mean SSIM where the attack ran."""

    def named(name: str) -> str:
        return ", ".join(filter(None, (name, suffix)))

    records = sum(each.records for each in of_rounds)
    counts = [0 if each.scores is None else int(each.scores.found.sum()) for each in of_rounds]
    each_of = of_rounds[0].records
    found = clustered_proportion(counts, each_of)
    yield Measure.from_interval(
        named("share found"),
        found,
        chance=FDR * found.value,
        meaning=f"{', '.join(map(str, counts))} of {each_of} records, at a false-discovery rate of {FDR:.0%}",
    )
    yield Measure.from_interval(
        named("labels inferred"),
        clustered_proportion([each.labels for each in of_rounds], each_of),
        chance=sum(each.by_chance for each in of_rounds) / records,
        meaning="fraction of the labels, counted with repetitions; chance: labels of other records",
    )
    scores = [each.scores for each in of_rounds if each.scores is not None]
    if scores:
        yield _mean_ssim(named("mean SSIM"), scores)


def _mean_ssim(name: str, scores: Sequence[Scores]) -> Measure:
    values, chance = (
        torch.cat([each[SSIM.name] for each in of_rounds])
        for of_rounds in ([each.values for each in scores], [each.nulls["unrelated"].values for each in scores])
    )
    meaning = "of records and the candidates that are closest to them; chance: of held-out records"
    return Measure.from_interval(name, bootstrap_mean(values, seed=0), chance=float(chance.mean()), meaning=meaning)
