"""Where the gradient is taken: at random weights, and at weights that were trained a little and to convergence.

Random weights are often called the easy case and trained ones safe, because little gradient remains. Here the same net
is trained longer and longer on other images, and then sent to a client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from remanence.attacks import Attack, GradientMatching, Stein, with_search
from remanence.data import Split, load, split
from remanence.experiments import Experiment, Outcome, Point, Reconstructed, Scale, Victims, prepare
from remanence.experiments.evaluations import Accuracy
from remanence.metrics import MSE, PSNR, SSIM
from remanence.models import mlp
from remanence.releases import KnowsGradient, gradient_at_initial
from remanence.training import SGD, Training
from remanence_recipes.curves import figure_along, measured
from remanence_recipes.federated import trained_on_fixed

BATCH = 4


def gradient_query_point(scale: Scale) -> Sequence[Experiment]:
    """The gradient of four images at random, at briefly and at well trained weights: Stein and gradient matching."""
    matching = with_search(GradientMatching(), steps=100 if scale == "smoke" else 200, restarts=1)
    attacks: dict[str, Attack[KnowsGradient]] = {
        "exact span": Stein(refine=False),
        "refined": Stein(),
        "gradient matching": matching,  # about as many seconds as the refinement takes where it is hard
    }
    victims = {epochs: _victims(scale, epochs) for epochs in ((0, 10) if scale == "smoke" else (0, 1, 20))}
    attacked = [
        Experiment(
            label=f"{epochs} epochs, {name}",
            victims=each,
            attack=attack,
            point=Point(axis="epochs", value=epochs, series=name),
            tuned_on_truth=attack is matching,
            evaluations=(Reconstructed(metrics=(MSE, PSNR, SSIM)),),
        )
        for epochs, each in victims.items()
        for name, attack in attacks.items()
    ]
    about = "The accuracy, on records that nobody trained on, of the net that the client gets."
    return [*attacked, measured("accuracy", about, partial(_accuracy, victims))]


def _victims(scale: Scale, epochs: int) -> Victims:
    """Clients that get a net trained for so many epochs on other images."""
    training = Training(optimizer=SGD(lr=0.05, momentum=0.9), epochs=epochs, batch_size=100)
    parts = partial(_split, scale)
    return Victims(
        split=parts,
        model=lambda data: mlp(data.shape, data.num_classes, hidden=(1000,), activation=nn.ReLU),
        training=Training(epochs=0),
        reveal=gradient_at_initial,
        per_victim=BATCH,
        initial=partial(trained_on_fixed, training, parts),
    )


def _split(scale: Scale, seed: int) -> Split:
    data = load("digits" if scale == "smoke" else "mnist")
    batches, fixed, test = {"smoke": (1, 500, 500), "small": (4, 5000, 2000), "full": (8, 5000, 2000)}[scale]
    data = replace(data, x=data.x.double())
    return split(data, private=batches * BATCH, fixed=fixed, public=0, test=test, seed=seed)


def _accuracy(victims: Mapping[int, Victims], seed: int, device: torch.device) -> Outcome:
    measures = []
    for epochs, each in victims.items():
        prepared = prepare(each, seed=seed, device=device)
        test = prepared.split.test
        meaning = f"of {len(test)} records that nobody trained on; chance is the commonest class"
        accuracy = Accuracy(name=f"accuracy after {epochs} epochs", meaning=meaning)
        measures.append(accuracy.measure(prepared.model, prepared.initial, test))
    chance = [measure.chance or 0.0 for measure in measures]
    labels, levels = ("epochs", "accuracy"), {"commonest class": chance}
    figure = figure_along("Accuracy", labels, {"accuracy": measures}, list(victims), levels)
    return Outcome(measures=tuple(measures), figures=(figure,))
