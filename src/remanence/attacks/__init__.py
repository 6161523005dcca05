"""The attacks, one file per paper. A new one joins `ATTACKS` and the contract table in tests/test_contract.py; `DAGER`,
which reconstructs token ids, has a contract of its own (docs/decisions/0023-token-records.md)."""

from remanence.attacks.base import Attack, ShadowAttack
from remanence.attacks.embeddings.inversion import DecoderFitting, EmbeddingInversion, FittedInversion
from remanence.attacks.finetuning.linearised import Linearised
from remanence.attacks.finetuning.simudy import SimuDy
from remanence.attacks.finetuning.simulation import Simulation
from remanence.attacks.finetuning.unknowns import (
    Count,
    contributions,
    count_needed,
    find_labels,
    find_rate,
    find_training,
)
from remanence.attacks.gradients.dager import DAGER
from remanence.attacks.gradients.first_layer import FirstLayer
from remanence.attacks.gradients.gradient_matching import GradientMatching
from remanence.attacks.gradients.labels import infer_labels
from remanence.attacks.gradients.r_gap import RGAP
from remanence.attacks.gradients.spear import SPEAR
from remanence.attacks.gradients.stein import Stein
from remanence.attacks.gradients.tensor.identifiability import hermite_coefficients, identifying_order, vanishes
from remanence.attacks.gradients.tensor.wide_layer import WideLayer
from remanence.attacks.gradients.token_rows import infer_tokens
from remanence.attacks.one_unknown.differencing import Differencing
from remanence.attacks.one_unknown.fitting import Fitting
from remanence.attacks.one_unknown.glm import GLM
from remanence.attacks.one_unknown.losses import ImageLoss
from remanence.attacks.one_unknown.mnemonist import FittedMnemonist, Importance, Mnemonist
from remanence.attacks.one_unknown.reconn import FittedRecoNN, RecoNN
from remanence.attacks.one_unknown.training_inversion import TrainingInversion
from remanence.attacks.versions.newton_step import NewtonStep
from remanence.attacks.weights.features import ConvStationarity
from remanence.attacks.weights.kkt import KKT, KKTRun
from remanence.attacks.weights.preprocessing import Preprocessing
from remanence.attacks.weights.stationarity import Powers, Rounds, ShiftedSurrogate, Stationarity
from remanence.engine.surrogate import Surrogate
from remanence.search import (
    L2,
    LBFGS,
    Constant,
    Cosine,
    CosineAnnealing,
    ImagePrior,
    MultiStep,
    Search,
    SoftLabels,
    TotalVariation,
    Whitening,
    with_search,
)
from remanence.shadow.features import WeightFeatures

ATTACKS = (
    *(GradientMatching, FirstLayer, Stein, RecoNN, Mnemonist, GLM, Differencing, KKT, Stationarity, SimuDy),
    *(ConvStationarity, Linearised, NewtonStep, RGAP, SPEAR, TrainingInversion),
)

__all__ = [
    "ATTACKS",
    "DAGER",
    "GLM",
    "KKT",
    "L2",
    "LBFGS",
    "RGAP",
    "SPEAR",
    "Attack",
    "Constant",
    "ConvStationarity",
    "Cosine",
    "CosineAnnealing",
    "Count",
    "DecoderFitting",
    "Differencing",
    "EmbeddingInversion",
    "FirstLayer",
    "FittedInversion",
    "FittedMnemonist",
    "FittedRecoNN",
    "Fitting",
    "GradientMatching",
    "ImageLoss",
    "ImagePrior",
    "Importance",
    "KKTRun",
    "Linearised",
    "Mnemonist",
    "MultiStep",
    "NewtonStep",
    "Powers",
    "Preprocessing",
    "RecoNN",
    "Rounds",
    "Search",
    "ShadowAttack",
    "ShiftedSurrogate",
    "SimuDy",
    "Simulation",
    "SoftLabels",
    "Stationarity",
    "Stein",
    "Surrogate",
    "TotalVariation",
    "TrainingInversion",
    "WeightFeatures",
    "Whitening",
    "WideLayer",
    "contributions",
    "count_needed",
    "find_labels",
    "find_rate",
    "find_training",
    "hermite_coefficients",
    "identifying_order",
    "infer_labels",
    "infer_tokens",
    "vanishes",
    "with_search",
]
