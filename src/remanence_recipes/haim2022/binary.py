"""Two groups and one output: animals of CIFAR-10, odd digits of MNIST, and numbers in place of classes."""

from collections.abc import Sequence
from dataclasses import replace

from remanence.experiments import Claim, Experiment, Scale
from remanence.training import KnownLoss, Logistic, SquaredError
from remanence_recipes.weights_alone.reading import study
from remanence_recipes.weights_alone.target import FULL, Source, Target

PER_GROUP: dict[Scale, int] = {"smoke": 10, "small": 25, "full": 250}
DECAY: dict[Scale, float] = {"smoke": 1e-2, "small": 3e-3, "full": 3e-3}
REGRESSION_DECAY: dict[Scale, float] = {"smoke": 1e-2, "small": 3e-3, "full": 7.5e-4}  # the last is published
PRINTED = Claim(
    quantity="SSIM above 0.4 as published, KKT",
    higher_is_better=True,
    printed=17,
    where="the authors' notebook for CIFAR-10, read off its picture; 2,000 unrelated images reach 32",
)


def cifar10_binary(scale: Scale) -> Sequence[Experiment]:
    """CIFAR-10, animals against vehicles: from a small first layer as published, and with weight decay."""
    return _pair(scale, "cifar10", Logistic(), DECAY[scale], "animals and vehicles", claims=(PRINTED,))


def mnist_binary(scale: Scale) -> Sequence[Experiment]:
    """MNIST, odd digits against even ones: from a small first layer as published, and with weight decay."""
    return _pair(scale, "mnist", Logistic(), DECAY[scale], "odd and even digits")


def regression(scale: Scale) -> Sequence[Experiment]:
    """CIFAR-10 with numbers for classes and squared errors (Buzaglo et al. 2023): multipliers of either sign."""
    slow = 0.03 if scale == "full" else None  # at the usual rate squared errors of 500 photographs diverge
    return _pair(scale, "cifar10", SquaredError(), REGRESSION_DECAY[scale], "numbers -1 and 1", lr=slow)


def _pair(
    scale: Scale,
    source: Source,
    loss: KnownLoss,
    decay: float,
    what: str,
    *,
    lr: float | None = None,
    claims: Sequence[Claim] = (),
) -> list[Experiment]:
    target = Target(
        scale=scale,
        per_class=PER_GROUP[scale],
        classes=2,
        source=source,
        loss=loss,
        decay=decay,
        lr=lr,
        effort=FULL[scale],
    )
    published = replace(target, decay=0.0, small_first=True, by_loss=not isinstance(loss, SquaredError))
    rate = ", at a rate that rises as the loss falls (published: a constant one)" if published.by_loss else ""
    about = f"{target.records} records, {what}, read back from the final weights alone"
    return [
        study("small first layer", f"{about}; no weight decay, as published{rate}.", published, claims=claims),
        study("weight decay", f"{about}; weight decay {decay:g}.", target),
    ]
