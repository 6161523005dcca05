from remanence.training.optim import SGD, Adam, AdamW, Optimizer, RMSProp
from remanence.training.privacy import DPGD
from remanence.training.train import CrossEntropy, Loss, SquaredError, Training

__all__ = ["DPGD", "SGD", "Adam", "AdamW", "CrossEntropy", "Loss", "Optimizer", "RMSProp", "SquaredError", "Training"]
