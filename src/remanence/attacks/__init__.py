"""The attacks, one file per paper. A new one joins `ATTACKS` and the contract table in tests/test_contract.py."""

from remanence.attacks._hermite import hermite_coefficients, telling_order, vanishes
from remanence.attacks._search import LBFGS
from remanence.attacks._wide_layer import WideLayer
from remanence.attacks.base import Attack, ShadowAttack
from remanence.attacks.equilibrium import Equilibrium
from remanence.attacks.first_layer import FirstLayer
from remanence.attacks.glm import GLM
from remanence.attacks.gradient_matching import L2, Cosine, GradientMatching
from remanence.attacks.kkt import KKT, KKTRun
from remanence.attacks.labels import infer_labels
from remanence.attacks.linearised import Linearised
from remanence.attacks.mnemonist import FittedMnemonist, Importance, Mnemonist
from remanence.attacks.reconn import FittedRecoNN, RecoNN
from remanence.attacks.simudy import SimuDy
from remanence.attacks.span import Span, read_span, share_left
from remanence.attacks.stein import Stein
from remanence.attacks.unknown import Count, contributions, count_needed, find_labels, find_rate, find_training

ATTACKS = (GradientMatching, FirstLayer, Stein, RecoNN, Mnemonist, GLM, KKT, Equilibrium, SimuDy, Linearised)

__all__ = [
    "ATTACKS",
    "GLM",
    "KKT",
    "L2",
    "LBFGS",
    "Attack",
    "Cosine",
    "Count",
    "Equilibrium",
    "FirstLayer",
    "FittedMnemonist",
    "FittedRecoNN",
    "GradientMatching",
    "Importance",
    "KKTRun",
    "Linearised",
    "Mnemonist",
    "RecoNN",
    "ShadowAttack",
    "SimuDy",
    "Span",
    "Stein",
    "WideLayer",
    "contributions",
    "count_needed",
    "find_labels",
    "find_rate",
    "find_training",
    "hermite_coefficients",
    "infer_labels",
    "read_span",
    "share_left",
    "telling_order",
    "vanishes",
]
