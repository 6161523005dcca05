"""Deeper nets (algorithm 2): the server sends layers that pass the records on, and reads the last two."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from remanence.attacks import Stein
from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Scale, Series
from remanence.metrics import Interval
from remanence.metrics.statistics import bootstrap_mean
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence_recipes.wang2023.planted import CHANCE, chance_of
from remanence_recipes.wang2023.setting import OURS, SPAN, frobenius, gradient_of, unit_batch

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"ReLU": nn.ReLU, "leaky ReLU": nn.LeakyReLU, "tanh": nn.Tanh}
WAYS = {"exact span": SPAN, "refined": OURS}


def depth(scale: Scale) -> Sequence[Experiment]:
    """Corollary 5.2: two records from nets of two to six layers; deeper neither helps nor hurts."""
    about = "Two planted records, random unit vectors, read from one gradient of nets with more and more layers."
    return [Experiment(label="planted pairs", about=about, evaluations=(Measurement(measure=partial(_depth, scale)),))]


def _depth(scale: Scale, seed: int, device: torch.device) -> Outcome:
    rows, features, repeats = {"smoke": (2000, 10, 2), "small": (5000, 50, 4), "full": (5000, 50, 10)}[scale]
    depths = (2, 4) if scale == "smoke" else (2, 3, 4, 5, 6)
    curves = {f"{name}, {way}": (s, attack) for name, s in ACTIVATIONS.items() for way, attack in WAYS.items()}
    found = {
        name: [_errors(attack, s, rows, features, layers, repeats, seed, device) for layers in depths]
        for name, (s, attack) in track(curves.items(), total=len(curves), label="curves")
    }
    chance = chance_of(features, seed)
    meaning = f"mean of ‖error‖_F / 2 at d = {features} over {repeats} draws; chance is {CHANCE}"
    x = tuple(map(float, depths))
    level = Series(name="chance", x=x, y=(chance,) * len(x), role="chance")
    lines = tuple(Series.from_intervals(name, x, errors) for name, errors in found.items())
    return Outcome(
        measures=tuple(
            Measure.from_interval(f"{name}, {layers} layers", error, meaning=meaning, chance=chance)
            for name, errors in found.items()
            for layers, error in zip(depths, errors, strict=True)
        ),
        figures=(
            Figure(
                title="Error against depth",
                x_label="layers",
                y_label="‖error‖_F / 2",
                series=(*lines, level),
                log_y=True,
            ),
        ),
    )


def _errors(
    attack: Stein,
    activation: Callable[[], nn.Module],
    rows: int,
    features: int,
    layers: int,
    repeats: int,
    seed: int,
    device: torch.device,
) -> Interval:
    errors = []
    for i in range(repeats):
        x, labels = (part.to(device) for part in unit_batch(features, seed=derive_seed(seed, "batch", i)))
        release = gradient_of(
            x,
            labels,
            activation=activation,
            rows=rows,
            before=(2 * features,) * (layers - 2),
            seed=derive_seed(seed, "weights", i),
        )
        errors.append(frobenius(attack, release, x, seed=derive_seed(seed, "attack", i)))
    return bootstrap_mean(torch.tensor(errors), seed=derive_seed(seed, "interval", layers))
