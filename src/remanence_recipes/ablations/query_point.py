"""Where the gradient is taken: at random weights, and at weights that were trained a little and to convergence.

Random weights are often called the easy case and trained ones safe, because little gradient remains. Here the same net
is trained longer and longer on other images, and then sent to a client.
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
    Victims,
)
from remanence.metrics import MSE, PSNR, SSIM
from remanence.metrics.statistics import binomial_proportion
from remanence.models import apply, initial_params, mlp
from remanence.releases import KnowsGradient, gradient_at_initial
from remanence.training import SGD, Training
from remanence.types import Data, Params
from remanence_recipes.curves import series_along

BATCH = 4
EPOCHS: dict[Scale, tuple[int, ...]] = {"smoke": (0, 10), "small": (0, 1, 20), "full": (0, 1, 20)}


def gradient_query_point(scale: Scale) -> Sequence[Experiment]:
    """The gradient of four images at random, at briefly and at well trained weights: Stein and gradient matching."""
    matching = with_search(GradientMatching(), steps=100 if scale == "smoke" else 200, restarts=1)
    attacks: dict[str, Attack[KnowsGradient]] = {
        "exact span": Stein(refine=False),
        "refined": Stein(),
        "gradient matching": matching,  # about as many seconds as the refinement takes where it is hard
    }
    attacked = []
    for epochs in EPOCHS[scale]:
        victims = Victims(
            split=partial(_split, scale),
            model=_model,
            training=Training(epochs=0),
            reveal=gradient_at_initial,
            per_victim=BATCH,
            initial=partial(_trained, scale, epochs),
        )
        attacked += [
            Experiment(
                label=f"{epochs} epochs, {name}",
                victims=victims,
                attack=attack,
                point=Point(axis="epochs", value=epochs, series=name),
                tuned_on_truth=attack is matching,
                evaluations=(Reconstructed(metrics=(MSE, PSNR, SSIM)),),
            )
            for name, attack in attacks.items()
        ]
    about = "The accuracy, on records that nobody trained on, of the net that the client gets."
    accuracy = Measurement(measure=partial(_accuracy, scale))
    return [*attacked, Experiment(label="accuracy", about=about, evaluations=(accuracy,))]


def _model(data: Data) -> nn.Module:
    return mlp(data.shape, data.num_classes, hidden=(1000,), activation=nn.ReLU)


def _split(scale: Scale, seed: int) -> Split:
    data = load("digits" if scale == "smoke" else "mnist")
    batches, fixed, test = {"smoke": (1, 500, 500), "small": (4, 5000, 2000), "full": (8, 5000, 2000)}[scale]
    data = replace(data, x=data.x.double())
    return split(data, private=batches * BATCH, fixed=fixed, public=0, test=test, seed=seed)


def _trained(scale: Scale, epochs: int, model: nn.Module, seed: int) -> Params:
    """Weights trained on the fixed records: the client's are new to the net."""
    initial = {name: p.double() for name, p in initial_params(model, seed=seed).items()}
    training = Training(optimizer=SGD(lr=0.05, momentum=0.9), epochs=epochs, batch_size=100)
    return train(training, model, initial, _split(scale, seed).fixed, seed=seed)


def _accuracy(scale: Scale, seed: int, device: torch.device) -> Outcome:
    test = _split(scale, seed).test.to(device)
    model, found = _model(test), []
    for epochs in EPOCHS[scale]:
        at = {name: p.to(test.x) for name, p in _trained(scale, epochs, model, seed).items()}
        correct = apply(model, at, test.x).argmax(1) == test.y
        found.append(binomial_proportion(int(correct.sum()), len(test)))
    chance, x = float(test.y.bincount().max()) / len(test), tuple(map(float, EPOCHS[scale]))
    meaning = f"of {len(test)} records that nobody trained on; chance is the commonest class"
    series = series_along({"accuracy": found}, x, {"commonest class": [chance] * len(x)})
    return Outcome(
        measures=tuple(
            Measure.from_interval(f"accuracy after {epochs} epochs", accuracy, meaning=meaning, chance=chance)
            for epochs, accuracy in zip(EPOCHS[scale], found, strict=True)
        ),
        figures=(Figure(title="Accuracy", x_label="epochs", y_label="accuracy", series=series),),
    )
