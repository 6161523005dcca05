"""Several victims of each of several targets: what is found in them, and whether it is more in one than in another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor

from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Scale, Series
from remanence.metrics.evaluation import FPR
from remanence.metrics.statistics import binomial_proportion, bootstrap_mean
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence_recipes.weights_alone.reading import FOUND, TUNED, read_each, said
from remanence_recipes.weights_alone.target import Target

VICTIMS: dict[Scale, int] = {"smoke": 2, "small": 3, "full": 4}


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Surveyed:
    """What one attack found in the victims of one target: a number of records for each victim."""

    found: Tensor
    good: Tensor  # above SSIM 0.4 as published
    by_chance: Tensor
    records: int  # of each victim

    @property
    def shares(self) -> Tensor:
        return self.found / self.records


def survey(target: Target, victims: int, seed: int, device: torch.device) -> dict[str, Surveyed]:
    """By the name of the attack; victims have records and first weights of their own."""
    seeds = [derive_seed(seed, "victim", i) for i in range(victims)]
    readings = track(read_each(target, seeds, device), total=victims, label="victims")
    read_all = [reading.attacked for reading in readings]
    return {
        name: Surveyed(
            found=torch.tensor([float(each[name].scores.found.sum()) for each in read_all], dtype=torch.float64),
            good=torch.tensor([float(each[name].good) for each in read_all], dtype=torch.float64),
            by_chance=torch.tensor([each[name].good_by_chance for each in read_all], dtype=torch.float64),
            records=target.records,
        )
        for name in read_all[0]
    }


def ordering(
    label: str, about: str, targets: Mapping[str, Target], pairs: Sequence[tuple[str, str]], *, victims: int
) -> Experiment:
    """Whether more is found in the first of each pair of targets than in the second."""
    some = next(iter(targets.values()))
    return Experiment(
        label=label,
        about=said(about, some),
        evaluations=(Measurement(measure=partial(_ordered, dict(targets), tuple(pairs), victims)),),
    )


def _ordered(
    targets: Mapping[str, Target], pairs: Sequence[tuple[str, str]], victims: int, seed: int, device: torch.device
) -> Outcome:
    surveyed = {name: survey(target, victims, seed, device) for name, target in targets.items()}
    attacks = tuple(next(iter(surveyed.values())))
    differences = [
        difference(f"{one} over {other}, {attack}", surveyed[one][attack].shares, surveyed[other][attack].shares, seed)
        for attack in attacks
        for one, other in pairs
    ]
    shares = [
        share(f"{FOUND}, {name}, {attack}", each[attack]) for attack in attacks for name, each in surveyed.items()
    ]
    return Outcome(measures=(*differences, *shares), figures=(_bars(surveyed, attacks, seed),), caveats=(TUNED,))


def difference(name: str, one: Tensor, other: Tensor, seed: int) -> Measure:
    """Of the shares found in victims, with its interval over them."""
    found = bootstrap_mean(one - other, seed=derive_seed(seed, name))
    meaning = f"the mean over {len(one)} victims of each, and its interval over them"
    return Measure.from_interval(f"difference of share found, {name}", found, meaning=meaning, chance=0.0)


def share(name: str, surveyed: Surveyed) -> Measure:
    found = binomial_proportion(int(surveyed.found.sum()), surveyed.records * len(surveyed.found))
    whose = "one victim" if len(surveyed.found) == 1 else f"{len(surveyed.found)} victims"
    return Measure.from_interval(name, found, meaning=f"of the records of {whose}", chance=FPR)


def _bars(surveyed: Mapping[str, Mapping[str, Surveyed]], attacks: Sequence[str], seed: int) -> Figure:
    names = tuple(surveyed)
    series = [
        Series.from_intervals(
            attack,
            names,
            [
                bootstrap_mean(each[attack].shares, seed=derive_seed(seed, attack, name))
                for name, each in surveyed.items()
            ],
        )
        for attack in attacks
    ]
    chance = Series(name="chance", x=names, y=(FPR,) * len(names), role="chance")
    return Figure(
        title="Found, mean over victims",
        x_label="target",
        y_label=FOUND,
        series=(*series, chance),
        kind="bars",
    )
