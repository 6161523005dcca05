"""What weight decay leaves of the initial weights."""

from dataclasses import replace

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.training.optimizers import SGD
from remanence.training.training import Training
from remanence.types import Params


def remaining_fraction(training: Training, steps: int, *, records: int = 1) -> float:
    """Fraction of the initial weights that `steps` steps of SGD leave, by weight decay alone; `records` tells how many
    steps an epoch has, for a schedule of the learning rate."""
    if not isinstance(training.optimizer, SGD):
        raise BadInput(f"what is left of the initial weights is known for SGD only, got {training.optimizer}")

    def zero_gradient(params: Params, _batch: Tensor | None) -> Params:
        return {name: torch.zeros_like(p) for name, p in params.items()}

    plain, one = replace(training, privacy=None), {"fraction": torch.ones((), dtype=torch.float64)}
    return float(plain.descend(zero_gradient, one, [None] * steps, records=records, noise_seed=0)["fraction"])
