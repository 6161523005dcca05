"""Figure 6: CIFAR-100, and what is found as the training set grows.

The paper trains a net of width 10,000 on 5,000 images, and shows "a few dozens" above SSIM 0.4. One epoch of it takes 4
TFLOP and one step of either attack 9 to 17: three minutes of one GPU pay for some hundred of each, and neither training
nor search is at its end by then. So the figure is a curve: what is found in nets of the usual width against the number
of images, with all that training and search need, and at paper scale the 5,000 images as far as three minutes carry.
"""

from collections.abc import Sequence
from dataclasses import replace

from remanence.experiments import Experiment, Scale
from remanence_recipes.buzaglo2023.figures import plain, surveyed
from remanence_recipes.weights_alone.sweep import Sweep
from remanence_recipes.weights_alone.target import Effort

CLASSES: dict[Scale, int] = {"smoke": 10, "small": 50, "full": 100}
PER_CLASS: dict[Scale, tuple[int, ...]] = {"smoke": (1, 2), "small": (1, 2, 4), "full": (1, 2, 5, 10)}
WIDE = (10_000, 10_000)
AS_FAR_AS_TIME_CARRIES = Effort(epochs=600, steps=150, restarts=1)


def figure6_cifar100(scale: Scale) -> Sequence[Experiment]:
    """Figure 6: CIFAR-100, found against the number of images; at paper scale also 5,000 images and width 10,000."""
    target = replace(plain(scale), source="cifar100", classes=CLASSES[scale])
    points = {CLASSES[scale] * count: surveyed(target, count) for count in PER_CLASS[scale]}
    about = "More and more images of as many classes: what share of them is found?"
    studies = [Sweep(axis="images", curves={"": points}, victims=1, log=True).study("found against images", about)]
    if scale == "full":
        wide = replace(target, per_class=50, hidden=WIDE, lr=0.03, effort=AS_FAR_AS_TIME_CARRIES)
        sweep = Sweep(axis="images", curves={"": {wide.records: wide}}, victims=1)
        studies.append(sweep.study("5,000 images, width 10,000", "5,000 images of 100 classes, hidden width 10,000."))
    return studies
