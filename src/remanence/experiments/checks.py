"""Checks of a finding: each is a function from a finding to a caveat in plain words, or None."""

from collections.abc import Callable
from importlib.util import find_spec
from math import ceil

import torch
from torch import Tensor

from remanence.diagnostics.span import CLEAR, Span
from remanence.experiments.finding import Finding
from remanence.metrics import Membership
from remanence.metrics.evaluation import FPR, oriented
from remanence.training.guarantee import guarantee_of
from remanence.types import Caveat

_SWAPPED = 0.1  # an AUC that chance does not reach from above
_COARSE = 0.1  # of the records: where more must leak before any is listed, the list is coarse
_ALIKE = 1e-6  # of a binomial test
_OUTSIDE = 0.01  # of a record's energy; of records that were trained on rounding is left, or what initial weights left


def caveats(finding: Finding) -> list[Caveat]:
    """What every check has to say, in the order of CHECKS."""
    return [caveat for check in CHECKS if (caveat := check(finding))]


def nothing_found(finding: Finding) -> Caveat | None:
    if finding.scores.found.any():
        return None
    text = "No record was found by this attack at this budget. A stronger attack or a longer one may find some."
    return Caveat(code="nothing-found", text=text)


def few_records(finding: Finding) -> Caveat | None:
    if (n := len(finding.truth)) >= 30:
        return None
    found = finding.scores.fraction_found
    text = (
        f"Only {n} record{'s were' if n > 1 else ' was'} attacked: the fraction found could be anything "
        f"from {found.low:.0%} to {found.high:.0%}."
    )
    return Caveat(code="few-records", text=text)


def few_held_out_records(finding: Finding) -> Caveat | None:
    """Ranks among few records are coarse: a list at a false-discovery rate of 5 % needs 20 held-out ones for each."""
    test = finding.scores.test
    if (smallest := test.smallest_list) <= max(1, _COARSE * len(test.p)):
        return None
    text = (
        f"With {test.held_out:,} held-out records at least {smallest} of {len(test.p)} must leak before any is listed: "
        f"hold out {ceil(len(test.p) / test.fdr):,} to see a single one."
    )
    return Caveat(code="few-held-out-records", text=text)


def classes_not_held_out(finding: Finding) -> Caveat | None:
    if not (missing := finding.scores.test.untested):
        return None
    count = int(torch.isin(finding.truth.y.cpu(), torch.tensor(missing)).sum())
    text = (
        f"No record with label {', '.join(map(str, missing))} was held out: {count} private records cannot be tested "
        "and count as not found. Hold out 20 records or more of each."
    )
    return Caveat(code="classes-not-held-out", text=text)


def records_alike(finding: Finding) -> Caveat | None:
    """Where private records resemble one another more than held-out ones, the test may take one for another."""
    likeness = finding.scores.likeness
    if likeness.p > _ALIKE or finding.scores.test.subjects is not None:
        return None
    text = (
        f"The record most like a private one is private too for {likeness.nearest:.0%} of them, where "
        f"{likeness.expected:.0%} were expected: private and held-out records are not of one kind, or several are of "
        "one person or scene, and what is found may be another of these. Hold out records of the same kind, or say "
        "which are of one subject with `groups`."
    )
    return Caveat(code="records-alike", text=text)


def no_better_than_a_neighbour(finding: Finding) -> Caveat | None:
    """The level that the informed-adversary papers compare with: a release that adds nothing to owning similar data."""
    scores, metric = finding.scores, finding.scores.primary
    ours, neighbour = (
        oriented(metric, v[metric.name]) for v in (scores.values, scores.nulls["nearest_neighbour"].values)
    )
    if ours.nanmean() > neighbour.mean():
        return None
    text = (
        f"On average the reconstructions come no closer ({metric.name}) than the nearest record an attacker could own: "
        "what was reconstructed may be the kind of record rather than the record."
    )
    return Caveat(code="no-better-than-a-neighbour", text=text)


def unmatched_records(finding: Finding) -> Caveat | None:
    if not (count := finding.scores.unmatched):
        return None
    text = (
        f"{count} of {len(finding.truth)} records got no reconstruction; "
        "they count as not found and are left out of the means."
    )
    return Caveat(code="unmatched-records", text=text)


def broken_reconstructions(finding: Finding) -> Caveat | None:
    broken = int((~finding.reconstruction.x.isfinite()).flatten(1).any(dim=1).sum())
    if not broken:
        return None
    text = f"{broken} reconstructions hold values that are not finite: the attack diverged there and says nothing."
    return Caveat(code="broken-reconstructions", text=text)


def above_the_limit(finding: Finding) -> Caveat | None:
    if finding.limit is None or not finding.limit.violated:
        return None
    limit = finding.limit
    text = (
        f"The attack succeeds on {limit.success.value:.1%} of the records, {limit.success.low:.1%} at the very least, "
        f"and differential privacy (epsilon {limit.epsilon:.3g}, delta {limit.delta:g}) allows no attack more than "
        f"{limit.bound:.1%}. This is a bug in the training, the accounting or the evaluation, and no result."
    )
    return Caveat(code="above-the-limit", text=text)


def limit_not_computed(finding: Finding) -> Caveat | None:
    training = getattr(finding.release, "training", None)
    if finding.limit is not None or training is None or (guarantee := guarantee_of(training)) is None:
        return None
    missing = guarantee.sample_rate < 1 and find_spec("dp_accounting") is None
    why = (
        'the guarantee of Poisson samples needs dp-accounting: `pip install "remanence[dp]"`'
        if missing
        else "the limit is about releases that withhold one record, with one reconstruction for each"
    )
    text = f"The training has the noise of differential privacy, and no limit stands beside what was measured: {why}."
    return Caveat(code="limit-not-computed", text=text)


def few_held_out(test: Membership) -> Caveat | None:
    if 1 / (1 + test.null) <= FPR:
        return None
    text = (
        f"Only {test.null} held-out records set the threshold, too few for a rate of {FPR:.0%}: no record can be "
        "identified, whatever the weights hold. Hold 200 or more out."
    )
    return Caveat(code="few-held-out", text=text)


def swapped(test: Membership) -> Caveat | None:
    if test.auc.value > _SWAPPED:
        return None
    text = (
        f"The held-out records lie nearer to the span than those that are said to have trained the model (AUC "
        f"{test.auc.value:.2f}, by chance 0.5): were the two swapped?"
    )
    return Caveat(code="swapped", text=text)


def records_outside(outside: Tensor) -> Caveat | None:
    """A check of a span whose records are known, by the fraction of each one's energy that lies outside it."""
    if (typical := float(outside.median())) <= _OUTSIDE:
        return None
    text = (
        f"The records that trained the model do not lie in the span (half of them have {typical:.0%} or more of their "
        "energy outside it): what its rank counts are not records. Weight decay leaves few directions where a record "
        "has few features."
    )
    return Caveat(code="records-outside", text=text)


def no_gap(span: Span) -> Caveat | None:
    if span.rank is not None:
        return None
    text = (
        f"No singular value of the first layer is {CLEAR:g} times the next ({span.gap:.3g} times at most) between the "
        "number of classes and that of features and rows: how many records were trained on, and whether a record was, "
        "cannot be said from it. That is no safety: more may remain of the initial weights than is known, records may "
        "be as many as features or rows, or the steps were not those of SGD."
    )
    return Caveat(code="no-gap", text=text)


def fewer_weights_than_values(rank: int, records: int) -> Caveat | None:
    """Where weights of a linear model are fewer combinations of records than there are records."""
    if rank >= records:
        return None
    text = (
        f"The weights of a linear model are {rank} combinations of its {records} records, at most one for each class: "
        "other records with the same combinations explain them as well, and what is found is near means of classes."
    )
    return Caveat(code="fewer-weights-than-values", text=text)


def tuned_on_truth(
    text: str = (
        "The attack's settings were chosen by looking at true records of this data set: elsewhere it may do worse."
    ),
) -> Caveat:
    """The caveat of a recipe whose settings were chosen on the truth."""
    return Caveat(code="tuned-on-truth", text=text)


CHECKS: tuple[Callable[[Finding], Caveat | None], ...] = (
    nothing_found,
    few_records,
    few_held_out_records,
    classes_not_held_out,
    records_alike,
    no_better_than_a_neighbour,
    unmatched_records,
    broken_reconstructions,
    above_the_limit,
    limit_not_computed,
)
