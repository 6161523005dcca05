"""One victim, attacked both ways: what is measured of it, and drawn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor

from remanence.diagnostics.preflight import Preflight, run_preflight
from remanence.experiments import Claim, Experiment, Figure, Measure, Measurement, Outcome, Series
from remanence.experiments.checks import tuned_on_truth
from remanence.experiments.evaluations import Accuracy
from remanence.metrics import SSIM, SSIM3, Scores, evaluate, nearest_ncc
from remanence.metrics.nulls import matched
from remanence.releases import Victim, weights_only
from remanence.seeds import derive_seed
from remanence.training import SquaredError
from remanence.types import Data, Reconstruction
from remanence_recipes.weights_alone.target import Target

GOOD = 0.4  # of SSIM with kornia's window of 3, as published
ROW = 10  # images of a row of pictures
DRAWS = 5  # of unrelated images, to count how many reach it
FOUND, RATIO = "share found", "SSIM above 0.4 as published, times chance"
ACCURACY = "accuracy on held-out records"
TUNED = tuned_on_truth(
    "The rate of Stationarity, how it evens out inner layers, its stages and rounds, the length that weights without "
    "decay are scaled to, and how long and at which rate victims are trained were chosen by looking at true records of "
    "seeds 0 and 1: quote another seed."
)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Attacked:
    """What one attack got out of the victim's weights."""

    found: Reconstruction
    scores: Scores
    published: Tensor  # SSIM of each record with its nearest candidate, window 3; candidates may be shared
    lookalikes: Tensor  # the same of as many unrelated images, (draw, record)

    @property
    def good(self) -> int:
        return int((self.published > GOOD).sum())

    @property
    def good_by_chance(self) -> float:
        return float((self.lookalikes > GOOD).double().sum(1).mean())


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    private: Data
    held_out: Data
    victim: Victim
    attacked: dict[str, Attacked]

    @property
    def ours(self) -> Attacked:
        return self.attacked["Stationarity"]


def read(target: Target, seed: int, device: torch.device) -> Reading:
    return next(read_each(target, [seed], device))


def read_each(target: Target, seeds: Sequence[int], device: torch.device) -> Iterator[Reading]:
    """Of victims that are trained at once, and attacked one by one."""
    private, held_out = zip(*([part.to(device) for part in target.cut(seed)] for seed in seeds), strict=True)
    victims = target.victims(private, seeds)
    for seed, victim, others in zip(seeds, victims, held_out, strict=True):
        release = weights_only(victim).release
        attacked = {
            name: scored(attack.run(release, seed=seed), victim.private, others, seed)
            for name, attack in target.attacks(seed).items()
        }
        yield Reading(private=victim.private, held_out=others, victim=victim, attacked=attacked)


def scored(found: Reconstruction, private: Data, held_out: Data, seed: int) -> Attacked:
    scores = evaluate(found, private, unrelated=held_out, metrics=(SSIM, SSIM3), seed=seed)
    lookalikes = [as_published(drawn, private) for drawn in unrelated(held_out, len(found.x), seed)]
    published = as_published(found.x, private)
    return Attacked(found=found, scores=scores, published=published, lookalikes=torch.stack(lookalikes))


def as_published(candidates: Tensor, private: Data) -> Tensor:
    return matched(candidates, private.x, nearest_ncc, (SSIM3,))[1][SSIM3.name]


def unrelated(held_out: Data, count: int, seed: int) -> list[Tensor]:
    """Several draws of images that were never trained on."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "look-alikes"))
    draws = [torch.randperm(len(held_out), generator=generator)[:count] for _ in range(DRAWS)]
    return [held_out.x[draw.to(held_out.x.device)] for draw in draws]


def study(label: str, about: str, target: Target, *, claims: Sequence[Claim] = ()) -> Experiment:
    return Experiment(
        label=label,
        about=said(about, target),
        evaluations=(Measurement(measure=partial(_run, target)),),
        claims=tuple(claims),
    )


def said(about: str, target: Target) -> str:
    """With what a run at paper scale leaves out of the paper's."""
    return f"{about} Shorter than published: {target.words()}." if target.scale == "full" else about


def _run(target: Target, seed: int, device: torch.device) -> Outcome:
    reading = read(target, seed, device)
    before = run_preflight(reading.victim)
    return Outcome(
        measures=(*measures(reading), accuracy(reading), *of_weights(before)),
        figures=(scatter(before.margins, reading),),
        pictures=best(reading),
        caveats=(*before.caveats(), TUNED),
    )


def measures(reading: Reading) -> list[Measure]:
    return [each for name, attacked in reading.attacked.items() for each in _measures(name, attacked)]


def _measures(name: str, attacked: Attacked) -> list[Measure]:
    scores, records = attacked.scores, len(attacked.published)
    null = float(scores.nulls["unrelated"].values[SSIM.name].mean())
    by_chance = attacked.good_by_chance
    return [
        Measure.from_interval(
            f"{FOUND}, {name}",
            scores.fraction_found,
            chance=0.01,
            meaning="of the records, matched one to one, beyond both nulls at 1 % false positives",
        ),
        Measure.from_interval(
            f"mean SSIM, {name}",
            scores.means[SSIM.name],
            chance=null,
            meaning="of the records with their candidates; chance: as many unrelated records",
        ),
        Measure(
            name=f"SSIM above 0.4 as published, {name}",
            value=attacked.good,
            chance=by_chance,
            meaning=f"of {records} records, each with its nearest candidate, window 3; chance: unrelated records",
        ),
        Measure(
            name=f"{RATIO}, {name}",
            value=attacked.good / max(by_chance, 1.0),
            chance=1.0,
            meaning="the line before over its chance, which counts as one record where it is less",
        ),
    ]


def accuracy(reading: Reading) -> Measure:
    victim, meaning = reading.victim, "of the victim; chance: always the commonest class"
    return Accuracy(name=ACCURACY, meaning=meaning).measure(victim.model, victim.final, reading.held_out)


def of_weights(before: Preflight) -> list[Measure]:
    return [
        Measure(
            name="unexplained at the truth, KKT",
            value=before.unexplained,
            meaning="share of the squared weights that the true records leave, with the best multipliers of one rival",
        ),
        Measure(
            name="unexplained at the truth, Stationarity",
            value=before.stationarity_residual,
            meaning="the same with the multipliers of the loss for all classes, ReLU's slope at a kink taken as it is",
        ),
        Measure(
            name="unexplained off the kinks",
            value=before.first_layer_residual,
            meaning="the same in the first layer, without pairs of record and neuron that rest on a kink",
        ),
        Measure(
            name="pairs on a kink", value=before.boundary_fraction, meaning="share of the pairs of record and neuron"
        ),
        Measure(
            name="records on the margin",
            value=before.on_margin,
            meaning="share whose margin is at most 1.1 times the smallest",
        ),
    ]


def scatter(margins: Tensor, reading: Reading) -> Figure:
    """SSIM of each record against how far it is from the boundary, and what unrelated records reach."""
    x = tuple(margins.tolist())
    series = [
        Series(name=name, x=x, y=tuple(each.scores.values[SSIM.name].tolist()))
        for name, each in reading.attacked.items()
    ]
    levels = [
        Series(name=f"99 % of unrelated records, {name}", x=(min(x),), y=(_level(each),), role="chance")
        for name, each in reading.attacked.items()
    ]
    numbers = isinstance(reading.victim.training.loss, SquaredError)
    return Figure(
        title="SSIM against the error" if numbers else "SSIM against the margin",
        x_label="minus the error of the record" if numbers else "margin of the record",
        y_label="SSIM",
        series=(*series, *levels),
        kind="points",
    )


def _level(attacked: Attacked) -> float:
    """What one in a hundred unrelated records reaches, as many as candidates; one value is drawn as a line."""
    return float(attacked.scores.nulls["unrelated"].values[SSIM.name].double().quantile(0.99))


def best(reading: Reading) -> dict[str, Tensor]:
    """The records that Stationarity brings back best, between what each attack makes of them."""
    order = reading.ours.scores.values[SSIM.name].argsort(descending=True)[:ROW]
    made = {name: each.found.x[each.scores.index[order]] for name, each in reading.attacked.items()}
    return {"truth": reading.private.x[order]} | made
