"""What of the training the attacker need not know: its learning rate on ResNet-18, and the batch size."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from remanence.attacks import SimuDy, find_training, with_search
from remanence.errors import Diverged
from remanence.experiments import Budget, Experiment, Figure, Measure, Outcome, Scale, Series, Trial
from remanence.experiments.checks import tuned_on_truth
from remanence.experiments.finding import resumable
from remanence.metrics import Interval
from remanence.metrics.statistics import bootstrap_mean
from remanence.releases import FineTuned
from remanence.seeds import derive_seed
from remanence.training import SGD
from remanence_recipes.records import shuffled
from remanence_recipes.tian2025.linearity import NON_LINEAR
from remanence_recipes.tian2025.mlps import (
    ITERATIONS,
    SIZES,
    TRAINING,
    Images,
    images_of,
    mlp_victims,
    simudy,
    simulating,
    whitened,
)
from remanence_recipes.tian2025.resnets import DEEP, FINE_TUNING, deep_victims

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the true learning rate
STEPS: Mapping[Scale, int] = {"smoke": 10, "small": 200, "full": 700}
KNOWN, PRESET = "mean SSIM, batch size known", "mean SSIM, full batch preset"
CHOSEN = tuned_on_truth("The settings of the search were chosen on true records of seed 0: quote another seed.")


def resnet_learning_rate(scale: Scale) -> Sequence[Experiment]:
    """SSIM of SimuDy on ResNet-18 by the learning rate that it simulates, which should be highest at the true one."""
    training, records = FINE_TUNING[scale], 20 if scale == "full" else 10
    attack = with_search(replace(DEEP, candidates=records), steps=STEPS[scale])
    return [
        Experiment(
            label="learning rates",
            about="The same images by searches that simulate the first epochs at a quarter to four times the true "
            "learning rate, of a fine-tuning that is less linear, nearer the paper's.",
            victims=deep_victims(scale, records, training=training, net=NON_LINEAR[scale][0]),
            attack=attack,
            evaluations=(partial(_by_rate, images_of(scale)),),
            budget=Budget(iterations=(STEPS[scale], ITERATIONS)) if scale == "full" else None,
        )
    ]


def _by_rate(images: Images, trial: Trial) -> Outcome:
    """Evaluation: one search for each learning rate; one that diverges has found nothing."""
    case, attack = trial.victims.cases[0], resumable(trial.attack, trial.store)
    assert isinstance(attack, SimuDy)
    assert isinstance(case.release, FineTuned)
    usual = case.release.training
    usual = replace(usual, epochs=min(usual.epochs, 8))  # as many as the authors' code simulates
    null, measures = _null(images, trial), list[Measure]()
    meaning = "greedy, of normalised images; chance: as many unrelated images; 0 where the search diverged"
    for factor in FACTORS:
        training = replace(usual, optimizer=SGD(lr=factor * usual.optimizer.lr))
        name = f"SSIM, {factor:g} of the learning rate"
        try:
            found = simulating(attack, training).run(case.release, seed=trial.seed)
        except Diverged:
            measures.append(Measure(name=name, value=0.0, meaning=meaning, chance=null))
            continue
        ssim = _mean_ssim(images, found.x, case.truth.x, trial.seed)
        measures.append(Measure.from_interval(name, ssim, meaning=meaning, chance=null))
    y = tuple(each.value or 0.0 for each in measures)
    series = (
        Series(name="SimuDy", x=FACTORS, y=y),
        Series(name="chance", x=FACTORS, y=(null,) * len(FACTORS), role="chance"),
    )
    figure = Figure(
        title="SSIM by learning rate", x_label="of the true learning rate", y_label="SSIM", series=series, log_x=True
    )
    return Outcome(measures=tuple(measures), figures=(figure,), caveats=(CHOSEN,))


def unknown_batch_size(scale: Scale) -> Sequence[Experiment]:
    """Images of an MLP that is trained in mini-batches, by SimuDy at the true batch size and at full batch.

    The learning rate of the latter is chosen from a grid by the objective.
    """
    records, attack = SIZES[scale][0], simudy(scale, steps=40 if scale == "smoke" else None)
    training = replace(TRAINING, batch_size=max(1, records // 4), shuffled=False)
    return [
        Experiment(
            label="batch size",
            about="A training in batches of a quarter of the images, simulated as it was, and at full batch: what the "
            "attacker presets who does not know the batch size.",
            victims=mlp_victims(scale, training=training),
            attack=whitened(with_search(attack, steps=400) if scale == "full" else attack),
            evaluations=(partial(_preset, images_of(scale)),),
            budget=Budget(iterations=(400, ITERATIONS)) if scale == "full" else None,
        )
    ]


def _preset(images: Images, trial: Trial) -> Outcome:
    """Evaluation: the search with the training known, and with a preset batch size and the learning rate it needs."""
    case, attack = trial.victims.cases[0], resumable(trial.attack, trial.store)
    assert isinstance(attack, SimuDy)
    assert isinstance(case.release, FineTuned)
    true = case.release.training
    rates = [factor * true.optimizer.lr for factor in (1.0, 2.0, 4.0, 8.0)]
    grid = [replace(true, batch_size=None, optimizer=SGD(lr=rate)) for rate in rates]
    brief = with_search(attack, steps=max(1, attack.search.steps // 10))
    preset = find_training(brief, case.release, grid, seed=derive_seed(trial.seed, "rate"))
    null, measures = _null(images, trial), list[Measure]()
    for name, training in ((KNOWN, None), (PRESET, preset)):
        found = simulating(attack, training).run(case.release, seed=trial.seed)
        ssim = _mean_ssim(images, found.x, case.truth.x, trial.seed)
        rate = (training or true).optimizer.lr
        meaning = f"greedy, of normalised images, learning rate {rate:g}; chance: as many unrelated images"
        measures.append(Measure.from_interval(name, ssim, meaning=meaning, chance=null))
    return Outcome(measures=tuple(measures), caveats=(CHOSEN,))


def _mean_ssim(images: Images, found: Tensor, truth: Tensor, seed: int) -> Interval:
    return bootstrap_mean(images.ssim.paired(found[images.matching(found, truth)], truth), seed=seed)


def _null(images: Images, trial: Trial) -> float:
    """The null level of the mean SSIM: as many images that were never trained on."""
    truth = trial.victims.cases[0].truth.x
    others = shuffled(trial.victims.split.test, derive_seed(trial.seed, "look-alikes")).x[: len(truth)]
    return _mean_ssim(images, others, truth, trial.seed).value
