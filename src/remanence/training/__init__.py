"""The victim's algorithm: what is minimised, by which steps, with which noise."""

from remanence.training.dp import DPGD
from remanence.training.losses import CrossEntropy, KnownLoss, Logistic, Loss, SquaredError, count_classes
from remanence.training.optimizers import SGD, Adam, AdamW, Optimizer, QuasiNewton, RMSProp
from remanence.training.schedules import ByLoss, UntilStationary
from remanence.training.training import Training, remaining_fraction

__all__ = [
    "DPGD",
    "SGD",
    "Adam",
    "AdamW",
    "ByLoss",
    "CrossEntropy",
    "KnownLoss",
    "Logistic",
    "Loss",
    "Optimizer",
    "QuasiNewton",
    "RMSProp",
    "SquaredError",
    "Training",
    "UntilStationary",
    "count_classes",
    "remaining_fraction",
]
