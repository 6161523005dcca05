"""remanence measures how much of the training data can be reconstructed from what was released.

The common nouns are here; attacks, metrics, models, releases, defenses and diagnostics are namespaces. Each is
loaded when it is first asked for, so that the command line starts without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        FineTunedUnknownRecipe,
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

_HOMES: dict[str, tuple[str, ...]] = {
    "remanence": ("attacks", "diagnostics", "metrics", "models", "releases"),
    "remanence.attacks": ("Attack",),
    "remanence.auditing": ("Report", "applicable", "audit", "from_sklearn"),
    "remanence.data": ("Split", "load", "split"),
    "remanence.errors": ("BadInput", "NotEnoughKnowledge"),
    "remanence.experiments": ("Experiment", "Victims", "run_experiment", "sweep"),
    "remanence.metrics": ("evaluate",),
    "remanence.releases": (
        "AllButOne",
        "AllButOneUnknownInit",
        "FineTuned",
        "FineTunedUnknownRecipe",
        "Gradient",
        "LocalUpdate",
        "Victim",
        "WeightsOnly",
        "defenses",
        "train_victim",
    ),
    "remanence.releases.loading": ("load_weights", "save_weights"),
    "remanence.training": (
        "DPGD",
        "SGD",
        "Adam",
        "AdamW",
        "CrossEntropy",
        "Logistic",
        "RMSProp",
        "SquaredError",
        "Training",
    ),
    "remanence.types": ("Data", "Reconstruction"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

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
    "FineTunedUnknownRecipe",
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


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name == "__version__":
        from remanence.experiments.provenance import version

        return version()
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    found = import_module(f"{home}.{name}") if home == "remanence" else getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
