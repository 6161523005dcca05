"""Theorem 5.1 and section 7.1 on planted batches: how the error falls with the number of rows, and under noise."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import exp, log
from statistics import fmean, linear_regression
from typing import TypeAlias

import torch
from torch import Tensor

from remanence.attacks import Stein
from remanence.experiments import Claim, Experiment, Figure, Measure, Outcome, Scale, Series
from remanence.metrics import Interval
from remanence.metrics.statistics import bootstrap_mean, bootstrap_statistic
from remanence.progress import track
from remanence.releases.defenses import GaussianNoise
from remanence.seeds import derive_seed
from remanence_recipes.curves import figure_along, measured
from remanence_recipes.wang2023.setting import (
    ERROR,
    PAPERS,
    SPAN,
    SquareAndCube,
    chance_error,
    frobenius_error,
    gradient_in_blocks,
    gradient_of,
    standard_batch,
)

EXPONENT, DEVIATION = "exponent", "distance of the exponent from 1/2"
MEANING_OF_EXPONENT = "of the logarithm of the error over that of features / rows, by least squares"
MEANING_OF_CONSTANT = (
    "of the error over the square root of features / rows: the geometric mean over the numbers of rows"
)
Statistic: TypeAlias = Callable[[Sequence[float], Sequence[float]], float]  # of logarithms
MILLION = 1_000_000  # rows, more than memory holds
WIDTHS: dict[Scale, tuple[int, ...]] = {
    "smoke": (1000, 4000),
    "small": (3000, 10_000, 30_000),
    "full": (3000, 10_000, 30_000, 100_000),
}
REPEATS: dict[Scale, int] = {"smoke": 6, "small": 6, "full": 12}


def rates(scale: Scale) -> Sequence[Experiment]:
    """Theorem 5.1: the error falls as the square root of features over rows, with noise on the gradient as well."""
    target = Claim(quantity=DEVIATION, higher_is_better=False, target=0.1, where="theorem 5.1: 1/2")
    about = "How the paper's error grows with features / rows, on logarithmic scales."
    return [
        measured(label, about, partial(_rates, scale, noise), () if scale == "smoke" else (target,))
        for label, noise in (("no noise", 0.0), ("noise of half the gradient's norm", 0.5))
    ]


def _rates(scale: Scale, noise: float, seed: int, device: torch.device) -> Outcome:
    dimensions, widths = {"smoke": (10,), "small": (20, 50), "full": (20, 50, 100)}[scale], WIDTHS[scale]
    errors = {
        d: {
            m: _draws(PAPERS, d, m, noise, REPEATS[scale], seed, device)
            for m in track(widths, total=len(widths), label=f"d = {d}")
        }
        for d in dimensions
    }
    if scale == "full" and not noise:
        errors[100][MILLION] = _draws(PAPERS, 100, MILLION, noise, 3, seed, device)
    series = [
        Series.from_intervals(f"d = {d}", tuple(d / m for m in of_d), _means(d, of_d, seed))
        for d, of_d in errors.items()
    ]
    title, x = "Error against features / rows", "features / rows"
    figure = Figure(title=title, x_label=x, y_label=ERROR, series=tuple(series), log_x=True, log_y=True)
    return Outcome(measures=_rate("", _fit(_exponent, errors, seed)), figures=(figure,))


def noise(scale: Scale) -> Sequence[Experiment]:
    """Section 7.1: Gaussian noise on the gradient changes the constant of the error, not its rate."""
    about = "The error against the number of rows, with noise of so many times the norm of each tensor of the gradient."
    levels = (0.0, 3.0) if scale == "smoke" else (0.0, 1.0, 3.0, 10.0)
    claims = tuple(
        Claim(quantity=f"{DEVIATION}, noise {level:g}", higher_is_better=False, target=0.1, where="section 7.1: 1/2")
        for level in levels
        if scale != "smoke"
    )
    return [
        measured(label, about, partial(_noise, scale, attack, levels), claims)
        for label, attack in (("the paper's estimator", PAPERS), ("exact span", SPAN))
    ]


def _noise(scale: Scale, attack: Stein, levels: Sequence[float], seed: int, device: torch.device) -> Outcome:
    d, widths, measures, means = 10 if scale == "smoke" else 50, WIDTHS[scale], list[Measure](), {}
    for level in track(levels, total=len(levels), label="noise"):
        errors = {m: _draws(attack, d, m, level, REPEATS[scale], seed, device) for m in widths}
        exponent, constant = (_fit(statistic, {d: errors}, seed) for statistic in (_exponent, _constant))
        under = f", noise {level:g}"
        rate, deviation = _rate(under, exponent)
        constants = Measure.from_interval("constant" + under, constant, meaning=MEANING_OF_CONSTANT)
        measures += [rate, constants, deviation]
        means[f"noise {level:g}"] = _means(d, errors, seed)
    title, chance = f"Error against rows, {d} features", {"chance": [chance_error(d, seed)] * len(widths)}
    figure = figure_along(title, ("rows", ERROR), means, widths, chance, log_x=True, log_y=True)
    return Outcome(measures=tuple(measures), figures=(figure,))


def _draws(
    attack: Stein, features: int, rows: int, noise: float, repeats: int, seed: int, device: torch.device
) -> Tensor:
    """Errors with weights and noise of their own in each repeat; a million rows are made a block at a time."""
    x, labels = standard_batch(features, device=device)
    defenses, errors = (GaussianNoise(relative_std=noise),) if noise else (), []
    for i in range(repeats):
        draw = derive_seed(seed, "rates", features, rows, i)
        if rows == MILLION:
            blocks = gradient_in_blocks(x, labels, activation=SquareAndCube, rows=rows, seed=draw)
            found = attack.run_in_blocks(blocks, len(x), seed=draw)
        else:
            release = gradient_of(x, labels, activation=SquareAndCube, rows=rows, seed=draw, defenses=defenses)
            found = attack.run(release, seed=draw)
        errors.append(frobenius_error(found.x, x))
    return torch.tensor(errors, dtype=torch.float64)


def _means(features: int, errors: Mapping[int, Tensor], seed: int) -> list[Interval]:
    return [bootstrap_mean(each, seed=derive_seed(seed, "interval", features, m)) for m, each in errors.items()]


def _fit(statistic: Statistic, errors: Mapping[int, Mapping[int, Tensor]], seed: int) -> Interval:
    """A statistic of the points (log features / rows, log mean error), with its interval over the draws."""
    draws = [each for of_d in errors.values() for each in of_d.values()]
    ratios = [log(d / m) for d, of_d in errors.items() for m in of_d]

    def resampled(*indices: Tensor) -> float:
        means = [log(float(each[rows].mean())) for each, rows in zip(draws, indices, strict=True)]
        return statistic(ratios, means)

    return bootstrap_statistic(resampled, [len(each) for each in draws], seed=derive_seed(seed, "fitted"))


def _exponent(ratios: Sequence[float], errors: Sequence[float]) -> float:
    return linear_regression(ratios, errors).slope


def _constant(ratios: Sequence[float], errors: Sequence[float]) -> float:
    return exp(fmean(errors) - fmean(ratios) / 2)


def _rate(under: str, exponent: Interval) -> tuple[Measure, Measure]:
    """The fitted exponent, and its distance from that of the theorem."""
    value = abs(exponent.value - 0.5)
    return (
        Measure.from_interval(EXPONENT + under, exponent, meaning=MEANING_OF_EXPONENT, chance=0.0),
        Measure(name=DEVIATION + under, value=value, meaning="the theorem's rate is the square root"),
    )
