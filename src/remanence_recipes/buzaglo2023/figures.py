"""The figures in the order of the paper. It prints no numbers but test accuracies, so that targets are our own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from remanence.experiments import Claim, Experiment, Scale
from remanence.training import Logistic
from remanence_recipes.buzaglo2023.evaluations import best_of_classes, margins, threshold, with_errors
from remanence_recipes.weights_alone.evaluation import ACCURACY, FOUND, RATIO, experiment, study
from remanence_recipes.weights_alone.surveys import VICTIMS, ordering, survey_along
from remanence_recipes.weights_alone.target import BRIEF, FULL, Effort, Target, brief

PER_CLASS: Mapping[Scale, int] = {"smoke": 2, "small": 5, "full": 50}
FEW_PER_CLASS: Mapping[Scale, int] = {"smoke": 2, "small": 5, "full": 5}  # in surveys
DECAY: Mapping[Scale, float] = {"smoke": 1e-2, "small": 3e-3, "full": 3e-3}
STRONG_DECAYS: Mapping[Scale, tuple[float, ...]] = {  # in increasing order; at the double of the last nothing is learnt
    "smoke": (0.14, 0.16, 0.18),
    "small": (0.05, 0.06, 0.07),
    "full": (0.02, 0.03, 0.04, 0.05, 0.06),
}
DECAYS: Mapping[Scale, tuple[float, ...]] = {"smoke": (1e-2,), "small": (1e-3, 3e-3, 1e-2), "full": (1e-3, 3e-3, 1e-2)}
TEN, TWO = "ten classes", "two groups"
SMALL, NONE = "no decay, small first layer", "no decay"


def multiclass(scale: Scale) -> Target:
    """The usual victim: ten classes with weight decay, from PyTorch's initial weights."""
    return Target(scale=scale, per_class=PER_CLASS[scale], effort=FULL[scale], decay=DECAY[scale])


def for_survey(target: Target, per_class: int, *, classes: int | None = None) -> Target:
    """`target` with another number of records, and the effort of surveys."""
    changed = replace(target, per_class=per_class, classes=classes or target.classes)
    return replace(changed, effort=brief(target.scale, changed.records))


def grouped(target: Target) -> Target:
    """`target` with as many records in two groups."""
    return replace(target, classes=2, per_class=target.records // 2, loss=Logistic())


def decays(target: Target) -> dict[str, Target]:
    """`target` without weight decay, from both kinds of initial weights, and with a grid of it."""
    without = replace(target, decay=0.0, effort=BRIEF["full"] if target.scale == "full" else target.effort)
    targets = {SMALL: replace(without, small_first=True)}
    if target.scale != "smoke":
        targets[NONE] = without
    return targets | {f"decay {decay:g}": replace(target, decay=decay) for decay in DECAYS[target.scale]}


def described(target: Target) -> str:
    """A sentence about the victim."""
    kind = "two groups" if target.one_output else f"{target.classes} classes"
    decay = f"weight decay {target.decay:g}" if target.decay else "no weight decay"
    start = ", from a small first layer" if target.small_first else ""
    return (
        f"{target.records} records of {kind}, trained with {decay}{start}, reconstructed from the final weights alone."
    )


def figure1(scale: Scale) -> Sequence[Experiment]:
    """Figure 1: the best reconstruction of each class, chosen by the truth, next to the best of unrelated images."""
    target = multiclass(scale)
    return [experiment("best of each class", described(target), [target], partial(best_of_classes, target))]


def figure2_binary_vs_multiclass(scale: Scale) -> Sequence[Experiment]:
    """Figure 2: two groups against ten classes, equally many records; SSIM against the distance from the boundary."""
    ten, few = multiclass(scale), for_survey(multiclass(scale), FEW_PER_CLASS[scale])
    targets = {TEN: ten, TWO: grouped(ten)}
    claims: dict[str, Sequence[Claim]] = {TEN: (_target(RATIO, 5.0, "five times the null"), MANY)}
    if scale == "full":
        effort = replace(ten.effort, steps=3000, restarts=2, levels=1, keep_fractions=())
        small = replace(ten, decay=0.0, small_first=True, effort=BRIEF[scale])  # the figure's, but for the budget
        fifty, ten_small, two_small = f"{TEN}, 50 images", f"{TEN}, {SMALL}", f"{TWO}, {SMALL}"
        targets |= {
            fifty: replace(ten, per_class=FEW_PER_CLASS[scale], effort=effort),
            ten_small: small,
            two_small: grouped(small),
        }
        claims |= {
            fifty: (_target(FOUND, 40 / 50, "40 of 50 images"),),
            ten_small: (_accuracy(0.32),),
            two_small: (_accuracy(0.77),),
        }
    about = "Victims of ten classes and of two groups, equally many records: is more found in those of ten?"
    compared = {TEN: few, TWO: grouped(few)}
    return [
        *(study(label, described(each), each, claims=claims.get(label, ())) for label, each in targets.items()),
        ordering("multiclass over binary", about, compared, [(TEN, TWO)], victims=VICTIMS[scale]),
    ]


def _target(quantity: str, target: float, where: str) -> Claim:
    return Claim(quantity=f"{quantity}, Stationarity", higher_is_better=True, target=target, where=where)


def _accuracy(printed: float) -> Claim:
    return Claim(quantity=ACCURACY, higher_is_better=True, printed=printed, where="section 4, test accuracy")


MANY = _target(FOUND, 100 / 500, "100 of 500 images")
OF_EACH: Mapping[Scale, tuple[int, ...]] = {"smoke": (2, 5), "small": (1, 5, 10), "full": (1, 5, 10, 50)}
CLASSES: Mapping[Scale, tuple[int, ...]] = {"smoke": (2, 10), "small": (2, 5, 10), "full": (2, 3, 4, 5, 10)}


def figure3_classes(scale: Scale) -> Sequence[Experiment]:
    """Figure 3: the number of classes by the number of records of each; what is found, and SSIM above 0.4."""
    about = "Victims of more and more classes, with {} records of each: what fraction of them is found?"
    return [
        survey_along(
            f"{count} of each",
            about.format(count),
            "classes",
            {"": {n: for_survey(multiclass(scale), count, classes=n) for n in CLASSES[scale]}},
            victims=2,
        )
        for count in OF_EACH[scale]
    ]


def figure4_weight_decay(scale: Scale) -> Sequence[Experiment]:
    """Figure 4: no weight decay, from both kinds of initial weights, and a grid of it; SSIM against the margin."""
    about = (
        "Victims with weight decay and without, from both kinds of initial weights: is more found in those with it? At "
        "a constant learning rate those without it are far from stationary; at one that follows the loss less so."
    )
    usual = f"decay {DECAY[scale]:g}"
    few = decays(for_survey(multiclass(scale), FEW_PER_CLASS[scale]))
    two = decays(for_survey(multiclass(scale), PER_CLASS[scale], classes=2))
    compared, of_two = ({k: each[k] for k in (SMALL, NONE, usual) if k in each} for each in (few, two))
    compared[f"{SMALL}, rate by the loss"] = replace(compared[SMALL], by_loss=True)

    def over_none(label: str, targets: Mapping[str, Target]) -> Experiment:
        pairs = [(usual, other) for other in targets if other != usual]
        return ordering(label, about, targets, pairs, victims=VICTIMS[scale])

    return [
        *(
            study(label, described(each), each, claims=(MANY,) if each.decay else ())
            for label, each in decays(multiclass(scale)).items()
        ),
        over_none("weight decay over none", compared),
        over_none("weight decay over none, two classes", of_two),
    ]


def figure5_margins(scale: Scale) -> Sequence[Experiment]:
    """Figure 5: the margins of the records under weight decay, and whether records near the boundary are found."""
    usual = for_survey(multiclass(scale), PER_CLASS[scale])
    targets, strong = decays(usual), [replace(usual, decay=decay) for decay in STRONG_DECAYS[scale]]
    about = "Victims without weight decay and with a grid of it: how far are their records from the boundary?"
    strongly = "The weakest of a grid of strong weight decays under which training records are misclassified."
    return [
        experiment("margins", about, list(targets.values()), partial(margins, targets)),
        experiment("training error above zero", strongly, strong, partial(with_errors, strong)),
    ]


def figure6_cifar100(scale: Scale) -> Sequence[Experiment]:
    """Figure 6: CIFAR-100, found against the number of images; at full scale also 5,000 images and width 10,000.

    The paper shows "a few dozens" of these above SSIM 0.4. One epoch takes 4 TFLOP and one step of Stationarity 9: the
    wide network is trained in TF32, and has 5,000 records in 3,072 dimensions, more than its first layer has rank.
    """
    classes, axis = {"smoke": 10, "small": 50, "full": 100}[scale], "images"
    per_class = {"smoke": (1, 2), "small": (1, 2, 4), "full": (1, 2, 5, 10)}[scale]
    target = replace(multiclass(scale), source="cifar100", classes=classes)
    curves = {"": {classes * count: for_survey(target, count) for count in per_class}}
    about = "More and more images of as many classes: what fraction of them is found?"
    experiments = [survey_along("found against images", about, axis, curves, victims=1, log=True)]
    if scale == "full":
        effort = Effort(epochs=4000, steps=1500, restarts=1, levels=3, keep_fractions=(0.5, 0.8))
        wide = {"": {5000: replace(target, per_class=50, hidden=(10_000, 10_000), lr=0.03, effort=effort, tf32=True)}}
        about = "5,000 images of 100 classes, hidden width 10,000, trained in TF32."
        experiments.append(survey_along("5,000 images, width 10,000", about, axis, wide, victims=1))
    return experiments


def figure7_threshold(scale: Scale) -> Sequence[Experiment]:
    """Figure 7: pairs around SSIM 0.4, reconstructed and look-alike, and how often unrelated images reach it."""
    target = multiclass(scale)
    return [experiment("around SSIM 0.4", described(target), [target], partial(threshold, target))]


def figure8_fixed_500(scale: Scale) -> Sequence[Experiment]:
    """Figure 8 (appendix B): the number of classes with 500 records in all, fewer below full scale."""
    records, victims = {"smoke": (20, 2), "small": (60, 3), "full": (500, 3)}[scale]
    points = {n: for_survey(multiclass(scale), records // n, classes=n) for n in CLASSES[scale]}
    about = f"{records} records in all, of more and more classes: what fraction of them is found?"
    return [survey_along("classes, records fixed", about, "classes", {"": points}, victims=victims)]
