"""RecoNN against Mnemonist-RecoNN: four runs, many first weights, pictures side by side."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from remanence.experiments import (
    Claim,
    Experiment,
    Figure,
    Measure,
    Measurement,
    Outcome,
    Point,
    Reconstructed,
    Scale,
    Series,
    Victims,
)
from remanence.metrics import MAE, MAE_MSE, MSE, PSNR, SSIM, identity
from remanence.metrics.statistics import binomial_proportion, bootstrap_mean, rank_correlation
from remanence.progress import track
from remanence.releases import all_but_one
from remanence.seeds import derive_seed
from remanence_recipes.mnemonist2023.setting import (
    TUNED,
    Readings,
    cut,
    mean_image,
    mnemonist,
    neighbour,
    net,
    reconstructor,
    runs,
    start_of,
    training,
)

RELU, CHOSEN, SIGMOID = "RecoNN, ReLU", "Mnemonist-RecoNN, ReLU", "RecoNN, sigmoid"
AT_MEAN, DRAWN = "Mnemonist-RecoNN, rejected rows at the mean", "as many rows, drawn"
# the four runs start from weights of their own, so no run of ours stands beside one of these: their means do
TABLE_3 = {RELU: (0.2040, 0.2705, 0.0908, 0.1315), CHOSEN: (0.1738, 0.2385, 0.0730, 0.1158)}
GAIN, BETTER, AGREES = "gain of Mnemonist-RecoNN", "starts in which it gains", "importance against storage"
GAIN_AT_MEAN = "gain with rejected rows at the mean"
STARTS: dict[Scale, tuple[int, int]] = {"smoke": (2, 2), "small": (5, 5), "full": (10, 4)}  # ReLU, sigmoid


def table3(scale: Scale) -> Sequence[Experiment]:
    """Table 3: RecoNN and Mnemonist-RecoNN on four nets that differ in their first weights."""
    return [cell for place in range(2 if scale == "smoke" else 4) for cell in _readings(scale, place)]


def _readings(scale: Scale, place: int) -> list[Experiment]:
    """Of one run; what they share is made once."""
    victims = Victims(
        split=partial(cut, scale),
        model=partial(net, nn.ReLU),
        training=training(scale),
        reveal=all_but_one,
        per_victim=1,
        initial=partial(start_of, place),
    )
    return [
        Experiment(
            label=f"run {place + 1}, {name}",
            victims=victims,
            attack=attack,
            tuned_on_truth=True,  # the victims' rate, on seed 1
            point=Point(axis="first weights", value=f"run {place + 1}", series=name),
            evaluations=(Reconstructed(matching=identity, metrics=(MAE_MSE, MSE, MAE, PSNR, SSIM)),),
        )
        for name, attack in (
            ("RecoNN", reconstructor(scale)),
            ("Mnemonist-RecoNN", mnemonist(scale)),
            (AT_MEAN, mnemonist(scale, reset_to="mean")),
        )
    ]


def figure1_initialisations(scale: Scale) -> Sequence[Experiment]:
    """Figure 1: RecoNN over many first weights, ReLU against sigmoid; and what Mnemonist gains on each."""
    claims = (
        Claim(quantity=GAIN, higher_is_better=True, printed=0.145, target=0.12, where="table 3, mean of four gains"),
        Claim(quantity=BETTER, higher_is_better=True, printed=1.0, target=0.9, where="table 3, four of four"),
        *(
            Claim(quantity=name, higher_is_better=False, printed=sum(four) / 4, where="table 3, mean of four runs")
            for name, four in TABLE_3.items()
        ),
        Claim(quantity=SIGMOID, higher_is_better=False, printed=0.03, where="section 3"),
    )
    about = "The error of RecoNN on nets that differ in nothing but their first weights, and Mnemonist's on the same."
    return [
        Experiment(
            label="many first weights",
            about=about,
            evaluations=(Measurement(measure=partial(_many, scale)),),
            claims=claims,
        )
    ]


def _many(scale: Scale, seed: int, device: torch.device) -> Outcome:
    errors: dict[str, list[Tensor]] = {RELU: [], CHOSEN: [], AT_MEAN: [], DRAWN: [], SIGMOID: []}
    agreement, kept = [], []
    starts, smooth = STARTS[scale]
    for run in track(runs(scale, nn.ReLU, starts, seed, device), total=starts, label="starts, ReLU"):
        readings = Readings.of(run)
        rows = readings.importance.helpful
        errors[RELU].append(readings.error(readings.every))
        errors[CHOSEN].append(readings.error(rows))
        errors[AT_MEAN].append(readings.error(readings.importance_at_mean.helpful))
        errors[DRAWN].append(readings.error(readings.drawn(len(rows))))
        agreement.append(rank_correlation(-readings.importance.coefficient, run.storage((1,)).fraction[0]))
        kept.append(len(rows))
    for run in track(runs(scale, nn.Sigmoid, smooth, seed, device), total=smooth, label="starts, sigmoid"):
        readings = Readings.of(run)
        errors[SIGMOID].append(readings.error(readings.every))
    level, near = mean_image(run.parts), neighbour(run.parts)
    means = {name: torch.stack(each).double().mean(1).cpu() for name, each in errors.items()}
    return Outcome(
        measures=(
            *(over_starts(name, means[name], level, near, seed) for name in (RELU, CHOSEN, SIGMOID)),
            *_gains(means, kept, seed),
            _agreement(torch.tensor(agreement), seed),
        ),
        figures=(by_start(errors, RELU, {"mean image": level, "nearest neighbour": near}, seed),),
        caveats=(TUNED,),
    )


def over_starts(name: str, means: Tensor, level: float, near: float, seed: int) -> Measure:
    spread = f"between {float(means.min()):.4f} and {float(means.max()):.4f}"
    meaning = (
        f"mean MAE + MSE over the starts, which lie {spread}; chance is the mean image, a neighbour has {near:.4f}"
    )
    return Measure.from_interval(
        name, bootstrap_mean(means, seed=derive_seed(seed, name)), meaning=meaning, chance=level
    )


def _gains(means: dict[str, Tensor], kept: list[int], seed: int) -> list[Measure]:
    """Chance is the gain of as many rows that are drawn."""
    gains, at_mean, drawn = (1 - means[name] / means[RELU] for name in (CHOSEN, AT_MEAN, DRAWN))
    each = "1 - error of Mnemonist-RecoNN / error of RecoNN, on the same targets"
    rows = f"it keeps {min(kept)} to {max(kept)} rows, and chance is the gain of as many that are drawn"
    mean, other, null = (bootstrap_mean(some, seed=derive_seed(seed, GAIN)) for some in (gains, at_mean, drawn))
    ahead = binomial_proportion(int((gains > 0).sum()), len(gains))
    return [
        Measure.from_interval(GAIN, mean, meaning=f"mean over the starts of {each}; {rows}", chance=null.value),
        Measure.from_interval(
            GAIN_AT_MEAN,
            other,
            meaning="the same where rows that a mask rejects go to the shadows' mean, not to their first weights",
            chance=null.value,
        ),
        Measure.from_interval(
            BETTER,
            ahead,
            meaning="share of the starts in which that is above zero; chance is that share with drawn rows",
            chance=float((drawn > 0).double().mean()),
        ),
    ]


def _agreement(found: Tensor, seed: int) -> Measure:
    meaning = (
        "rank correlation over the rows of how much a row helps (minus its coefficient) with the share of the targets "
        "that it stores at the first step, mean over the starts"
    )
    return Measure.from_interval(
        AGREES, bootstrap_mean(found, seed=derive_seed(seed, AGREES)), meaning=meaning, chance=0.0
    )


def by_start(errors: dict[str, list[Tensor]], first: str, levels: dict[str, float], seed: int) -> Figure:
    """In the order of the error that is called `first`, as figure 1 of the paper has it by start."""
    order = torch.stack(errors[first]).mean(1).argsort().tolist()
    starts = tuple(float(i + 1) for i in range(len(order)))

    def series(name: str, each: list[Tensor]) -> Series:
        places = [(x, i) for x, i in zip(starts, order, strict=True) if i < len(each)]
        found = [bootstrap_mean(each[i], seed=derive_seed(seed, name, i)) for _, i in places]
        return Series.from_intervals(name, tuple(x for x, _ in places), found)

    chances = [Series(name=n, x=starts, y=(level,) * len(starts), role="chance") for n, level in levels.items()]
    return Figure(
        title="Error by first weights",
        x_label=f"first weights, in the order of the error of {first}",
        y_label="mean MAE + MSE",
        series=(*(series(name, each) for name, each in errors.items()), *chances),
    )


def figure9_gallery(scale: Scale) -> Sequence[Experiment]:
    """Figure 9: targets, what RecoNN and what Mnemonist-RecoNN make of them, side by side."""
    about = "The targets that Mnemonist-RecoNN improves most, those in the middle, and those it harms most."
    return [Experiment(label="side by side", about=about, evaluations=(Measurement(measure=partial(_gallery, scale)),))]


def _gallery(scale: Scale, seed: int, device: torch.device) -> Outcome:
    (run,) = runs(scale, nn.ReLU, 1, seed, device)
    readings = Readings.of(run)
    before, after = readings.read(readings.every), readings.read(readings.importance.helpful)
    gains = run.error(before) - run.error(after)
    order, few = gains.argsort(descending=True), min(8, len(gains) // 3)
    middle = len(order) // 2 - few // 2
    groups = {"most improved": order[:few], "middle": order[middle : middle + few], "least": order[-few:]}
    kinds = {"targets": run.parts.private.x, "RecoNN": before, "Mnemonist-RecoNN": after}
    pictures = {f"{group}: {kind}": x[rows] for group, rows in groups.items() for kind, x in kinds.items()}
    meaning = "mean over the targets of RecoNN's error minus Mnemonist-RecoNN's"
    found = bootstrap_mean(gains, seed=derive_seed(seed, "pairs"))
    lower = binomial_proportion(int((gains > 0).sum()), len(gains))
    return Outcome(
        measures=(
            Measure.from_interval("difference of the errors", found, meaning=meaning, chance=0.0),
            Measure.from_interval(
                "targets read better", lower, meaning="share of the targets for which that is above zero", chance=0.5
            ),
        ),
        pictures=pictures,
        caveats=(TUNED,),
    )
