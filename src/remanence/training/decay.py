"""The fraction of the initial weights that weight decay leaves."""

from dataclasses import replace

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.training.optimizers import SGD
from remanence.training.training import Training
from remanence.types import Params


def remaining_fraction(training: Training, steps: int, *, records: int = 1) -> float:
    """The fraction of the initial weights that is left after `steps` steps of SGD, by weight decay alone; `records`
    determines the number of steps per epoch, for the learning-rate schedule."""
    if not isinstance(training.optimizer, SGD):
        message = f"`optimizer` must be SGD, for which the effect of weight decay is known, got {training.optimizer}"
        raise BadInput(message, code="unsupported-training", argument="optimizer")

    def zero_gradient(params: Params, _batch: Tensor | None) -> Params:
        return {name: torch.zeros_like(p) for name, p in params.items()}

    plain, one = replace(training, privacy=None), {"fraction": torch.ones((), dtype=torch.float64)}
    return float(plain.descend(zero_gradient, one, [None] * steps, records=records, noise_seed=0)["fraction"])
