"""Figures 2, 4 and 5: how many classes there are, and weight decay."""

from collections.abc import Sequence
from dataclasses import replace

from remanence.experiment import Scale, Study
from remanence_recipes.buzaglo2023.setting import Target, studies

PER_CLASS: dict[Scale, int] = {"smoke": 2, "small": 5, "paper": 50}
DECAY: dict[Scale, float] = {"smoke": 1e-2, "small": 3e-3, "paper": 1e-3}


def figure2_binary_vs_multiclass(scale: Scale) -> Sequence[Study]:
    """Figure 2: two groups against ten classes, equally many records; SSIM against the distance from the boundary."""
    decay = DECAY[scale]
    targets = {
        "ten classes": Target(scale=scale, per_class=PER_CLASS[scale], classes=10, decay=decay),
        "two groups": Target(scale=scale, per_class=5 * PER_CLASS[scale], classes=2, decay=decay, binary=True),
    }
    if scale == "paper":  # the figure's own: from a small first layer, without decay
        for label, target in list(targets.items()):
            targets[f"{label}, no decay"] = replace(target, decay=0.0, small_first=True)
    return studies(targets, _about)


def figure4_weight_decay(scale: Scale) -> Sequence[Study]:
    """Figures 4 and 5: from no weight decay, with both kinds of first weights, over a grid of it; SSIM and margins."""
    grid = {"smoke": (1e-2,), "small": (1e-3, 3e-3, 1e-2), "paper": (1e-4, 3e-4, 7.5e-4, 1e-3, 3e-3, 1e-2)}[scale]
    plain = Target(scale=scale, per_class=PER_CLASS[scale], classes=10, decay=0.0)
    targets = {"no decay, small first layer": replace(plain, small_first=True)}
    if scale != "smoke":
        targets["no decay"] = plain
    for decay in grid:
        targets[f"decay {decay:g}"] = replace(plain, decay=decay)
    return studies(targets, _about)


def _about(target: Target) -> str:
    kind = "two groups" if target.binary else f"{target.classes} classes"
    trained = f"weight decay {target.decay:g}" if target.decay else "no weight decay"
    return f"{target.records} records of {kind}, trained with {trained}, read back from the final weights alone."
