from remanence.training.in_full import ByLoss, UntilRest
from remanence.training.losses import CrossEntropy, KnownLoss, Logistic, Loss, SquaredError
from remanence.training.optim import SGD, Adam, AdamW, Optimizer, RMSProp
from remanence.training.privacy import DPGD
from remanence.training.together import train_together
from remanence.training.train import Training

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
    "train_together",
]
