"""What one SVD of the first layer tells: the number of records, their span, and which records lie in it.

Expected, and written down before the first run:
- where weight decay has left less than 1e-6 of the initial weights, the rank is the number of records exactly and every
  record is identified, AUC 1
- without weight decay no gap is clear at any time; the span of the true rank identifies some records, AUC 0.6 to 0.9
- with the initial weights known, rank and members are exact after any number of steps, without weight decay
- a target trained with a record has it in its span, one trained with another in its place does not: AUC 1
- of held-out records 1 % are taken for members, as the test promises

The first holds with one hidden layer and not with more: with two and a weight decay of 0.1 some records' part of the
layer lay below 1e-10, and no gap was clear. So `full` has 100 images of CIFAR-10 and one hidden layer of width 256;
`small` is MNIST, `smoke` scikit-learn's 8x8 digits.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import final

import torch
from torch import Tensor, nn

from remanence.data import Split, load, split
from remanence.diagnostics.span import Span, estimate_span
from remanence.engine import train
from remanence.experiments import Experiment, Figure, Measure, Outcome, Scale, Series
from remanence.experiments.checks import few_held_out, no_gap, records_outside
from remanence.experiments.evaluations.span import membership_measures, outside_figure, rank_measure, singular_values
from remanence.metrics import Membership, membership_test
from remanence.metrics.evaluation import FPR
from remanence.metrics.statistics import auc, bootstrap_mean, p_values
from remanence.models import initial_params, mlp
from remanence.progress import track
from remanence.releases import KnowsFinal, Victim, check_fit, fine_tuned, train_victim, weights_only
from remanence.seeds import derive_seed
from remanence.training import SGD, Training, remaining_fraction
from remanence.types import Caveat, Data, concat
from remanence_recipes.curves import measured, proportion

EXACT, WITH = "rank exact", "AUC, with against without"
WITH_IDENTIFIED, WITHOUT_IDENTIFIED = "identified, with the record", "identified, without the record"
KNOWN = "first weights known, no weight decay"


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    data: str
    records: int = 100  # trained on
    hidden: tuple[int, ...] = (256,)
    lr: float = 0.2
    decays: tuple[float, ...]  # under the last one initial weights vanish fastest
    epochs: tuple[int, ...]  # at which a target is released
    pairs: int  # targets that differ in one record,
    pair_epochs: int = 400  # and how long they are trained

    def training(self, decay: float, epochs: int) -> Training:
        return Training(optimizer=SGD(lr=self.lr, momentum=0.9), epochs=epochs, weight_decay=decay)

    def start(self, fixed: Data, private: Data, seed: int) -> Victim:
        """A target before any training; all have the same initial weights."""
        model = mlp(fixed.shape, fixed.num_classes, hidden=self.hidden, activation=nn.ReLU)
        initial = {n: p.to(fixed.x) for n, p in initial_params(model, seed=derive_seed(seed, "start")).items()}
        untrained = self.training(0.0, 0)
        return Victim(model=model, training=untrained, initial=initial, final=initial, fixed=fixed, private=private)

    def split(self, seed: int, device: torch.device) -> Split:
        """Records in float64: `private` are those in which the pairs differ, the others of a target are fixed."""
        parts = split(load(self.data), private=self.pairs, fixed=self.records - 1, public=0, test=1000, seed=seed)
        return parts.to(device, torch.float64)


SETTINGS: dict[Scale, Setting] = {
    "smoke": Setting(data="digits", records=20, hidden=(48,), decays=(0.0, 0.015), epochs=(50, 150, 400), pairs=3),
    "small": Setting(data="mnist", decays=(0.0, 1e-3, 4e-3, 0.0125), epochs=(50, 100, 200, 400, 800, 1200), pairs=6),
    "full": Setting(
        data="cifar10",
        lr=0.02,  # at 0.05 all neurons may die in the first steps
        decays=(0.0, 0.02, 0.1),
        epochs=(50, 100, 200, 400, 800),
        pairs=4,
        pair_epochs=500,
    ),
}


def first_layer_span(scale: Scale) -> Sequence[Experiment]:
    """One SVD of the first layer: rank, span and membership, by weight decay and epochs, with and without a record."""
    setting = SETTINGS[scale]
    over_time = (
        "Targets with several weight decays, released after several numbers of epochs: how many records does the first "
        "layer show, and how well does its span tell records that were trained on from held-out ones?"
    )
    pairs = (
        "Targets trained on the same records but one: does a record lie in the span of the target that saw it, and "
        "not in those of the others?"
    )
    return [
        measured("weight decay and epochs", over_time, partial(_over_time, setting)),
        measured("with and without a record", pairs, partial(_pairs, setting)),
    ]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Point:
    """The span of one release, and the fraction of records' energy outside it."""

    remaining: float  # fraction of the initial weights
    found: Span  # by the largest gap
    inside: Tensor  # what lies outside the span of the true rank, of the records trained on
    out: Tensor  # of held-out ones

    @classmethod
    def from_release(cls, release: KnowsFinal, remaining: float, records: Data, held_out: Data) -> "_Point":
        found = estimate_span(release)
        span = replace(found, rank=len(records))
        return cls(remaining=remaining, found=found, inside=span.outside(records.x), out=span.outside(held_out.x))


def _over_time(setting: Setting, seed: int, device: torch.device) -> Outcome:
    parts = setting.split(seed, device)
    records = concat([parts.fixed, parts.private.take([0])])
    point = partial(_Point.from_release, records=records, held_out=parts.test)
    made = defaultdict[str, list[_Point]](list)
    for decay in track(reversed(setting.decays), total=len(setting.decays), label="weight decays"):
        for remaining, target in _released(setting, decay, parts, seed):
            made[f"weight decay {decay:g}"].append(point(weights_only(target).release, remaining))
            if not decay:
                made[KNOWN].append(point(fine_tuned(target).release, remaining))
        check_fit(target)
    last = {name: each[-1] for name, each in made.items()}
    tests = {name: membership_test(-r.inside, -r.out, seed=derive_seed(seed, name)) for name, r in last.items()}
    return Outcome(
        measures=tuple(chain.from_iterable(_measures(name, last[name], tests[name]) for name in last)),
        figures=(singular_values({name: r.found for name, r in last.items()}), *_curves(setting, made), _error(made)),
        caveats=tuple(_caveats(last, tests)),
    )


def _released(setting: Setting, decay: float, parts: Split, seed: int) -> Iterator[tuple[float, Victim]]:
    """The fraction that remains of the initial weights, and the target, after each number of epochs; the momentum is
    reset at each."""
    target, remaining = setting.start(parts.fixed, parts.private.take([0]), seed), 1.0
    for before, after in pairwise((0, *setting.epochs)):
        training = setting.training(decay, after - before)
        remaining *= remaining_fraction(training, training.epochs)
        final_params = train(training, target.model, target.final, concat([target.fixed, target.private]))
        target = replace(target, training=training, final=final_params)
        yield abs(remaining), target


def _measures(name: str, last: _Point, test: Membership) -> list[Measure]:
    rank = rank_measure(f"rank, {name}", last.found, len(last.inside))
    return [rank, *membership_measures(test, f", {name}")]


def _caveats(last: Mapping[str, _Point], tests: Mapping[str, Membership]) -> Iterator[Caveat]:
    """About the held-out records, which all releases share, and about each release."""
    if few := few_held_out(next(iter(tests.values()))):
        yield few
    for name, point in last.items():
        if caveat := no_gap(point.found) or records_outside(point.inside):
            yield replace(caveat, text=f"{name.capitalize()}: {caveat.text}")


def _curves(setting: Setting, made: Mapping[str, list[_Point]]) -> tuple[Figure, Figure]:
    epochs = tuple(float(each) for each in setting.epochs)
    aucs = [Series(name=n, x=epochs, y=tuple(auc(-r.inside, -r.out) for r in each)) for n, each in made.items()]
    ranks = [Series(name=n, x=epochs, y=tuple(float(r.found.rank or 0) for r in each)) for n, each in made.items()]
    chance = Series(name="chance", x=epochs, y=(0.5,) * len(epochs), role="chance")
    truth = Series(name="trained on", x=epochs, y=(float(setting.records),) * len(epochs), role="limit")
    return (
        Figure(
            title="Records identified by the span",
            x_label="epochs",
            y_label="AUC, the rank being known",
            series=(*aucs, chance),
            log_x=True,
        ),
        Figure(
            title="Records by the rank",
            x_label="epochs",
            y_label="rank, 0 where no gap is clear",
            series=(*ranks, truth),
            log_x=True,
        ),
    )


def _error(made: Mapping[str, list[_Point]]) -> Figure:
    """The energy of trained records outside the span of the true rank, as the initial weights vanish."""
    series = []
    for name, each in made.items():
        if each[-1].remaining < 1:
            x = tuple(r.remaining for r in each)
            series.append(Series(name=name, x=x, y=tuple(float(r.inside.median()) for r in each)))
            level = tuple(float(r.out.quantile(FPR)) for r in each)
            series.append(Series(name=f"held out, nearest 1 %, {name}", x=x, y=level, role="chance"))
    return Figure(
        title="As the first weights die",
        x_label="fraction left of the initial weights",
        y_label="median energy outside the span",
        series=tuple(series),
        log_x=True,
        log_y=True,
    )


def _pairs(setting: Setting, seed: int, device: torch.device) -> Outcome:
    parts = setting.split(seed, device)
    training, found = setting.training(setting.decays[-1], setting.pair_epochs), []
    for i in track(range(setting.pairs), total=setting.pairs, label="targets"):
        first = setting.start(parts.fixed, parts.private.take([i]), seed)
        target = train_victim(first.model, training, first.initial, first.fixed, first.private, seed=seed)
        check_fit(target)
        found.append(estimate_span(weights_only(target).release))
    spans = [replace(each, rank=setting.records) for each in found]
    outside = torch.stack([span.outside(parts.private.x) for span in spans]).cpu()  # (targets, records)
    member = torch.eye(len(spans), dtype=torch.bool)
    null = [-span.outside(parts.test.x).cpu() for span in spans]
    p = torch.stack([p_values(-row, each, distinct=len(each)) for row, each in zip(outside, null, strict=True)])
    each_auc = torch.tensor([auc(-outside[member[:, i], i], -outside[~member[:, i], i]) for i in range(len(member))])
    meaning = "chance that a record has less of its energy outside the span of the target that saw it than of another"
    identified = "fraction of the records that are identified in their target"
    exact = torch.tensor([each.rank == setting.records for each in found])
    return Outcome(
        measures=(
            proportion(EXACT, exact, meaning="fraction of the targets"),
            Measure.from_interval(
                WITH, bootstrap_mean(each_auc, seed=derive_seed(seed, WITH)), meaning=meaning, chance=0.5
            ),
            proportion(WITH_IDENTIFIED, p[member] <= FPR, meaning=identified, chance=FPR),
            proportion(WITHOUT_IDENTIFIED, p[~member] <= FPR, meaning="the same of the other targets", chance=FPR),
        ),
        figures=(outside_figure(outside[member], outside[~member], names=("target with it", "target with another")),),
    )
