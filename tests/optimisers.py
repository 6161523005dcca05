"""Every optimiser setting that the tests of training go through."""

from remanence import SGD, Adam, AdamW, RMSProp
from remanence.training import Optimizer

OPTIMIZERS: list[Optimizer] = [
    SGD(lr=0.3),
    SGD(lr=0.2, momentum=0.9),
    Adam(lr=0.01),
    AdamW(lr=0.01, weight_decay=0.1),
    RMSProp(lr=0.01),
]
