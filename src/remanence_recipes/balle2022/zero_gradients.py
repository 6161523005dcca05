"""Figure 16: weights to which a record gives exactly zero gradient, so that they cannot store it.

The paper prints over 80 % for the convolutions of a network with ReLU, and neither the range of its pixels nor how far
initial weights matter: learning rates, ranges and twenty initialisations are tried.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import vmap

from remanence.engine import loss_gradient
from remanence.experiments import Budget, Claim, Experiment, Measure, Outcome, Scale, Trial
from remanence.metrics import Interval
from remanence.metrics.statistics import bootstrap_mean
from remanence.models import apply, initial_stack
from remanence.seeds import derive_seed
from remanence.training import SGD, Training
from remanence.types import Data, Params
from remanence_recipes.balle2022.on_cifar10 import cifar10_victims
from remanence_recipes.balle2022.stability import train_with_snapshots
from remanence_recipes.curves import figure_along

RANGES: Mapping[str, Callable[[Tensor], Tensor]] = {  # of pixels
    "pixels in [0, 1]": lambda x: x,
    "pixels in [-1, 1]": lambda x: 2 * x - 1,
    "standardised pixels": lambda x: (x - 0.473) / 0.251,  # mean and standard deviation over CIFAR-10
}


def figure16_zero_gradients(scale: Scale) -> Sequence[Experiment]:
    """Figure 16: the fraction of weights without a gradient, by learning rate, range of pixels and initial weights."""
    starts = {"smoke": 4, "small": 16, "full": 20}[scale]
    rates = {"smoke": (0.1,), "small": (0.01, 0.05), "full": (0.01, 0.03, 0.05)}[scale]
    epochs = {"smoke": (1, 4), "small": (1, 25, 50, 100), "full": (1, 10, 25, 50, 75, 100)}[scale]
    claim = Claim(
        quantity=f"convolutions, learning rate {rates[0]:g}",
        higher_is_better=True,
        printed=0.8,
        where="figure 16, ReLU: over 80 %",
    )
    cases = [("ReLU", nn.ReLU, name) for name in RANGES] + [("ELU", nn.ELU, "pixels in [0, 1]")]
    return [
        Experiment(
            label=f"{label}, {name}",
            about="The fraction of weights whose gradient for a record is exactly zero: they cannot store it.",
            victims=cifar10_victims(scale, activation=activation, private=starts, public=1),
            evaluations=(partial(_zeros_by_rate, rates if label == "ReLU" else rates[:1], epochs, RANGES[name]),),
            claims=(claim,) if scale == "full" and label == "ReLU" else (),
            budget=Budget(victims=(starts, 1000)) if scale == "full" else None,
        )
        for label, activation, name in cases
    ]


def _zeros_by_rate(
    rates: Sequence[float], epochs: Sequence[int], to_range: Callable[[Tensor], Tensor], trial: Trial
) -> Outcome:
    """Evaluation: train a model from initial weights of its own for each private record, and count the zeros in the
    gradient of that record after some epochs."""
    victims, parts, seed = trial.victims, trial.victims.split, trial.seed
    fixed, targets, test = (_in_range(part, to_range) for part in (parts.fixed, parts.private, parts.test))
    initial = initial_stack(victims.model, len(targets), seed=derive_seed(seed, "starts"))
    initial = {name: p.to(fixed.x) for name, p in initial.items()}
    over, lines, measures = f"mean over {len(targets)} initialisations", dict[str, list[Interval]](), list[Measure]()
    for rate in rates:
        training = replace(victims.victims.training, optimizer=SGD(lr=rate, momentum=0.9))
        models = train_with_snapshots(training, victims.model, initial, fixed, targets, epochs, seed=seed)
        zeros = {epoch: _zeros(victims.model, training, params, targets) for epoch, params in models.items()}
        lines[f"learning rate {rate:g}"] = [bootstrap_mean(each.mean(0), seed=seed) for each in zeros.values()]
        at, last = f"learning rate {rate:g}", zeros[epochs[-1]]
        for name, values in (("convolutions", last.mean(0)), ("first convolution", last[0]), ("second", last[1])):
            meaning = f"{over} of the fraction of exact zeros after {epochs[-1]} epochs"
            measures.append(Measure.from_interval(f"{name}, {at}", bootstrap_mean(values, seed=seed), meaning=meaning))
        accuracy = bootstrap_mean(_accuracies(victims.model, models[epochs[-1]], test), seed=seed)
        commonest = float(test.y.bincount().max()) / len(test)
        meaning = f"{over} of the fraction of held-out records classified correctly; chance: the commonest class"
        measures.append(Measure.from_interval(f"test accuracy, {at}", accuracy, meaning=meaning, chance=commonest))
    labels = ("epoch", "fraction of exact zeros")
    figure = figure_along("Weights of convolutions without a gradient", labels, lines, epochs)
    return Outcome(measures=tuple(measures), figures=(figure,))


def _in_range(data: Data, to_range: Callable[[Tensor], Tensor]) -> Data:
    low, high = (float(to_range(data.x.new_tensor(bound))) for bound in data.bounds)
    return replace(data, x=to_range(data.x), bounds=(low, high))


def _zeros(model: nn.Module, training: Training, params: Params, targets: Data) -> Tensor:
    """(convolutions, models): the fraction of a layer's weights whose gradient for a model's own target is zero."""
    per_model = vmap(partial(loss_gradient, model, loss=training.loss))
    gradients = per_model(params, targets.x[:, None], targets.y[:, None])
    layers = [name for name, _ in model.named_parameters() if name.endswith("weight")][:2]
    return torch.stack([(gradients[name] == 0).flatten(1).double().mean(1) for name in layers])


@torch.no_grad()
def _accuracies(model: nn.Module, params: Params, test: Data) -> Tensor:
    """(models,): the fraction of `test` that each model classifies correctly."""
    logits = vmap(partial(apply, model), in_dims=(0, None))(params, test.x)
    return (logits.argmax(-1) == test.y).double().mean(1)
