"""Figures 3 and 8: the number of classes, with as many records of each class, and with as many in all."""

from collections.abc import Sequence

from remanence.experiments import Experiment, Scale
from remanence_recipes.buzaglo2023.figures import plain, surveyed
from remanence_recipes.weights_alone.sweep import Sweep

CLASSES: dict[Scale, tuple[int, ...]] = {"smoke": (2, 10), "small": (2, 5, 10), "full": (2, 3, 4, 5, 10)}
PER_CLASS: dict[Scale, tuple[int, ...]] = {"smoke": (5,), "small": (1, 5, 10), "full": (1, 5, 10, 50)}
FIXED: dict[Scale, int] = {"smoke": 20, "small": 60, "full": 500}
FIXED_VICTIMS: dict[Scale, int] = {"smoke": 2, "small": 3, "full": 3}


def figure3_classes(scale: Scale) -> Sequence[Experiment]:
    """Figure 3: the number of classes by the number of records of each; what is found, and SSIM above 0.4."""
    curves = {
        f"{count} of each": {classes: surveyed(plain(scale), count, classes=classes) for classes in CLASSES[scale]}
        for count in PER_CLASS[scale]
    }
    about = "Victims of more and more classes, with few or many records of each: what share of their records is found?"
    return [Sweep(axis="classes", curves=curves, victims=2).study("classes by records of each", about)]


def figure8_fixed_500(scale: Scale) -> Sequence[Experiment]:
    """Figure 8 (appendix B): the number of classes with 500 records in all, fewer below paper scale."""
    records = FIXED[scale]
    points = {classes: surveyed(plain(scale), records // classes, classes=classes) for classes in CLASSES[scale]}
    about = f"{records} records in all, of more and more classes: what share of them is found?"
    sweep = Sweep(axis="classes", curves={"": points}, victims=FIXED_VICTIMS[scale])
    return [sweep.study("classes, records fixed", about)]
