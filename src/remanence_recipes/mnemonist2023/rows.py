"""Which rows store a target, which help to read it, and whether they are the same."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from remanence.attacks import Importance
from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Scale, Series
from remanence.metrics.statistics import bootstrap_statistic, rank_correlation
from remanence.seeds import derive_seed
from remanence_recipes.mnemonist2023.setting import STEPS, TUNED, Readings, cut, net, runs, training
from remanence_recipes.storage import storage_study

_SEEN = 1.96  # standard errors on either side of a 95 % interval


def figure5_storage(scale: Scale) -> Sequence[Experiment]:
    """Figure 5: how many rows of the first layer store each target at steps 1, 30 and 40, ReLU against sigmoid."""
    split, steps = partial(cut, scale), (1, 3 * STEPS[scale] // 4, STEPS[scale])
    return [
        storage_study(name, split, partial(net, activation), training(scale), steps=steps, caveats=(TUNED,))
        for name, activation in (("ReLU", nn.ReLU), ("sigmoid", nn.Sigmoid))
    ]


def figure7_importance(scale: Scale) -> Sequence[Experiment]:
    """Figures 7 and 8: how much each row helps to read the record, beside how many records it stores."""
    about = "Rows of the first layer put back to their first weights, all masks of them: which does RecoNN miss?"
    return [
        Experiment(
            label="importance of rows", about=about, evaluations=(Measurement(measure=partial(_importance, scale)),)
        )
    ]


def _importance(scale: Scale, seed: int, device: torch.device) -> Outcome:
    (run,) = runs(scale, nn.ReLU, 1, seed, device)
    found = Readings.of(run).importance
    stored = run.storage((1,)).stored[:, 0].double()
    return Outcome(
        measures=(_agreement(found, stored, seed), _surrogate(found)),
        figures=(_bars(found), _storage(stored), _masks(found), _by_count(found)),
        caveats=(TUNED,),
    )


def _agreement(found: Importance, stored: Tensor, seed: int) -> Measure:
    """The interval is over held-out models and targets; the rows are those of the net, all of them."""

    def statistic(models: Tensor, targets: Tensor) -> float:
        return rank_correlation(-found.coefficients[models].mean(0), stored[targets].mean(0))

    sizes = len(found.coefficients), len(stored)
    rho = bootstrap_statistic(statistic, sizes, seed=derive_seed(seed, "agreement"))
    meaning = (
        "rank correlation over the rows of how much a row helps (minus its coefficient) with the share of the targets "
        "that it stores at the first step"
    )
    return Measure.from_interval("importance against storage", rho, meaning=meaning, chance=0.0)


def _surrogate(found: Importance) -> Measure:
    errors, predicted = found.errors.double().mean(0), _predicted(found)
    left = (errors - predicted).square().sum() / (errors - errors.mean()).square().sum()
    masks, rows = found.masks.shape
    meaning = (
        "share of the variance of the error over masks (mean over held-out models) that a linear function explains; "
        "of errors that have nothing to do with the rows it would explain the share that is chance"
    )
    return Measure(name="linear surrogate, R²", value=1 - float(left), chance=rows / (masks - 1), meaning=meaning)


def _predicted(found: Importance) -> Tensor:
    """What the surrogate says of each mask; at the mean mask it says the mean error."""
    bits, errors = found.masks.double(), found.errors.double().mean(0)
    return errors.mean() + (bits - bits.mean(0)) @ found.coefficient


def _bars(found: Importance) -> Figure:
    helps, error = -found.coefficient.cpu(), _SEEN * found.standard_error.cpu()
    series = Series(
        name="lowers the error by",
        x=_names(len(helps)),
        y=tuple(helps.tolist()),
        low=tuple((helps - error).tolist()),
        high=tuple((helps + error).tolist()),
    )
    return Figure(title="Importance", x_label="row", y_label="minus coefficient", series=(series,), kind="bars")


def _storage(stored: Tensor) -> Figure:
    share = Series(name="stores", x=_names(stored.shape[1]), y=tuple(stored.mean(0).tolist()))
    return Figure(title="Storage", x_label="row", y_label="share of the targets, step 1", series=(share,), kind="bars")


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"S{row}" for row in range(count))


def _masks(found: Importance) -> Figure:
    errors, predicted = found.errors.double().mean(0).cpu(), _predicted(found).cpu()
    points = Series(name="one mask", x=tuple(predicted.tolist()), y=tuple(errors.tolist()))
    label = "error that the linear surrogate says"
    return Figure(title="Every mask", x_label=label, y_label="error of RecoNN", series=(points,), kind="points")


def _by_count(found: Importance) -> Figure:
    """The error over the masks with as many rows; low and high are their quartiles."""
    errors, kept = found.errors.double().mean(0).cpu(), found.masks.sum(1).cpu()
    counts = kept.unique().tolist()
    quarters = torch.tensor([0.25, 0.5, 0.75], dtype=torch.double)
    low, middle, high = torch.stack([errors[kept == count].quantile(quarters) for count in counts]).T.tolist()
    series = Series(
        name="median, and quartiles over the masks",
        x=tuple(float(count) for count in counts),
        y=tuple(middle),
        low=tuple(low),
        high=tuple(high),
    )
    return Figure(title="Rows kept", x_label="rows that the mask keeps", y_label="error of RecoNN", series=(series,))
