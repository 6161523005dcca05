"""remanence measures how much of the training data can be reconstructed from what was released.

The common nouns are here; attacks, metrics, models, releases, defenses and diagnostics are namespaces.
"""

from remanence import attacks, diagnostics, metrics, models, releases
from remanence.attacks import Attack
from remanence.auditing import Report, applicable, audit, from_sklearn
from remanence.data import Split, load, split
from remanence.errors import BadInput, NotEnoughKnowledge
from remanence.experiments import Experiment, Victims, run_experiment, sweep
from remanence.metrics import evaluate
from remanence.releases import (
    AllButOne,
    AllButOneUnknownInit,
    FineTuned,
    Gradient,
    LocalUpdate,
    Victim,
    WeightsOnly,
    defenses,
    train_victim,
)
from remanence.releases.loading import load_weights, save_weights
from remanence.training import (
    DPGD,
    SGD,
    Adam,
    AdamW,
    CrossEntropy,
    Logistic,
    RMSProp,
    SquaredError,
    Training,
)
from remanence.types import Data, Reconstruction

__all__ = [
    "DPGD",
    "SGD",
    "Adam",
    "AdamW",
    "AllButOne",
    "AllButOneUnknownInit",
    "Attack",
    "BadInput",
    "CrossEntropy",
    "Data",
    "Experiment",
    "FineTuned",
    "Gradient",
    "LocalUpdate",
    "Logistic",
    "NotEnoughKnowledge",
    "RMSProp",
    "Reconstruction",
    "Report",
    "Split",
    "SquaredError",
    "Training",
    "Victim",
    "Victims",
    "WeightsOnly",
    "applicable",
    "attacks",
    "audit",
    "defenses",
    "diagnostics",
    "evaluate",
    "from_sklearn",
    "load",
    "load_weights",
    "metrics",
    "models",
    "releases",
    "run_experiment",
    "save_weights",
    "split",
    "sweep",
    "train_victim",
]
