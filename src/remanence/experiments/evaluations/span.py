"""What one SVD of a first layer shows: how many records trained it, and which; see `diagnostics.span`."""

from collections.abc import Mapping
from math import nan

import torch
from torch import Tensor

from remanence.diagnostics.span import Span
from remanence.experiments.checks import few_held_out, no_gap, records_outside, swapped
from remanence.experiments.outcome import Figure, Measure, Outcome, Series
from remanence.experiments.words import percent, score
from remanence.metrics import Interval, Membership, membership_test
from remanence.seeds import derive_seed
from remanence.types import Data

RANK, AUC = "training records, by the rank", "AUC"
IDENTIFIED, FALSE = "private records identified", "held-out records taken for private ones"
OUTSIDE = "by the fraction of a record's energy that lies outside the span"


def span_outcome(found: Span, records: Data, held_out: Data, seed: int, *, hint: str = "") -> Outcome:
    """The rank, membership of `records` against `held_out`, and the figures, for a layer that `records` trained.

    `hint` ends the verdict where nothing can be said, with what to do about it.
    """
    rank, values = rank_measure(RANK, found, len(records)), singular_values({"the first layer": found})
    if caveat := no_gap(found):
        verdict = f"Which records trained the model, and how many, cannot be said, which is no safety{hint}."
        return Outcome(measures=(rank,), figures=(values,), caveats=(caveat,), verdict=verdict)
    inside, out = (found.outside(data.x) for data in (records, held_out))
    test = membership_test(-inside, -out, seed=derive_seed(seed, "membership"))
    found_caveats = (records_outside(inside), few_held_out(test), swapped(test))
    counted = "" if found_caveats[0] else f" By the rank, {found.rank} or more records trained the model."
    return Outcome(
        measures=(rank, *membership_measures(test)),
        figures=(values, outside_figure(inside, out)),
        caveats=tuple(filter(None, found_caveats)),
        verdict=_verdict(test) + counted + (" Are `--data` and `--held-out` swapped?" if found_caveats[2] else ""),
    )


def _verdict(test: Membership) -> str:
    if few_held_out(test):
        auc = score(test.auc.value)
        return f"Which records trained the model cannot be said by so few held-out ones (AUC {auc})."
    count, wrong = int(test.identified.sum()), percent(test.false_positives.value)
    were = "was" if count == 1 else "were"
    return f"{count} of {len(test.identified)} records {were} identified as training records (false positives {wrong})."


def rank_measure(name: str, found: Span, records: int) -> Measure:
    """The rank of the first layer, which counts the independent records that trained it."""
    meaning = (
        f"how many independent records can be seen: the rank of the first layer, by a gap between singular values that "
        f"is {found.gap:.3g}-fold; {records} records were trained on; without a clear gap nothing can be said"
    )
    return Measure(name=name, value=nan if found.rank is None else float(found.rank), meaning=meaning)


def membership_measures(test: Membership, suffix: str = "") -> list[Measure]:
    """The fraction identified, the false positives and the AUC of a membership test by the span."""
    unknown = Interval(value=nan, low=nan, high=nan)
    identified, wrong = (unknown, unknown) if few_held_out(test) else (test.fraction_identified, test.false_positives)
    trained = f"fraction of the records trained on that are identified at 1 % false positives, {OUTSIDE}"
    held_out = "fraction of the held-out records, others than those that set the threshold, that pass it"
    nearer = f"chance that a record trained on lies nearer to the span than a held-out one, {OUTSIDE}"
    return [
        Measure.from_interval(IDENTIFIED + suffix, identified, chance=0.01, meaning=trained),
        Measure.from_interval(FALSE + suffix, wrong, chance=0.01, meaning=held_out),
        Measure.from_interval(AUC + suffix, test.auc, chance=0.5, meaning=nearer),
    ]


def singular_values(spans: Mapping[str, Span]) -> Figure:
    """The singular values of first layers, largest first."""
    series = tuple(
        Series(name=name, x=tuple(float(i) for i in range(1, len(span.values) + 1)), y=tuple(span.values.tolist()))
        for name, span in spans.items()
    )
    return Figure(
        title="Singular values of the first layer", x_label="index", y_label="singular value", series=series, log_y=True
    )


def outside_figure(inside: Tensor, out: Tensor, *, names: tuple[str, str] = ("trained on", "held out")) -> Figure:
    """How many records have no more than a fraction of their energy outside the span."""
    nearest = torch.cat([inside, out]).min().clamp_min(1e-32).log10()
    levels = torch.logspace(float(nearest), 0, 60, dtype=inside.dtype, device=inside.device)

    def fractions(outside: Tensor) -> tuple[float, ...]:
        return tuple((outside[:, None] <= levels).double().mean(0).tolist())

    x = tuple(levels.tolist())
    return Figure(
        title="Energy outside the span",
        x_label="fraction of a record's energy outside the span",
        y_label="fraction of the records with no more",
        series=(
            Series(name=names[0], x=x, y=fractions(inside)),
            Series(name=names[1], x=x, y=fractions(out), role="chance"),
        ),
        log_x=True,
    )
