"""remanence: how much of the training data can be read back from what was released?"""

from remanence.attacks import L2, Attack, Cosine, GradientMatching, RecoNN, ShadowAttack
from remanence.audit import Finding, audit
from remanence.data import Split, load, split
from remanence.errors import BadInput, BadModelFile, NotEnoughKnowledge
from remanence.experiment import Cell, Claim, Recipe, run_cell
from remanence.loading import load_weights, save_weights
from remanence.metrics import Matching, Metric, Scores, evaluate
from remanence.nets import cnn, initial_params, mlp
from remanence.release import (
    AllButOne,
    Case,
    Gradient,
    InitialAndFinalWeights,
    Victim,
    WeightsOnly,
    all_but_one,
    gradient_at_final,
    gradient_at_initial,
    initial_and_final,
    train_victim,
    train_victims,
    weights_only,
)
from remanence.shadow import ShadowBank, build_bank
from remanence.training import SGD, Adam, AdamW, RMSProp, Training
from remanence.types import Data, Params, Reconstruction

__all__ = [
    "L2",
    "SGD",
    "Adam",
    "AdamW",
    "AllButOne",
    "Attack",
    "BadInput",
    "BadModelFile",
    "Case",
    "Cell",
    "Claim",
    "Cosine",
    "Data",
    "Finding",
    "Gradient",
    "GradientMatching",
    "InitialAndFinalWeights",
    "Matching",
    "Metric",
    "NotEnoughKnowledge",
    "Params",
    "RMSProp",
    "Recipe",
    "RecoNN",
    "Reconstruction",
    "Scores",
    "ShadowAttack",
    "ShadowBank",
    "Split",
    "Training",
    "Victim",
    "WeightsOnly",
    "all_but_one",
    "audit",
    "build_bank",
    "cnn",
    "evaluate",
    "gradient_at_final",
    "gradient_at_initial",
    "initial_and_final",
    "initial_params",
    "load",
    "load_weights",
    "mlp",
    "run_cell",
    "save_weights",
    "split",
    "train_victim",
    "train_victims",
    "weights_only",
]
