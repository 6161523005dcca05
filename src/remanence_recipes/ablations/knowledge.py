"""What Stationarity is given beforehand, taken away piece by piece: balanced labels, the mean of the training records.

remanence run ablations.weights_alone_knowledge --scale full --device cuda     one GPU: about a minute each
expected      most of the records as the paper trains, fewer of other classes' numbers, least without any centring
"""

from collections.abc import Sequence
from dataclasses import replace

from remanence.experiments import Experiment, Scale
from remanence_recipes.weights_alone.evaluation import study
from remanence_recipes.weights_alone.target import FULL, Target

PER_CLASS: dict[Scale, int] = {"smoke": 2, "small": 5, "full": 50}
UNCENTRED_LR = 0.02  # at 0.1 victims of photographs in [0, 1] learn nothing


def weights_alone_knowledge(scale: Scale) -> Sequence[Experiment]:
    """Stationarity on weights alone, without balanced labels and without the mean of the training records."""
    effort = replace(FULL[scale], iterations=0)
    usual = Target(scale=scale, per_class=PER_CLASS[scale], effort=effort, decay=0.003 if scale == "full" else 0.01)
    targets = {
        "balanced labels, mean of the training records": usual,
        "any labels": replace(usual, balanced=False),
        "mean of public records": replace(usual, centre="public"),
        "any labels, mean of public records": replace(usual, balanced=False, centre="public"),
        "any labels, inputs as they are": replace(usual, balanced=False, centre="none", lr=UNCENTRED_LR),
    }
    about = "The number of records is known; labels and images are not."
    return [study(name, about, target) for name, target in targets.items()]
