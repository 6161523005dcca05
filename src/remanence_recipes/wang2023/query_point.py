"""Where the gradient is taken: at random weights, and at weights that were trained a little and to the end.

It is often said that random weights are the easy case and trained ones safe, because little gradient is left. Here the
same net is trained longer and longer on other images, and then sent to a client.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from remanence.attacks import Attack, GradientMatching, Stein, with_search
from remanence.data import Split, load, split
from remanence.engine import train
from remanence.experiments import (
    Experiment,
    Figure,
    Measure,
    Measurement,
    Outcome,
    Point,
    Reconstructed,
    Scale,
    Series,
    Victims,
)
from remanence.metrics import MSE, PSNR, SSIM
from remanence.metrics.statistics import binomial_proportion
from remanence.models import apply, initial_params, mlp
from remanence.releases import KnowsGradient, gradient_at_initial
from remanence.training import SGD, Training
from remanence.types import Data, Params

BATCH = 4
EPOCHS: dict[Scale, tuple[int, ...]] = {"smoke": (0, 10), "small": (0, 1, 20), "full": (0, 1, 20)}


def query_point(scale: Scale) -> Sequence[Experiment]:
    """The gradient of four images at random, at hardly and at well trained weights: Stein and gradient matching."""
    ways: dict[str, tuple[Attack[KnowsGradient], bool]] = {
        "exact span": (Stein(refine=False), False),
        "refined": (Stein(), False),
        # about as many seconds as the refinement takes where it is hard
        "gradient matching": (
            with_search(GradientMatching(), steps=100 if scale == "smoke" else 200, restarts=1),
            True,
        ),
    }
    cells: list[Experiment] = []
    for epochs in EPOCHS[scale]:
        victims = Victims(
            split=partial(_cut, scale),
            model=_net,
            training=Training(epochs=0),
            reveal=gradient_at_initial,
            per_victim=BATCH,
            initial=partial(_trained, scale, epochs),
        )
        cells += [
            Experiment(
                label=f"{epochs} epochs, {way}",
                victims=victims,
                attack=attack,
                point=Point(axis="epochs", value=epochs, series=way),
                tuned_on_truth=tuned,
                evaluations=(Reconstructed(metrics=(MSE, PSNR, SSIM)),),
            )
            for way, (attack, tuned) in ways.items()
        ]
    about = "How well the net does its work, on records of nobody, with the weights that the client gets."
    return [
        *cells,
        Experiment(label="accuracy", about=about, evaluations=(Measurement(measure=partial(_accuracy, scale)),)),
    ]


def _net(data: Data) -> nn.Module:
    return mlp(data.shape, data.num_classes, hidden=(1000,), activation=nn.ReLU)


def _cut(scale: Scale, seed: int) -> Split:
    data = load("digits" if scale == "smoke" else "mnist")
    data = replace(data, x=data.x.double())
    batches, fixed, test = {"smoke": (1, 500, 500), "small": (4, 5000, 2000), "full": (8, 5000, 2000)}[scale]
    return split(data, private=batches * BATCH, fixed=fixed, public=0, test=test, seed=seed)


def _trained(scale: Scale, epochs: int, model: nn.Module, seed: int) -> Params:
    """On the fixed records: the client's are new to the net."""
    initial = {name: p.double() for name, p in initial_params(model, seed=seed).items()}
    training = Training(optimizer=SGD(lr=0.05, momentum=0.9), epochs=epochs, batch_size=100)
    return train(training, model, initial, _cut(scale, seed).fixed, seed=seed)


def _accuracy(scale: Scale, seed: int, device: torch.device) -> Outcome:
    test = _cut(scale, seed).test.to(device)
    model, shares = _net(test), []
    for epochs in EPOCHS[scale]:
        at = {name: p.to(test.x) for name, p in _trained(scale, epochs, model, seed).items()}
        right = apply(model, at, test.x).argmax(1) == test.y
        shares.append(binomial_proportion(int(right.sum()), len(test)))
    commonest = float(test.y.bincount().max()) / len(test)
    places = tuple(map(float, EPOCHS[scale]))
    guess = Series(name="commonest class", x=places, y=(commonest,) * len(places), role="chance")
    meaning = f"share of {len(test)} records that nobody trained on put into their class; chance is the commonest class"
    return Outcome(
        measures=tuple(
            Measure.from_interval(f"accuracy after {epochs} epochs", share, meaning=meaning, chance=commonest)
            for epochs, share in zip(EPOCHS[scale], shares, strict=True)
        ),
        figures=(
            Figure(
                title="Accuracy",
                x_label="epochs",
                y_label="accuracy",
                series=(Series.from_intervals("accuracy", places, shares), guess),
            ),
        ),
    )
