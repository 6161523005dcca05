"""Figure 11: a reconstructor learnt on one fixed set, used on another."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from remanence.attacks import FittedRecoNN
from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Scale, Series
from remanence.metrics import MSE, Interval
from remanence.metrics.nulls import nearest_neighbour
from remanence.metrics.statistics import bootstrap_mean
from remanence.models import initial_params
from remanence.releases import AllButOne, all_but_one, train_victims
from remanence.shadow import build_bank
from remanence.types import Data, concat
from remanence_recipes.balle2022.informed import OURS, cut, for_shadows, net, reduced, training


def figure11_transfer(scale: Scale) -> Sequence[Experiment]:
    """Figure 11: a reconstructor learnt on one fixed set, used on another; as it is, and refined on a few shadows."""
    about = "The error of a reconstructor that was trained for another fixed set and refined on a few shadows of this."
    return [Experiment(label="transfer", about=about, evaluations=(Measurement(measure=partial(_transfer, scale)),))]


def _transfer(scale: Scale, seed: int, device: torch.device) -> Outcome:
    counts = {"smoke": (20, 50), "small": (30, 100, 300), "full": (100, 1000, 10_000)}[scale]
    parts, attack = cut(scale, seed), reduced(OURS, scale)
    fixed, private, public = (part.to(device) for part in (parts.fixed, parts.private, parts.public))
    other = len(public) // 3 if len(public) < 3 * len(fixed) else len(fixed)
    home, public = public.take(slice(0, other)), public.take(slice(other, None))
    releases = _victims(scale, fixed, private, seed)
    few, rest = public.take(slice(0, max(counts))), public.take(slice(max(counts), None))
    learnt = attack.fit(build_bank(replace(releases[0], fixed=home), rest, seed=seed), seed=seed)
    bank = build_bank(releases[0], few, seed=seed)

    def error(fitted: FittedRecoNN) -> Interval:
        found = torch.cat([fitted.run(release, seed=seed).x for release in releases])
        return bootstrap_mean(MSE.paired(found, private.x), seed=seed)

    refined, fresh = [], []
    for count in counts:
        part = replace(bank, weights=bank.weights[:count], targets=bank.targets.take(slice(0, count)))
        same = for_shadows(attack, count, of=len(rest))
        refined.append(error(same.refine(learnt, part, seed=seed)))
        fresh.append(error(same.fit(part, seed=seed)))
    _, null = nearest_neighbour(private, concat([public, home, fixed]), (MSE,))
    return _outcome(counts, error(learnt), refined, fresh, float(null.values[MSE.name].mean()))


def _victims(scale: Scale, fixed: Data, private: Data, seed: int) -> list[AllButOne]:
    model = net(nn.ELU)(fixed)
    initial = {name: p.to(fixed.x) for name, p in initial_params(model, seed=seed).items()}
    victims = train_victims(model, training(scale), initial, fixed, private, seed=seed)
    return [all_but_one(victim).release for victim in victims]


def _outcome(
    counts: Sequence[int], as_it_is: Interval, refined: list[Interval], fresh: list[Interval], chance: float
) -> Outcome:
    meaning = "mean MSE over the targets; chance is the nearest record that the attacker owns"

    def measure(name: str, error: Interval) -> Measure:
        return Measure.from_interval(name, error, meaning=meaning, chance=chance)

    def series(name: str, errors: list[Interval]) -> Series:
        low, high = tuple(e.low for e in errors), tuple(e.high for e in errors)
        return Series(name=name, x=tuple(map(float, counts)), y=tuple(e.value for e in errors), low=low, high=high)

    lines = {"refined": refined, "from nothing": fresh}
    level = Series(name="nearest neighbour", x=tuple(map(float, counts)), y=(chance,) * len(counts), role="chance")
    rows = [
        measure(f"{name}, {count:,} shadows", error)
        for name, errors in lines.items()
        for count, error in zip(counts, errors, strict=True)
    ]
    figure = Figure(
        title="Error on another fixed set",
        x_label="shadow models of that set",
        y_label="mean MSE",
        series=(*(series(name, errors) for name, errors in lines.items()), level),
        log_x=True,
    )
    return Outcome(measures=(measure("as it is", as_it_is), *rows), figures=(figure,))
