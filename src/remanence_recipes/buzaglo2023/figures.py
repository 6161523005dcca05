"""Figures 2 and 4: how many classes there are, and weight decay."""

from collections.abc import Sequence
from dataclasses import replace

from remanence.experiments import Claim, Experiment, Scale
from remanence.training import Logistic
from remanence_recipes.weights_alone.reading import ACCURACY, FOUND, RATIO, study
from remanence_recipes.weights_alone.survey import VICTIMS, ordering
from remanence_recipes.weights_alone.target import BRIEF, FULL, Target, brief

PER_CLASS: dict[Scale, int] = {"smoke": 2, "small": 5, "full": 50}
FEW: dict[Scale, int] = {"smoke": 2, "small": 5, "full": 5}  # of each class, in surveys
DECAY: dict[Scale, float] = {"smoke": 1e-2, "small": 3e-3, "full": 3e-3}
TEN, TWO = "ten classes", "two groups"
SMALL, NONE = "no decay, small first layer", "no decay"
AT_REST = f"{SMALL}, rate by the loss"

# what we ask of ourselves; the paper prints no number
FIFTY = (Claim(quantity=f"{FOUND}, Stationarity", higher_is_better=True, target=40 / 50, where="40 of 50 images"),)
MANY = (Claim(quantity=f"{FOUND}, Stationarity", higher_is_better=True, target=100 / 500, where="100 of 500 images"),)
BEYOND_CHANCE = (
    Claim(quantity=f"{RATIO}, Stationarity", higher_is_better=True, target=5.0, where="five times the null"),
    *MANY,
)


def plain(scale: Scale) -> Target:
    """Ten classes with weight decay, from torch's first weights."""
    return Target(scale=scale, per_class=PER_CLASS[scale], effort=FULL[scale], decay=DECAY[scale])


def few(scale: Scale) -> Target:
    """Fewer records and less effort, as surveys take them."""
    return surveyed(plain(scale), FEW[scale])


def surveyed(target: Target, per_class: int, *, classes: int | None = None) -> Target:
    """As surveys take it, with so many records of each class."""
    changed = replace(target, per_class=per_class, classes=classes or target.classes)
    return replace(changed, effort=brief(target.scale, changed.records))


def grouped(target: Target) -> Target:
    """As many records in two groups."""
    return replace(target, classes=2, per_class=target.records // 2, loss=Logistic())


def figure2_binary_vs_multiclass(scale: Scale) -> Sequence[Experiment]:
    """Figure 2: two groups against ten classes, equally many records; SSIM against the distance from the boundary."""
    ten = plain(scale)
    targets = {TEN: ten, TWO: grouped(ten)}
    if scale == "full":
        at_once = replace(ten.effort, steps=3000, restarts=2, stages=1, kept=())
        fifty = replace(ten, per_class=FEW[scale], effort=at_once)
        start = replace(ten, decay=0.0, small_first=True, effort=BRIEF[scale])  # the figure's own, if not for so long
        targets |= {f"{TEN}, 50 images": fifty, f"{TEN}, {SMALL}": start, f"{TWO}, {SMALL}": grouped(start)}
    claims = {
        TEN: BEYOND_CHANCE,
        f"{TEN}, 50 images": FIFTY,
        f"{TEN}, {SMALL}": (_accuracy(0.32),),
        f"{TWO}, {SMALL}": (_accuracy(0.77),),
    }
    studies = [study(label, in_words(each), each, claims=claims.get(label, ())) for label, each in targets.items()]
    about = "Victims of ten classes and of two groups, equally many records: is more found in those of ten?"
    compared = {TEN: few(scale), TWO: grouped(few(scale))}
    return [*studies, ordering("multiclass over binary", about, compared, [(TEN, TWO)], victims=VICTIMS[scale])]


def _accuracy(printed: float) -> Claim:
    return Claim(quantity=ACCURACY, higher_is_better=True, printed=printed, where="section 4, test accuracy")


def figure4_weight_decay(scale: Scale) -> Sequence[Experiment]:
    """Figure 4: no weight decay, with both kinds of first weights, and a grid of it; SSIM against the margin."""
    targets = decays(plain(scale), scale)
    about = (
        "Victims with weight decay and without, from both kinds of first weights: is more found in those with it? At a "
        "constant rate those without it are far from rest; at one that follows the loss they come near it."
    )
    decayed = f"decay {DECAY[scale]:g}"
    compared = {name: each for name, each in decays(few(scale), scale).items() if name in (SMALL, NONE, decayed)}
    compared[AT_REST] = replace(compared[SMALL], by_loss=True)
    pairs = [(decayed, other) for other in compared if other != decayed]
    return [
        *(study(label, in_words(each), each, claims=MANY if each.decay else ()) for label, each in targets.items()),
        ordering("weight decay over none", about, compared, pairs, victims=VICTIMS[scale]),
    ]


def decays(target: Target, scale: Scale) -> dict[str, Target]:
    """No weight decay, and a grid of it."""
    grid = {"smoke": (1e-2,), "small": (1e-3, 3e-3, 1e-2), "full": (1e-3, 3e-3, 1e-2)}[scale]
    without = replace(target, decay=0.0, effort=BRIEF[scale] if scale == "full" else target.effort)
    targets = {SMALL: replace(without, small_first=True)}
    if scale != "smoke":
        targets[NONE] = without
    return targets | {f"decay {decay:g}": replace(target, decay=decay) for decay in grid}


def in_words(target: Target) -> str:
    kind = "two groups" if target.one_output else f"{target.classes} classes"
    trained = f"weight decay {target.decay:g}" if target.decay else "no weight decay"
    start = ", from a small first layer" if target.small_first else ""
    return f"{target.records} records of {kind}, trained with {trained}{start}, read back from the final weights alone."
