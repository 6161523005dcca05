"""Which activations give a batch away: the Hermite coefficients, the moment they leave, and the error with it."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from remanence.attacks import hermite_coefficients, identifying_order, vanishes
from remanence.errors import BadInput
from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Scale, Series
from remanence.metrics import Interval
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence_recipes.wang2023.planted import CHANCE, chance_of, errors_of
from remanence_recipes.wang2023.setting import OURS, PAPERS, SPAN, Square, SquareAndCube, gradient_of, standard_batch

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "x²+x³": SquareAndCube,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "ReLU": nn.ReLU,
    "leaky ReLU": nn.LeakyReLU,
    "ELU": nn.ELU,
    "linear": nn.Identity,
    "quadratic": Square,
}
WAYS = {"the paper's estimator": PAPERS, "exact span": SPAN, "refined": OURS}


def activations(scale: Scale) -> Sequence[Experiment]:
    """Eight activations: their Hermite coefficients, the order of the moment used, the error; two are refused."""
    what = "The Hermite coefficients of an activation, which decide what a gradient tells of a batch."
    error = (
        "Two planted records, unit vectors, read from one gradient of a wide net, with one activation after another."
    )
    return [
        Experiment(label="error", about=error, evaluations=(Measurement(measure=partial(_activations, scale)),)),
        Experiment(label="Hermite coefficients", about=what, evaluations=(Measurement(measure=_coefficients),)),
    ]


def _activations(scale: Scale, seed: int, device: torch.device) -> Outcome:
    rows, features, repeats = {"smoke": (2000, 10, 2), "small": (5000, 50, 4), "full": (5000, 50, 10)}[scale]
    found, measures = dict[str, dict[str, Interval]](), list[Measure]()
    for name, activation in track(ACTIVATIONS.items(), total=len(ACTIVATIONS), label="activations"):
        if said := _refusals(activation, rows, features, seed, device):
            measures.append(Measure(name=f"{name}, ways refused", value=len(said), meaning=f"of three: {said[0]}"))
        else:
            found[name] = {
                way: errors_of(attack, activation, rows, features, repeats, seed, device)
                for way, attack in WAYS.items()
            }
    chance = chance_of(features, seed)
    meaning = f"mean of ‖error‖_F / 2 at d = {features} over {repeats} draws of the weights; chance is {CHANCE}"
    errors = [
        Measure.from_interval(f"{name}, {way}", error, meaning=meaning, chance=chance)
        for name, each in found.items()
        for way, error in each.items()
    ]
    return Outcome(measures=(*errors, *measures), figures=(_errors(found, chance),))


def _refusals(
    activation: Callable[[], nn.Module], rows: int, features: int, seed: int, device: torch.device
) -> list[str]:
    """What each way says that does not read the gradient."""
    x, labels = (part.to(device) for part in standard_batch(features))
    release, said = gradient_of(x, labels, activation=activation, rows=rows, seed=derive_seed(seed, "refusals")), []
    for attack in WAYS.values():
        try:
            attack.run(release, seed=seed)
        except BadInput as refusal:
            said.append(str(refusal))
    return said


def _errors(found: dict[str, dict[str, Interval]], chance: float) -> Figure:
    names = tuple(found)
    series = [
        Series(
            name=way,
            x=names,
            y=tuple(errors[way].value for errors in found.values()),
            low=tuple(errors[way].low for errors in found.values()),
            high=tuple(errors[way].high for errors in found.values()),
        )
        for way in WAYS
    ]
    level = Series(name="chance", x=names, y=(chance,) * len(names), role="chance")
    return Figure(
        title="Error by activation",
        x_label="activation",
        y_label="‖error‖_F / 2",
        series=(*series, level),
        kind="bars",
        log_y=True,
    )


def _coefficients(_seed: int, _device: torch.device) -> Outcome:
    used = {2: "the span, by the paper", 3: "the records", 4: "the records where c_3 vanishes"}
    found = {name: hermite_coefficients(activation()) for name, activation in ACTIVATIONS.items()}
    measures = [
        Measure(
            name=f"{name}, c_{k}",
            value=0.0 if vanishes(k, coefficients) else coefficients[k],
            meaning=f"E[s(z) H_{k}(z)], z standard normal, tells {use}",
        )
        for name, coefficients in found.items()
        for k, use in used.items()
    ]
    orders = [
        Measure(name=f"{name}, order", value=identifying_order(ACTIVATIONS[name]()), meaning="of the moment decomposed")
        for name, coefficients in found.items()
        if not (vanishes(3, coefficients) and vanishes(4, coefficients))
    ]
    series = [Series(name=f"c_{k}", x=tuple(found), y=tuple(c[k] for c in found.values())) for k in range(5)]
    figure = Figure(
        title="Hermite coefficients", x_label="activation", y_label="c_k", series=tuple(series), kind="bars"
    )
    return Outcome(measures=(*orders, *measures), figures=(figure,))
