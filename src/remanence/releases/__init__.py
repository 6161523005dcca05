"""The attacker's knowledge as types: a reveal function splits a victim into a release and the withheld truth."""

from remanence.releases.protocols import (
    KnowsAllButOne,
    KnowsFinal,
    KnowsFixed,
    KnowsGradient,
    KnowsTraining,
    KnowsUpdate,
    require,
)
from remanence.releases.releases import (
    AllButOne,
    AllButOneUnknownInit,
    FineTuned,
    Gradient,
    LocalUpdate,
    WeightsOnly,
)
from remanence.releases.reveal import (
    Case,
    Reveal,
    all_but_one,
    all_but_one_unknown_init,
    fine_tuned,
    gradient_at_final,
    gradient_at_initial,
    local_update,
    weights_only,
)
from remanence.releases.victim import Victim, check_fit, fit_of, train_victim, train_victims

__all__ = [
    "AllButOne",
    "AllButOneUnknownInit",
    "Case",
    "FineTuned",
    "Gradient",
    "KnowsAllButOne",
    "KnowsFinal",
    "KnowsFixed",
    "KnowsGradient",
    "KnowsTraining",
    "KnowsUpdate",
    "LocalUpdate",
    "Reveal",
    "Victim",
    "WeightsOnly",
    "all_but_one",
    "all_but_one_unknown_init",
    "check_fit",
    "fine_tuned",
    "fit_of",
    "gradient_at_final",
    "gradient_at_initial",
    "local_update",
    "require",
    "train_victim",
    "train_victims",
    "weights_only",
]
