"""Figures 1 to 9 and table 3: rows that store a record, rows that help to reconstruct it, and what the latter gain."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from remanence.attacks import Importance, Mnemonist, RecoNN
from remanence.experiments import (
    Budget,
    Claim,
    Experiment,
    Figure,
    Measure,
    Outcome,
    Point,
    Reconstructed,
    Scale,
    Series,
    Trial,
)
from remanence.experiments.evaluations import StoredRows
from remanence.experiments.evaluations.storage import ABOUT
from remanence.experiments.victims import random_init
from remanence.metrics import MAE, MAE_MSE, MSE, PSNR, SSIM, identity
from remanence.metrics.statistics import bootstrap_mean, bootstrap_statistic, rank_correlation
from remanence.seeds import derive_seed
from remanence_recipes.curves import proportion
from remanence_recipes.mnemonist2023.setting import (
    BUDGET,
    RECONSTRUCTORS,
    SIZES,
    STEPS,
    TUNED,
    RowStudy,
    initialisations,
    net,
    null_errors,
    victims,
)

# Figure 1 and table 3: RecoNN and Mnemonist-RecoNN over initialisations

RELU, SELECTED, SIGMOID = "RecoNN, ReLU", "Mnemonist-RecoNN, ReLU", "RecoNN, sigmoid"
AT_MEAN, RANDOM = "Mnemonist-RecoNN, rejected rows at the mean", "as many rows, drawn"
GAIN, WINS = "gain of Mnemonist-RecoNN", "starts in which it gains"
SMALLEST, LARGEST = "smallest error, RecoNN, ReLU", "largest error, RecoNN, ReLU"
BY_SIGMOID = "targets read better with sigmoid"
LARGE_FRACTION, SMALL_FRACTION = 0.9, 0.25  # fractions of the targets, section 5.2
COEFFICIENTS = "coefficient, rows under 25 % stored minus over 90 %"
OF_MANY, OF_FEW = "coefficient, rows over 90 % stored", "coefficient, rows under 25 % stored"
AGREEMENT = "importance against storage"
AGREEMENT_MEANING = (
    "rank correlation over the rows of how much a row helps (minus its coefficient) with the fraction of the targets "
    "that it stores at the first step"
)
# initial weights of the paper's four runs are not published: our means are compared with the means of the four
TABLE_3 = {RELU: (0.2040, 0.2705, 0.0908, 0.1315), SELECTED: (0.1738, 0.2385, 0.0730, 0.1158)}


def figure1_initialisations(scale: Scale) -> Sequence[Experiment]:
    """Figure 1: error of RecoNN over initialisations, ReLU against sigmoid; and what Mnemonist gains on each."""
    claims = (
        Claim(quantity=GAIN, higher_is_better=True, printed=0.145, target=0.12, where="table 3, mean of four gains"),
        Claim(quantity=WINS, higher_is_better=True, printed=1.0, target=0.9, where="table 3, four of four"),
        *(
            Claim(quantity=name, higher_is_better=False, printed=sum(four) / 4, where="table 3, mean of four runs")
            for name, four in TABLE_3.items()
        ),
        Claim(quantity=SIGMOID, higher_is_better=False, printed=0.03, where="section 3"),
    )
    relu, sigmoid = {"smoke": (2, 2), "small": (5, 5), "full": (20, 4)}[scale]
    about = "The error of RecoNN on networks that differ only in their initial weights, and of Mnemonist on them."
    experiment = _study(scale, "many first weights", about, partial(_over_initialisations, relu, sigmoid))
    budget = replace(BUDGET, victims=(relu, 20)) if scale == "full" else None
    return [replace(experiment, claims=claims, budget=budget)]


def _study(scale: Scale, label: str, about: str, evaluation: Callable[[RecoNN, Trial], Outcome]) -> Experiment:
    """What `evaluation` shows of the paper's victims by the reconstructor of the scale."""
    return Experiment(
        label=label,
        about=about,
        victims=victims(scale),
        evaluations=(partial(evaluation, RECONSTRUCTORS[scale]),),
        budget=BUDGET if scale == "full" else None,
    )


def _over_initialisations(relu: int, sigmoid: int, reconstructor: RecoNN, trial: Trial) -> Outcome:
    """Evaluation: errors of both attacks over initialisations, and the gain of one over the other."""
    errors: dict[str, list[Tensor]] = {RELU: [], SELECTED: [], AT_MEAN: [], RANDOM: [], SIGMOID: []}
    agreement, counts, seed = [], [], trial.seed
    for study in initialisations(trial, reconstructor, relu):
        rows = study.importance.helpful
        errors[RELU].append(study.error(study.all_rows))
        errors[SELECTED].append(study.error(rows))
        errors[AT_MEAN].append(study.error(study.importance_at_mean.helpful))
        errors[RANDOM].append(study.error(study.random_rows(len(rows))))
        agreement.append(rank_correlation(-study.importance.coefficient, study.storage().fraction[0]))
        counts.append(len(rows))
    for study in initialisations(trial, reconstructor, sigmoid, model=partial(net, nn.Sigmoid)):
        errors[SIGMOID].append(study.error(study.all_rows))
    nulls = null_errors(trial.victims.split)
    means = {name: torch.stack(each).double().mean(1).cpu() for name, each in errors.items()}
    gains, at_mean, random = (1 - means[name] / means[RELU] for name in (SELECTED, AT_MEAN, RANDOM))
    mean, other, null = (bootstrap_mean(each, seed=derive_seed(seed, GAIN)) for each in (gains, at_mean, random))
    measures = (
        *(mean_error(name, means[name], nulls, seed) for name in (RELU, SELECTED, SIGMOID)),
        *(
            Measure(name=name, value=float(value), meaning=f"of {relu} initialisations", chance=nulls["mean image"])
            for name, value in ((SMALLEST, means[RELU].min()), (LARGEST, means[RELU].max()))
        ),
        Measure.from_interval(
            GAIN,
            mean,
            meaning="mean over the initialisations of 1 - error of Mnemonist-RecoNN / error of RecoNN, on the same "
            f"targets; it selects {min(counts)} to {max(counts)} rows, and chance is the gain of as many random rows",
            chance=null.value,
        ),
        Measure.from_interval(
            "gain with rejected rows at the mean",
            other,
            meaning="the same where rejected rows are reset to the mean of the shadow models, not to initial weights",
            chance=null.value,
        ),
        proportion(
            WINS,
            gains > 0,
            meaning="fraction of the initialisations in which that is positive; chance is the same for random rows",
            chance=float((random > 0).double().mean()),
        ),
        Measure.from_interval(
            AGREEMENT,
            bootstrap_mean(torch.tensor(agreement), seed=derive_seed(seed, AGREEMENT)),
            meaning=f"{AGREEMENT_MEANING}, mean over the initialisations",
            chance=0.0,
        ),
    )
    return Outcome(measures=measures, figures=(error_by_initialisation(errors, RELU, nulls, seed),), caveats=(TUNED,))


def mean_error(name: str, means: Tensor, nulls: Mapping[str, float], seed: int) -> Measure:
    """The mean error over initialisations, from the mean of each of them."""
    meaning = (
        f"mean MAE + MSE over the initialisations, which lie between {float(means.min()):.4f} and "
        f"{float(means.max()):.4f}; chance is the mean image, a neighbour has {nulls['nearest neighbour']:.4f}"
    )
    mean = bootstrap_mean(means, seed=derive_seed(seed, name))
    return Measure.from_interval(name, mean, meaning=meaning, chance=nulls["mean image"])


def error_by_initialisation(
    errors: Mapping[str, list[Tensor]], first: str, nulls: Mapping[str, float], seed: int
) -> Figure:
    """Figure 1: the errors by initialisation, in increasing order of the error called `first`."""
    order = torch.stack(errors[first]).mean(1).argsort().tolist()
    x = tuple(float(i + 1) for i in range(len(order)))

    def series(name: str, each: list[Tensor]) -> Series:
        measured = [(x, i) for x, i in zip(x, order, strict=True) if i < len(each)]
        found = [bootstrap_mean(each[i], seed=derive_seed(seed, name, i)) for _, i in measured]
        return Series.from_intervals(name, tuple(x for x, _ in measured), found)

    levels = [Series(name=name, x=x, y=(level,) * len(x), role="chance") for name, level in nulls.items()]
    return Figure(
        title="Error by first weights",
        x_label=f"initialisation, in the order of the error of {first}",
        y_label="mean MAE + MSE",
        series=(*(series(name, each) for name, each in errors.items()), *levels),
    )


def figure2_activations(scale: Scale) -> Sequence[Experiment]:
    """Figure 2: the same targets by RecoNN from a ReLU network and from one with sigmoid."""
    about = "Whether single targets are reconstructed better from a network with sigmoid than from one with ReLU."
    return [_study(scale, "ReLU and sigmoid", about, _by_activation)]


def _by_activation(reconstructor: RecoNN, trial: Trial) -> Outcome:
    """Evaluation: the paired errors of the targets, and pictures in the order of the errors with ReLU."""
    truth = trial.victims.split.private.x
    relu = RowStudy(victims=trial.victims, reconstructor=reconstructor)
    (sigmoid,) = initialisations(trial, reconstructor, 1, model=partial(net, nn.Sigmoid))
    found = {name: each.reconstruct(each.all_rows) for name, each in (("ReLU", relu), ("sigmoid", sigmoid))}
    errors = {name: relu.error_of(x) for name, x in found.items()}
    order = errors["ReLU"].argsort()[torch.linspace(0, len(truth) - 1, min(8, len(truth))).long()]
    ranges = [
        Measure.from_interval(
            f"error, {name}",
            bootstrap_mean(each, seed=derive_seed(trial.seed, name)),
            meaning=f"mean MAE + MSE; of nine in ten targets {float(each.quantile(0.05)):.4f} to "
            f"{float(each.quantile(0.95)):.4f}",
            chance=null_errors(trial.victims.split)["mean image"],
        )
        for name, each in errors.items()
    ]
    better = errors["sigmoid"] < errors["ReLU"]
    meaning = "fraction of the targets; the paper shows four of four"
    return Outcome(
        measures=(*ranges, proportion(BY_SIGMOID, better, meaning=meaning, chance=0.5)),
        pictures={"targets": truth[order]} | {name: x[order] for name, x in found.items()},
        caveats=(TUNED,),
    )


def table3(scale: Scale) -> Sequence[Experiment]:
    """Table 3: RecoNN and Mnemonist-RecoNN on four networks that differ in their initial weights."""
    return _table3(scale, budget=BUDGET)


def table3_shadows(scale: Scale) -> Sequence[Experiment]:
    """Table 3 with the paper's 40,000 shadow models, twice as many as elsewhere."""
    public = 2 * SIZES[scale]["public"]
    return _table3(scale, budget=replace(BUDGET, shadows=(public, 40_000)), public=public)


def _table3(scale: Scale, *, budget: Budget, **sizes: int) -> Sequence[Experiment]:
    reconstructor = RECONSTRUCTORS[scale]
    attacks: dict[str, RecoNN | Mnemonist] = {
        "RecoNN": reconstructor,
        "Mnemonist-RecoNN": Mnemonist(reconstructor=reconstructor, reset_to="initial"),
        AT_MEAN: Mnemonist(reconstructor=reconstructor, reset_to="mean"),
    }
    runs = [victims(scale, initialisation=i, **sizes) for i in range(2 if scale == "smoke" else 4)]
    return [
        Experiment(
            label=f"run {i + 1}, {name}",
            victims=run,
            attack=attack,
            evaluations=(Reconstructed(matching=identity, metrics=(MAE_MSE, MSE, MAE, PSNR, SSIM)),),
            point=Point(axis="first weights", value=f"run {i + 1}", series=name),
            budget=budget if scale == "full" else None,
            tuned_on_truth=True,  # the victims' learning rate, on seed 1
        )
        for i, run in enumerate(runs)
        for name, attack in attacks.items()
    ]


# Figure 5: which rows store a target


def figure5_storage(scale: Scale) -> Sequence[Experiment]:
    """Figure 5: how many rows of the first layer store each target at steps 1, 30 and 40, ReLU against sigmoid."""
    steps = (1, 3 * STEPS[scale] // 4, STEPS[scale])
    usual = replace(victims(scale), initial=random_init)
    return [
        Experiment(
            label=name,
            about=ABOUT,
            victims=replace(usual, model=partial(net, activation)),
            evaluations=(StoredRows(steps=steps, caveats=(TUNED,)),),
        )
        for name, activation in (("ReLU", nn.ReLU), ("sigmoid", nn.Sigmoid))
    ]


# Figures 7 and 8: which rows help to reconstruct it


def figure7_importance(scale: Scale) -> Sequence[Experiment]:
    """Figures 7 and 8: how much each row helps the reconstruction, next to how many records it stores."""
    about = (
        "RecoNN on shadow models with rows of the first layer reset to their initial weights, for all masks of rows."
    )
    return [_study(scale, "importance of rows", about, _importance)]


def _importance(reconstructor: RecoNN, trial: Trial) -> Outcome:
    """Evaluation: the linear surrogate of the error over masks, and its agreement with storage."""
    study = RowStudy(victims=trial.victims, reconstructor=reconstructor)
    found, stored = study.importance, study.storage().stored[:, 0].double()

    def correlation(models: Tensor, targets: Tensor) -> float:
        return rank_correlation(-found.coefficients[models].mean(0), stored[targets].mean(0))

    sizes = len(found.coefficients), len(stored)
    rho = bootstrap_statistic(correlation, sizes, seed=derive_seed(trial.seed, "agreement"))
    masks, errors = found.masks.double(), found.errors.double().mean(0)
    predicted = errors.mean() + (masks - masks.mean(0)) @ found.coefficient
    residual = (errors - predicted).square().sum() / (errors - errors.mean()).square().sum()
    fit = Measure(
        name="linear surrogate, R²",
        value=1 - float(residual),
        chance=masks.shape[1] / (len(masks) - 1),
        meaning="fraction of the variance of the error over masks (mean over validation shadow models) that a linear "
        "function explains; chance is what it explains of errors that do not depend on the rows",
    )
    agreement = Measure.from_interval(AGREEMENT, rho, meaning=AGREEMENT_MEANING, chance=0.0)
    return Outcome(
        measures=(agreement, fit, *_coefficients(found.coefficients.cpu(), stored.mean(0).cpu(), trial.seed)),
        figures=_importance_figures(found, stored, errors.cpu(), predicted.cpu()),
        caveats=(TUNED,),
    )


def _coefficients(coefficients: Tensor, stored: Tensor, seed: int) -> Iterator[Measure]:
    """Section 5.2: the coefficients (models, rows) of rows that store hardly any target, over those that store most."""
    many, few = stored > LARGE_FRACTION, stored < SMALL_FRACTION
    if many.any() and few.any():
        of_many, of_few = coefficients[:, many].mean(1), coefficients[:, few].mean(1)
        counts = f"{int(few.sum())} and {int(many.sum())} rows"
        for name, each, meaning in (
            (COEFFICIENTS, of_few - of_many, f"means of {counts} over validation shadow models; printed: 0.04"),
            (OF_MANY, of_many, "their mean over validation shadow models; printed, of one row: -0.03"),
            (OF_FEW, of_few, "their mean over validation shadow models; printed, of one row: 0.01"),
        ):
            mean = bootstrap_mean(each, seed=derive_seed(seed, name))
            yield Measure.from_interval(name, mean, meaning=meaning, chance=0.0)


def _importance_figures(found: Importance, stored: Tensor, errors: Tensor, predicted: Tensor) -> tuple[Figure, ...]:
    helps, bound = -found.coefficient.cpu(), 1.96 * found.standard_error.cpu()
    importance = Series(
        name="lowers the error by",
        x=tuple(f"S{row}" for row in range(len(helps))),
        y=tuple(helps.tolist()),
        low=tuple((helps - bound).tolist()),
        high=tuple((helps + bound).tolist()),
    )
    storage = Series(name="stores", x=importance.x, y=tuple(stored.mean(0).tolist()))
    masks = Series(name="one mask", x=tuple(predicted.tolist()), y=tuple(errors.tolist()))
    selected = found.masks.sum(1).cpu()
    counts = selected.unique().tolist()
    quartiles = torch.tensor([0.25, 0.5, 0.75], dtype=torch.double)
    low, median, high = torch.stack([errors[selected == count].quantile(quartiles) for count in counts]).T.tolist()
    by_count = Series(
        name="median, and quartiles over the masks",
        x=tuple(float(count) for count in counts),
        y=tuple(median),
        low=tuple(low),
        high=tuple(high),
    )
    fraction, error = "fraction of the targets, step 1", "error of RecoNN"
    return (
        Figure(title="Importance", x_label="row", y_label="minus coefficient", series=(importance,), kind="bars"),
        Figure(title="Storage", x_label="row", y_label=fraction, series=(storage,), kind="bars"),
        Figure(title="Every mask", x_label="linear surrogate", y_label=error, series=(masks,), kind="points"),
        Figure(title="Rows kept", x_label="rows that the mask selects", y_label=error, series=(by_count,)),
    )


# Figure 9: pictures


def figure9_gallery(scale: Scale) -> Sequence[Experiment]:
    """Figure 9: targets with the reconstructions of RecoNN and of Mnemonist-RecoNN, side by side."""
    about = "The targets that Mnemonist-RecoNN improves most, those in the middle, and those it harms most."
    return [_study(scale, "side by side", about, _gallery)]


def _gallery(reconstructor: RecoNN, trial: Trial) -> Outcome:
    """Evaluation: the paired difference of the errors of both attacks, and pictures in its order."""
    study = RowStudy(victims=trial.victims, reconstructor=reconstructor)
    before, after = study.reconstruct(study.all_rows), study.reconstruct(study.importance.helpful)
    gains = study.error_of(before) - study.error_of(after)
    order, few = gains.argsort(descending=True), min(8, len(gains) // 3)
    middle = len(order) // 2 - few // 2
    groups = {"most improved": order[:few], "middle": order[middle : middle + few], "least": order[-few:]}
    kinds = {"targets": trial.victims.split.private.x, "RecoNN": before, "Mnemonist-RecoNN": after}
    measures = (
        Measure.from_interval(
            "difference of the errors",
            bootstrap_mean(gains, seed=derive_seed(trial.seed, "pairs")),
            meaning="mean over the targets of RecoNN's error minus Mnemonist-RecoNN's",
            chance=0.0,
        ),
        proportion(
            "targets read better", gains > 0, meaning="fraction of the targets for which that is positive", chance=0.5
        ),
    )
    pictures = {f"{group}: {kind}": x[rows] for group, rows in groups.items() for kind, x in kinds.items()}
    return Outcome(measures=measures, pictures=pictures, caveats=(TUNED,))
