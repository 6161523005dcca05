"""Haim, Vardi, Yehudai, Shamir, Irani, "Reconstructing Training Data from Trained Neural Networks" (NeurIPS 2022):
binary classifiers, from their final weights alone; with the regression of Buzaglo et al. (NeurIPS 2023), which has one
output too.

The paper's victims have no weight decay and start from a small first layer; with them stand victims that converge under
weight decay. Budgets: see `weights_alone`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from remanence.experiments import Claim, Experiment, Scale
from remanence.training import Logistic, SquaredError
from remanence_recipes.weights_alone.evaluation import study
from remanence_recipes.weights_alone.target import FULL, Target

PER_GROUP: Mapping[Scale, int] = {"smoke": 10, "small": 25, "full": 250}
DECAY: Mapping[Scale, float] = {"smoke": 1e-2, "small": 3e-3, "full": 3e-3}
REGRESSION_DECAY: Mapping[Scale, float] = {"smoke": 1e-2, "small": 3e-3, "full": 7.5e-4}  # the last is published


def cifar10_binary(scale: Scale) -> Sequence[Experiment]:
    """CIFAR-10, animals against vehicles: from a small first layer without weight decay, and with it."""
    claim = Claim(
        quantity="SSIM above 0.4 as published, KKT",
        higher_is_better=True,
        printed=17,
        where="the authors' notebook for CIFAR-10, read off its picture; 2,000 unrelated images reach 32",
    )
    return _pair(_binary(scale), "animals and vehicles", claims=(claim,))


def mnist_binary(scale: Scale) -> Sequence[Experiment]:
    """MNIST, odd digits against even ones: from a small first layer without weight decay, and with it."""
    return _pair(replace(_binary(scale), source="mnist"), "odd and even digits")


def regression(scale: Scale) -> Sequence[Experiment]:
    """CIFAR-10 with numbers for classes and squared errors (Buzaglo et al. 2023): multipliers of either sign."""
    lr = 0.03 if scale == "full" else None  # at the usual one squared errors of 500 photographs diverge
    target = replace(_binary(scale), loss=SquaredError(), decay=REGRESSION_DECAY[scale], lr=lr)
    return _pair(target, "numbers -1 and 1")


def _binary(scale: Scale) -> Target:
    return Target(
        scale=scale, per_class=PER_GROUP[scale], classes=2, loss=Logistic(), decay=DECAY[scale], effort=FULL[scale]
    )


def _pair(target: Target, what: str, *, claims: Sequence[Claim] = ()) -> list[Experiment]:
    """The paper's initial weights without weight decay, and PyTorch's with it."""
    small = replace(target, decay=0.0, small_first=True, by_loss=not isinstance(target.loss, SquaredError))
    lr = ", at a learning rate that rises as the loss falls (published: a constant one)" if small.by_loss else ""
    about = f"{target.records} records, {what}, reconstructed from the final weights alone"
    return [
        study("small first layer", f"{about}; no weight decay{lr}.", small, claims=claims),
        study("weight decay", f"{about}; weight decay {target.decay:g}.", target),
    ]
