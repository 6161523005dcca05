"""Several victims of each of several targets: what is found in them, and whether it is more in one than in another."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.experiments import Experiment, Figure, Measure, Outcome, Scale
from remanence.metrics import Interval
from remanence.metrics.exchangeability import FDR
from remanence.metrics.statistics import bootstrap_mean, clustered_proportion
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence_recipes.curves import figure_along
from remanence_recipes.weights_alone.evaluation import FOUND, attack_each, experiment
from remanence_recipes.weights_alone.target import Target

VICTIMS: Mapping[Scale, int] = {"smoke": 2, "small": 3, "full": 4}


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Surveyed:
    """What one attack found in the victims of one target: numbers of records, one for each victim."""

    found: Tensor
    above: Tensor  # the papers' SSIM of 0.4
    by_chance: Tensor  # above it, by unrelated images
    records: int  # of each victim

    @property
    def fractions(self) -> Tensor:
        """Found, of each victim."""
        return self.found / self.records

    def proportion(self, counts: Tensor) -> Interval:
        """`counts` over the records of all victims."""
        return clustered_proportion([int(count) for count in counts], self.records)


def survey(target: Target, victims: int, seed: int, device: torch.device) -> dict[str, Surveyed]:
    """What each attack finds in victims with records and initial weights of their own."""
    seeds = [derive_seed(seed, "victim", i) for i in range(victims)]
    attacked = [each.scored for each in track(attack_each(target, seeds, device), total=victims, label="victims")]
    return {
        name: Surveyed(
            found=torch.tensor([float(each[name].scores.found.sum()) for each in attacked], dtype=torch.float64),
            above=torch.tensor([float(each[name].above) for each in attacked], dtype=torch.float64),
            by_chance=torch.tensor([each[name].above_by_chance for each in attacked], dtype=torch.float64),
            records=target.records,
        )
        for name in attacked[0]
    }


def difference(name: str, one: Tensor, other: Tensor, seed: int) -> Measure:
    """The difference of the fractions found in victims, with its interval over them."""
    found = bootstrap_mean(one - other, seed=derive_seed(seed, name))
    meaning = f"the mean over {len(one)} victims of each, and its interval over them"
    return Measure.from_interval(f"difference of share found, {name}", found, meaning=meaning, chance=0.0)


def number_found(name: str, surveyed: Surveyed, seed: int) -> Measure:
    """The records found in one victim."""
    found = bootstrap_mean(surveyed.found, seed=derive_seed(seed, name))
    meaning = f"of {surveyed.records} records, mean over {len(surveyed.found)} victims, and its interval over them"
    return Measure.from_interval(f"records found, {name}", found, meaning=meaning, chance=FDR * found.value)


def fraction_found(name: str, surveyed: Surveyed) -> Measure:
    """The fraction found of the records of all victims."""
    victims = "one victim" if len(surveyed.found) == 1 else f"{len(surveyed.found)} victims"
    found = surveyed.proportion(surveyed.found)
    return Measure.from_interval(
        f"{FOUND}, {name}", found, meaning=f"of the records of {victims}", chance=FDR * found.value
    )


def ordering(
    label: str, about: str, targets: Mapping[str, Target], pairs: Sequence[tuple[str, str]], *, victims: int
) -> Experiment:
    """Whether more is found in the first of each pair of targets than in the second."""

    def measure(seed: int, device: torch.device) -> Outcome:
        surveyed = {name: survey(target, victims, seed, device) for name, target in targets.items()}
        attacks, names = tuple(next(iter(surveyed.values()))), tuple(surveyed)
        found = {attack: {name: surveyed[name][attack] for name in names} for attack in attacks}
        differences = [
            difference(f"{a} over {b}, {attack}", each[a].fractions, each[b].fractions, seed)
            for attack, each in found.items()
            for a, b in pairs
        ]
        fractions = [fraction_found(f"{name}, {a}", each[name]) for a, each in found.items() for name in names]
        means = {
            attack: [bootstrap_mean(each[name].fractions, seed=derive_seed(seed, attack, name)) for name in names]
            for attack, each in found.items()
        }
        labels, chance = ("target", "fraction found"), {"chance": (0.0,) * len(names)}
        figure = figure_along("Found, mean over victims", labels, means, names, chance)
        return Outcome(measures=(*differences, *fractions), figures=(figure,))

    return experiment(label, about, list(targets.values()), measure)


def survey_along(
    label: str, about: str, axis: str, curves: Mapping[str, Mapping[int, Target]], *, victims: int, log: bool = False
) -> Experiment:
    """What is found along an axis, such as the number of classes: curves of targets, over the same values.

    Measures are the difference between the last and the first value, where there are several victims, and every point.
    """
    values = list(next(iter(curves.values())))
    first, last = values[0], values[-1]

    def measure(seed: int, device: torch.device) -> Outcome:
        surveyed = {
            name: {x: survey(target, victims, seed, device) for x, target in points.items()}
            for name, points in curves.items()
        }
        attacks, measures = tuple(next(iter(surveyed.values()))[first]), []
        lines = {a: {name: [each[x][a] for x in values] for name, each in surveyed.items()} for a in attacks}
        if first != last and victims > 1:
            for attack, named in lines.items():
                one, other = (torch.cat([line[i].fractions for line in named.values()]) for i in (-1, 0))
                measures.append(difference(f"{last} over {first} {axis}, {attack}", one, other, seed))
        for attack, named in lines.items():
            for name, line in named.items():
                suffix = f"{name}, {attack}" if name else attack
                measures += [fraction_found(f"{x} {axis}, {suffix}", at) for x, at in zip(values, line, strict=True)]
                if victims > 1:
                    measures.append(number_found(f"{last} {axis}, {suffix}", line[-1], seed))
        groups = {f", {attack}": lines[attack] for attack in attacks}
        if len(curves) == 1:
            groups = {"": {attack: next(iter(lines[attack].values())) for attack in attacks}}
        figures = [figure for suffix, group in groups.items() for figure in _figures(suffix, axis, values, group, log)]
        return Outcome(measures=tuple(measures), figures=tuple(figures))

    targets = [target for points in curves.values() for target in points.values()]
    return experiment(label, about, targets, measure)


def _figures(
    suffix: str, axis: str, values: Sequence[int], lines: Mapping[str, Sequence[Surveyed]], log: bool
) -> Iterator[Figure]:
    """The fraction found, and that above SSIM 0.4, each next to its chance level."""
    found = {name: [at.proportion(at.found) for at in line] for name, line in lines.items()}
    above = {name: [at.proportion(at.above) for at in line] for name, line in lines.items()}
    by_chance = {
        f"unrelated images, {name}": [float(at.by_chance.mean()) / at.records for at in line]
        for name, line in lines.items()
    }
    for title, y_label, curves, chance in (
        ("Found", "fraction found", found, {"chance": [0.0] * len(values)}),
        ("SSIM above 0.4 as published", "fraction above 0.4", above, by_chance),
    ):
        yield figure_along(f"{title}{suffix}", (axis, y_label), curves, values, chance, log_x=log)
