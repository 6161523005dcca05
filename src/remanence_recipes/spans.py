"""What one SVD of a first layer tells, as a study that any audit of an MLP may hold."""

from collections.abc import Callable, Mapping
from functools import partial
from math import nan

import torch
from torch import Tensor, nn

from remanence.data import Split
from remanence.diagnostics.span import Span, estimate_span
from remanence.engine import train
from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Series
from remanence.experiments.checks import few_held_out, no_gap, records_outside, swapped
from remanence.metrics import Interval, Membership, membership_test
from remanence.models import initial_params, mlp
from remanence.releases import WeightsOnly
from remanence.report.words import percent, score
from remanence.seeds import derive_seed
from remanence.training import SGD, Training
from remanence.types import Data, Params

RANK, TOLD, FALSE, AUC = (
    "training records, by the rank",
    "private records told",
    "held-out records taken for private ones",
    "AUC",
)
_MOST = 50  # records of the victim
_HIDDEN = (128,)
_MOMENTUM, _DECAY = 0.9, 2.5e-3  # with it, of rate times weight decay, the first weights die fastest


def span_study(label: str, split: Callable[[int], Split]) -> Experiment:
    """How many records trained an MLP with weight decay, and whether private ones tell from held-out ones."""
    about = (
        "An MLP is trained with weight decay on a few private records, in float64, until its first weights have died "
        "out. One SVD of its first layer, from the weights alone: the rank is the number of records, and a record that "
        "was trained on lies in the span."
    )
    return Experiment(label=label, about=about, evaluations=(Measurement(measure=partial(_run, split)),))


def _run(split: Callable[[int], Split], seed: int, device: torch.device) -> Outcome:
    parts = split(seed)
    private = parts.private.take(slice(0, _MOST)).to(device, torch.float64)
    model = mlp(private.shape, private.num_classes, hidden=_HIDDEN, activation=nn.ReLU)
    final = train(_training(private), model, started(model, private, seed=seed), private)
    release = WeightsOnly(model=model, final=final, shape=private.shape, num_classes=private.num_classes)
    return span_outcome(estimate_span(release), private, parts.test, seed)


def span_outcome(found: Span, records: Data, held_out: Data, seed: int, *, hint: str = "") -> Outcome:
    """Of a layer that `records` trained; `hint` says what to do where nothing can be said."""
    rank, values = rank_measure(RANK, found, len(records)), singular_values({"the first layer": found})
    if caveat := no_gap(found):
        verdict = f"Which records trained the model, and how many, cannot be said, which is no safety{hint}."
        return Outcome(measures=(rank,), figures=(values,), caveats=(caveat,), verdict=verdict)
    inside, out = (found.outside(data.x) for data in (records, held_out))
    told = membership_test(-inside, -out, seed=derive_seed(seed, "membership"))
    doubts = (records_outside(inside), few_held_out(told), swapped(told))
    counted = "" if doubts[0] else f" By the rank, {found.rank} or more records trained the model."
    return Outcome(
        measures=(rank, *membership_measures(told)),
        figures=(values, outside_figure(inside, out)),
        caveats=tuple(filter(None, doubts)),
        verdict=_said(told) + counted + (" Are `--data` and `--held-out` swapped?" if doubts[2] else ""),
    )


def _said(told: Membership) -> str:
    if few_held_out(told):
        auc = score(told.auc.value)
        return f"Which records trained the model cannot be said by so few held-out ones (AUC {auc})."
    count, wrong = int(told.identified.sum()), percent(told.false_positives.value)
    were = "was" if count == 1 else "were"
    return f"{count} of {len(told.identified)} records {were} told to be in the training set (false positives {wrong})."


def _training(records: Data) -> Training:
    """At a rate that records of much energy bear, and a weight decay that goes with it."""
    energy = float(records.x.flatten(1).square().sum(1).mean())
    rate = min(0.2, 40 / max(energy, 1.0))
    return Training(optimizer=SGD(lr=rate, momentum=_MOMENTUM), epochs=500, weight_decay=_DECAY / rate)


def started(model: nn.Module, data: Data, *, seed: int) -> Params:
    return {name: p.to(data.x) for name, p in initial_params(model, seed=seed).items()}


def rank_measure(name: str, found: Span, records: int) -> Measure:
    meaning = (
        f"how many independent records can be seen: the rank of the first layer, by a gap between singular values that "
        f"is {found.gap:.3g}-fold; {records} records were trained on; without a clear gap nothing can be said"
    )
    return Measure(name=name, value=nan if found.rank is None else float(found.rank), meaning=meaning)


def membership_measures(told: Membership, suffix: str = "") -> list[Measure]:
    by, unknown = "by the share of a record's energy that lies outside the span", Interval(value=nan, low=nan, high=nan)
    identified, wrong = (unknown, unknown) if few_held_out(told) else (told.fraction_identified, told.false_positives)
    return [
        Measure.from_interval(
            TOLD + suffix,
            identified,
            chance=0.01,
            meaning=f"share of the records trained on that are told from held-out ones at 1 % false positives, {by}",
        ),
        Measure.from_interval(
            FALSE + suffix,
            wrong,
            chance=0.01,
            meaning="share of the held-out records, others than those that set the threshold, that pass it",
        ),
        Measure.from_interval(
            AUC + suffix,
            told.auc,
            chance=0.5,
            meaning=f"chance that a record trained on lies nearer to the span than a held-out one, {by}",
        ),
    ]


def singular_values(spans: Mapping[str, Span]) -> Figure:
    series = tuple(
        Series(
            name=name,
            x=tuple(float(place) for place in range(1, len(span.values) + 1)),
            y=tuple(span.values.tolist()),
        )
        for name, span in spans.items()
    )
    return Figure(
        title="Singular values of the first layer", x_label="place", y_label="singular value", series=series, log_y=True
    )


def outside_figure(inside: Tensor, out: Tensor, *, names: tuple[str, str] = ("trained on", "held out")) -> Figure:
    """How many records have no more than a share of their energy outside the span."""
    nearest = torch.cat([inside, out]).min().clamp_min(1e-32).log10()
    levels = torch.logspace(float(nearest), 0, 60, dtype=inside.dtype, device=inside.device)

    def share(outside: Tensor) -> tuple[float, ...]:
        return tuple((outside[:, None] <= levels).double().mean(0).tolist())

    x = tuple(levels.tolist())
    return Figure(
        title="Energy outside the span",
        x_label="share of a record's energy outside the span",
        y_label="share of the records with no more",
        series=(
            Series(name=names[0], x=x, y=share(inside)),
            Series(name=names[1], x=x, y=share(out), role="chance"),
        ),
        log_x=True,
    )
