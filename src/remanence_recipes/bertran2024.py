"""Bertran, Tang, Kearns, Morgenstern, Roth, Wu, "Reconstruction Attacks on Machine Unlearning: Simple Models are
Vulnerable" (NeurIPS 2024): the record whose deletion lies between two versions of a model.

Every deletion is a pair of models of its own, both trained to convergence: with the record, and without it. The
attacker owns public records of the same distribution, none of which was trained on; "closer" compares with the nearest
of these. No printed number of the paper was taken as a claim: the targets are ours.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from remanence.attacks import NewtonStep
from remanence.data import Split, load, split
from remanence.experiments import Claim, Experiment, Point, Reconstructed, Scale, Victims
from remanence.experiments.evaluations import Accuracy
from remanence.metrics import MSE, SSIM, identity
from remanence.models import initial_params, mlp
from remanence.releases import before_and_after
from remanence.training import SGD, QuasiNewton, Training
from remanence.types import Params

SIZES: Mapping[Scale, Mapping[str, int]] = {
    "smoke": {"private": 20, "fixed": 299, "public": 600, "test": 500},
    "small": {"private": 100, "fixed": 999, "public": 5000, "test": 1000},
    "full": {"private": 1000, "fixed": 1999, "public": 20_000, "test": 1000},
}
CIFAR10 = {"private": 100, "fixed": 1999, "public": 10_000, "test": 1000}
NETWORKS: Mapping[Scale, Mapping[str, int]] = {
    "smoke": {"private": 10, "fixed": 199, "public": 600, "test": 500},
    "small": {"private": 20, "fixed": 299, "public": 2000, "test": 500},
    "full": {"private": 30, "fixed": 499, "public": 10_000, "test": 1000},
}
SCORES = Reconstructed(matching=identity, metrics=(MSE, SSIM))
CLOSER = "share closer than the nearest neighbour"
# scikit-learn's default solver: its tolerance and number of iterations, from zero, intercepts not decayed
SCIKIT_LEARN = Training(optimizer=QuasiNewton(tolerance=1e-4, preconditioned=False), epochs=100, decay_biases=False)


def softmax_regression(scale: Scale) -> Sequence[Experiment]:
    """MNIST: one deleted record of softmax regression, by weight decay, with and without public records."""
    decays = (1e-2,) if scale == "smoke" else (1e-1, 1e-2, 1e-3, 1e-4) if scale == "small" else (1e-2, 1e-3)
    source, sizes = "digits" if scale == "smoke" else "mnist", SIZES[scale]
    experiments = list[Experiment]()
    for decay in decays:
        converged = Training(optimizer=QuasiNewton(), epochs=2000, weight_decay=decay)
        experiments += _pair(f"weight decay {decay:g}", _victims(source, sizes, converged), decay)
    sizes = {**sizes, "private": min(sizes["private"], 200)}
    early = replace(SCIKIT_LEARN, weight_decay=1e-2)
    return [*experiments, *_pair("scikit-learn's default tolerance", _victims(source, sizes, early), None)]


def cifar10(scale: Scale) -> Sequence[Experiment]:
    """CIFAR-10: one deleted photograph of softmax regression, with and without public records."""
    sizes = CIFAR10 if scale == "full" else {**SIZES["smoke"], "private": 5 if scale == "smoke" else 30}
    source = "digits" if scale == "smoke" else "cifar10"
    converged = Training(optimizer=QuasiNewton(), epochs=2000, weight_decay=1e-2)
    return _pair("weight decay 0.01", _victims(source, sizes, converged), None)


def networks(scale: Scale) -> Sequence[Experiment]:
    """MNIST: one deleted record of an MLP with one hidden layer of 32 neurons, by weight decay."""
    experiments = list[Experiment]()
    for decay in (1e-2,) if scale == "smoke" else (1e-2, 1e-3):
        training = Training(
            optimizer=SGD(lr=0.2, momentum=0.9), epochs=300 if scale == "smoke" else 1000, weight_decay=decay
        )
        victims = _victims("digits" if scale == "smoke" else "mnist", NETWORKS[scale], training, hidden=(32,))
        experiments += _pair(f"32 hidden neurons, weight decay {decay:g}", victims, None)
    return experiments


def _victims(source: str, sizes: Mapping[str, int], training: Training, *, hidden: tuple[int, ...] = ()) -> Victims:
    return Victims(
        split=_split(source, sizes),
        model=lambda data: mlp(data.shape, data.num_classes, hidden=hidden, activation=nn.ReLU),
        training=training,
        reveal=before_and_after,
        shows_public=True,
        per_victim=1,
        initial=_zeros if not hidden else lambda model, seed: initial_params(model, seed=seed),
    )


def _split(source: str, sizes: Mapping[str, int]) -> Callable[[int], Split]:
    """In double precision, as scikit-learn trains."""
    return lambda seed: split(load(source), **sizes, seed=seed).to("cpu", torch.float64)


def _zeros(model: nn.Module, seed: int) -> Params:
    return {name: torch.zeros_like(p) for name, p in initial_params(model, seed=seed).items()}


def _pair(label: str, victims: Victims, decay: float | None) -> list[Experiment]:
    """The attack with public records and without; `decay` is its position on the axis."""
    claim = Claim(quantity=CLOSER, higher_is_better=True, target=0.9, where="our target")
    attacks = {"public records": NewtonStep(), "no public records": NewtonStep(curvature="decay")}
    return [
        Experiment(
            label=f"{label}, {name}",
            victims=victims,
            attack=attack,
            evaluations=(SCORES, Accuracy()),
            claims=(claim,) if decay is not None and name == "public records" else (),
            point=None if decay is None else Point(axis="weight decay", value=decay, series=name, log=True),
            tuned_on_truth=True,  # shrinkage and brightness on 60 MNIST targets of seed 0, soft labels on 20
        )
        for name, attack in attacks.items()
    ]
