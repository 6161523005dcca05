"""Knowledge is a type: a victim is trained, a reveal function splits it into what is shown and what is withheld."""

from remanence.release.knowledge import (
    KnowsFinal,
    KnowsFixed,
    KnowsGradient,
    KnowsRest,
    KnowsTraining,
    KnowsUpdate,
    require,
)
from remanence.release.records import (
    AllButOne,
    AllButOneAndTheStart,
    Gradient,
    InitialAndFinalWeights,
    LocalUpdate,
    WeightsOnly,
)
from remanence.release.reveal import (
    Case,
    Reveal,
    all_but_one,
    all_but_one_and_the_start,
    gradient_at_final,
    gradient_at_initial,
    initial_and_final,
    local_update,
    weights_only,
)
from remanence.release.victim import Victim, check_fit, fit_of, train_victim, train_victims

__all__ = [
    "AllButOne",
    "AllButOneAndTheStart",
    "Case",
    "Gradient",
    "InitialAndFinalWeights",
    "KnowsFinal",
    "KnowsFixed",
    "KnowsGradient",
    "KnowsRest",
    "KnowsTraining",
    "KnowsUpdate",
    "LocalUpdate",
    "Reveal",
    "Victim",
    "WeightsOnly",
    "all_but_one",
    "all_but_one_and_the_start",
    "check_fit",
    "fit_of",
    "gradient_at_final",
    "gradient_at_initial",
    "initial_and_final",
    "local_update",
    "require",
    "train_victim",
    "train_victims",
    "weights_only",
]
