"""Figure 13: which records are reconstructed best and worst, and whether what the paper says of them holds.

It says that records before plain backgrounds are easy and textures hard. Textures have a large total variation; another
explanation is that records near the mean image are easy, as a reconstructor that knows nothing returns the mean.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from remanence.experiments import Budget, Experiment, Measure, Outcome, Scale, Trial
from remanence.metrics import MSE
from remanence.metrics.statistics import bootstrap_statistic, rank_correlation
from remanence.search.priors import total_variation
from remanence.seeds import derive_seed
from remanence_recipes.balle2022.on_cifar10 import cifar10, cifar10_victims
from remanence_recipes.balle2022.on_mnist import SCORES, mnist

ABOUT = (
    "The best and the worst reconstructions, and whether the error rises with the total variation of a record, as the "
    "paper says of textures, or with its distance from the mean of the public records."
)


def figure13_gallery(scale: Scale) -> Sequence[Experiment]:
    """Figure 13, here on MNIST: which records are reconstructed best and worst, by both reconstructors."""
    return [_explained(experiment) for experiment in mnist(scale)]


def figure13_cifar10(scale: Scale) -> Sequence[Experiment]:
    """Figure 13 on CIFAR-10: which records are reconstructed best and worst, by both reconstructors."""
    experiments = [_explained(experiment) for experiment in cifar10(scale)[:2]]
    if scale != "full":
        return experiments
    victims = cifar10_victims(scale, activation=nn.ELU, private=200, fixed=1000, public=780)  # chunks of 140 models
    budget = Budget(shadows=(780, 54_000), victims=(200, 1000), records=(1000, 5000))
    return [replace(experiment, victims=victims, budget=budget) for experiment in experiments]


def _explained(experiment: Experiment) -> Experiment:
    return replace(experiment, about=ABOUT, evaluations=(_difficulty,), claims=())


def _difficulty(trial: Trial) -> Outcome:
    """Evaluation: the scores, and the rank correlation of the error with two properties of a record."""
    outcome = SCORES(trial)
    assert outcome.finding
    truth, errors = outcome.finding.truth.x, outcome.finding.scores.values[MSE.name].cpu()
    mean = trial.victims.split.public.x.mean(0)
    properties = {
        "total variation": torch.stack([total_variation(x) for x in truth.split(1)]),
        "distance from the mean image": (truth - mean).flatten(1).norm(dim=1),
    }
    return replace(outcome, measures=tuple(_correlation(trial.seed, n, errors, v.cpu()) for n, v in properties.items()))


def _correlation(seed: int, name: str, errors: Tensor, values: Tensor) -> Measure:
    found = bootstrap_statistic(
        lambda rows: rank_correlation(errors[rows], values[rows]), [len(errors)], seed=derive_seed(seed, name)
    )
    meaning = f"Spearman's rank correlation of a record's MSE with its {name}; chance: none"
    return Measure.from_interval(f"error and {name}", found, meaning=meaning, chance=0.0)
