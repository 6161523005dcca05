from remanence.training.optim import SGD, Adam, Optimizer
from remanence.training.train import CrossEntropy, Loss, Training

__all__ = ["SGD", "Adam", "CrossEntropy", "Loss", "Optimizer", "Training"]
