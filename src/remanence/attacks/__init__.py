"""The attacks, one file per paper. A new one joins `ATTACKS` and the contract table in tests/test_contract.py."""

from remanence.attacks._hermite import hermite_coefficients, telling_order, vanishes
from remanence.attacks._wide_layer import WideLayer
from remanence.attacks.base import Attack, ShadowAttack
from remanence.attacks.glm import GLM
from remanence.attacks.gradient_matching import L2, Cosine, GradientMatching
from remanence.attacks.mnemonist import FittedMnemonist, Importance, Mnemonist
from remanence.attacks.reconn import FittedRecoNN, RecoNN
from remanence.attacks.stein import Stein

ATTACKS = (GradientMatching, Stein, RecoNN, Mnemonist, GLM)

__all__ = [
    "ATTACKS",
    "GLM",
    "L2",
    "Attack",
    "Cosine",
    "FittedMnemonist",
    "FittedRecoNN",
    "GradientMatching",
    "Importance",
    "Mnemonist",
    "RecoNN",
    "ShadowAttack",
    "Stein",
    "WideLayer",
    "hermite_coefficients",
    "telling_order",
    "vanishes",
]
