"""What is found along an axis, such as the number of classes: curves of targets, each with victims of its own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Series
from remanence.metrics import Interval
from remanence.metrics.evaluation import FPR
from remanence.metrics.statistics import binomial_proportion
from remanence_recipes.weights_alone.reading import FOUND, TUNED, said
from remanence_recipes.weights_alone.survey import Surveyed, difference, share, survey
from remanence_recipes.weights_alone.target import Target

Curve: TypeAlias = Mapping[int, Surveyed]


@final
@dataclass(frozen=True, kw_only=True)
class Sweep:
    axis: str
    curves: Mapping[str, Mapping[int, Target]]  # by their names, and by places on the axis, the same for all
    victims: int
    log: bool = False

    @property
    def places(self) -> list[int]:
        return list(next(iter(self.curves.values())))

    def study(self, label: str, about: str) -> Experiment:
        some = next(iter(self.curves.values()))[self.places[0]]
        return Experiment(label=label, about=said(about, some), evaluations=(Measurement(measure=self.run),))

    def run(self, seed: int, device: torch.device) -> Outcome:
        made = {
            name: {x: survey(target, self.victims, seed, device) for x, target in points.items()}
            for name, points in self.curves.items()
        }
        attacks = next(iter(made.values()))[self.places[0]]
        curves = {
            attack: {name: {x: each[attack] for x, each in points.items()} for name, points in made.items()}
            for attack in attacks
        }
        return Outcome(
            measures=tuple(self._measures(curves, seed)), figures=tuple(self._figures(curves)), caveats=(TUNED,)
        )

    def _measures(self, curves: Mapping[str, Mapping[str, Curve]], seed: int) -> Iterator[Measure]:
        """From one end of the curves to the other where there are several victims to compare, then every point."""
        first, last = self.places[0], self.places[-1]
        for attack, named in curves.items():
            one, other = (torch.cat([curve[x].shares for curve in named.values()]) for x in (last, first))
            if first != last and self.victims > 1:
                yield difference(f"{last} over {first} {self.axis}, {attack}", one, other, seed)
        for attack, named in curves.items():
            for name, curve in named.items():
                for x, each in curve.items():
                    yield share(f"{FOUND}, {x} {self.axis}, {_name(name, attack)}", each)

    def _figures(self, curves: Mapping[str, Mapping[str, Curve]]) -> Iterator[Figure]:
        """One curve of each attack side by side; of several curves a figure for each attack."""
        if all(len(named) == 1 for named in curves.values()):
            yield from self._both("", {attack: next(iter(named.values())) for attack, named in curves.items()})
        else:
            for attack, named in curves.items():
                yield from self._both(f", {attack}", named)

    def _both(self, suffix: str, curves: Mapping[str, Curve]) -> Iterator[Figure]:
        xs = tuple(map(float, self.places))
        chance = [Series(name="chance", x=xs, y=(FPR,) * len(xs), role="chance")]
        yield self._figure(f"Found{suffix}", FOUND, curves, lambda each: each.found, chance)
        lookalikes = [
            Series(
                name=f"unrelated images, {name}",
                x=xs,
                y=tuple(float(each.by_chance.mean()) / each.records for each in curve.values()),
                role="chance",
            )
            for name, curve in curves.items()
        ]
        label = "share above 0.4"
        yield self._figure(f"SSIM above 0.4 as published{suffix}", label, curves, lambda each: each.good, lookalikes)

    def _figure(
        self,
        title: str,
        y_label: str,
        curves: Mapping[str, Curve],
        counts: Callable[[Surveyed], Tensor],
        levels: list[Series],
    ) -> Figure:
        series = [
            Series.from_intervals(
                name, tuple(map(float, self.places)), [_share(counts(each), each) for each in curve.values()]
            )
            for name, curve in curves.items()
        ]
        return Figure(title=title, x_label=self.axis, y_label=y_label, series=(*series, *levels), log_x=self.log)


def _name(curve: str, attack: str) -> str:
    return f"{curve}, {attack}" if curve else attack


def _share(counts: Tensor, surveyed: Surveyed) -> Interval:
    return binomial_proportion(int(counts.sum()), surveyed.records * len(counts))
