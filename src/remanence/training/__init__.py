from remanence.training.decay import remaining_fraction
from remanence.training.dp import DPGD
from remanence.training.in_full import ByLoss, UntilRest
from remanence.training.losses import CrossEntropy, KnownLoss, Logistic, Loss, SquaredError
from remanence.training.optimizers import SGD, Adam, AdamW, Optimizer, RMSProp
from remanence.training.together import train_together
from remanence.training.training import Training

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
    "RMSProp",
    "SquaredError",
    "Training",
    "UntilRest",
    "remaining_fraction",
    "train_together",
]
