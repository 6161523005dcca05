"""Figure 1: the best reconstruction of each class. Which one is best is told by the truth, here as in the paper."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from remanence.diagnostics.preflight import run_preflight
from remanence.experiments import Experiment, Measure, Measurement, Outcome, Scale
from remanence.metrics import SSIM, hungarian
from remanence.metrics.nulls import matched
from remanence.metrics.statistics import binomial_proportion, bootstrap_mean
from remanence.seeds import derive_seed
from remanence.types import Data
from remanence_recipes.buzaglo2023.figures import in_words, plain
from remanence_recipes.weights_alone.reading import TUNED, Attacked, read, said, scatter, unrelated
from remanence_recipes.weights_alone.target import Target


def figure1(scale: Scale) -> Sequence[Experiment]:
    """Figure 1: of each class the record that comes back best, beside the best that unrelated images reach."""
    target = plain(scale)
    return [
        Experiment(
            label="best of each class",
            about=said(in_words(target), target),
            evaluations=(Measurement(measure=partial(_best, target)),),
        )
    ]


def _best(target: Target, seed: int, device: torch.device) -> Outcome:
    reading = read(target, seed, device)
    private, before = reading.private, run_preflight(reading.victim)
    pictures: dict[str, Tensor] = {}
    measures: list[Measure] = []
    for name, each in reading.attacked.items():
        order, best = _of_classes(each.scores.values, private)
        pictures |= {f"truth, best of {name}": private.x[order], name: each.found.x[each.scores.index[order]]}
        lookalikes = unrelated(reading.held_out, len(each.found.x), seed)
        paired = [matched(x, private.x, hungarian, (SSIM,)) for x in lookalikes]
        by_chance = torch.stack([_of_classes(values, private)[1] for _, values in paired])
        measures += _measures(name, each, private, best, float(by_chance.mean()), seed)
    index, values = paired[0]
    order = _of_classes(values, private)[0]
    pictures |= {"truth, best of unrelated images": private.x[order], "unrelated images": lookalikes[0][index[order]]}
    return Outcome(
        measures=tuple(measures),
        figures=(scatter(before.margins, reading),),
        pictures=pictures,
        caveats=(*before.caveats(), TUNED),
    )


def _of_classes(values: dict[str, Tensor], private: Data) -> tuple[Tensor, Tensor]:
    """Of each class the record with the highest SSIM, and that SSIM."""
    own = private.y == torch.arange(private.num_classes, device=private.y.device)[:, None]
    best, order = values[SSIM.name].nan_to_num(nan=-1.0).expand(own.shape).masked_fill(~own, -torch.inf).max(1)
    return order, best


def _measures(
    name: str, attacked: Attacked, private: Data, best: Tensor, by_chance: float, seed: int
) -> tuple[Measure, Measure]:
    hit = private.y[attacked.scores.found].unique().numel()
    return (
        Measure.from_interval(
            f"best SSIM of a class, {name}",
            bootstrap_mean(best, seed=derive_seed(seed, name)),
            chance=by_chance,
            meaning="mean over the classes; chance: as many unrelated images as candidates",
        ),
        Measure.from_interval(
            f"classes with a record found, {name}",
            binomial_proportion(hit, private.num_classes),
            meaning="share of the classes; a record is found beyond both nulls at 1 % false positives",
            chance=1 - 0.99 ** (len(private) / private.num_classes),
        ),
    )
