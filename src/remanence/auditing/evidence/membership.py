"""Evidence without a reconstruction: membership, the span of the first layer, labels. It is never counted as found.

Nothing here ends an audit: what a release does not allow is left out, or is a row without a value that says why. The
p-value of a row compares private with held-out records of the same class, so that classes that are more frequent among
the one than among the other make no evidence.
"""

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from remanence.auditing.answer.report import Evidence
from remanence.auditing.checks.outputs import endpoints, fitted_loss, logits_of, losses, losses_of
from remanence.auditing.checks.records import distinct
from remanence.auditing.evidence.intervals import auc_of_few, identified_at_fpr
from remanence.auditing.evidence.labels import Group, labels_of, without_value
from remanence.auditing.evidence.likelihood_ratio import likelihood_ratios
from remanence.diagnostics import Span, estimate_span
from remanence.errors import BadInput
from remanence.experiments.outcome import Figure, Series
from remanence.metrics.evaluation import FPR
from remanence.metrics.exchangeability import rank_sum_test
from remanence.metrics.statistics import auc, bootstrap_statistic, roc
from remanence.models import FirstLinear, Unsupported, apply, first_linear
from remanence.progress import OutOfTime, time_limit
from remanence.releases import FineTunedUnknownRecipe, KnowsFinal, KnowsInitial, KnowsUpdate, WeightsOnly
from remanence.seeds import derive_seed
from remanence.types import Data, Params

Gathered: TypeAlias = tuple[tuple[Evidence, ...], tuple[Figure, ...]]
SECONDS = 60.0
_MAX_HELD_OUT = 2000
_MAX_PRIVATE = 2000
_MIN_SECONDS = 1.0
_FEW = 20  # records of a sample, of which a bootstrap gives an interval that is too short
_FEWEST = round(1 / FPR) - 1  # held-out records, with which a false-positive rate of 1 % can be stated


class Scored(NamedTuple):
    """Scores of private and held-out records, larger for members, and what they are."""

    private: Tensor
    held_out: Tensor
    meaning: str
    chosen: Tensor | None = None  # of the held-out records that are scored; None: all


def gather_evidence(release: Any, private: Data, held_out: Data, *, seed: int, seconds: float = SECONDS) -> Gathered:
    """Every row that the release allows, and the figures that go with them, in about so many `seconds`."""
    start, batch = perf_counter(), private
    private, held_out = (
        _sampled(distinct(data), size, derive_seed(seed, "sampled", size))
        for data, size in ((private, _MAX_PRIVATE), (held_out, _MAX_HELD_OUT))
    )
    before, after = endpoints(release)
    tests: list[tuple[str, Group, Callable[[], Scored]]] = []
    if after is not None:
        tests.append(("membership by loss", "membership", lambda: by_loss(release, private, held_out)))
    if after is not None and before is not None:
        tests.append(("membership by loss drop", "membership", lambda: by_loss_drop(release, private, held_out)))
    if isinstance(release, KnowsUpdate):
        tests.append(("membership by gradient", "membership", lambda: by_gradient(release, private, held_out)))
    tests.append(("span", "span", lambda: by_span(release, private, held_out)))
    if isinstance(release, KnowsFinal):

        def by_shadows() -> Scored:
            left = seconds - (perf_counter() - start)
            return by_likelihood_ratio(release, private, held_out, seconds=left, seed=derive_seed(seed, "shadows"))

        tests.append(("membership by likelihood ratio", "membership", by_shadows))
    rows, curves = list[Evidence](), list[Series]()
    for name, group, test in tests:
        more, curve = _attempt(name, group, test, private, held_out, seed=derive_seed(seed, name), seconds=seconds)
        rows, curves = rows + more, curves + curve
    figures = [_roc_figure(curves)] if curves else []
    if isinstance(release, KnowsUpdate) and release.labels is None:
        left = max(seconds - (perf_counter() - start), _MIN_SECONDS)
        row, bars = labels_of(release, batch, held_out, seed=derive_seed(seed, "labels"), seconds=left)
        rows, figures = [*rows, row], figures + bars
    return tuple(rows), tuple(figures)


def by_loss(release: Any, private: Data, held_out: Data) -> Scored:
    """Membership by the loss of a record (Yeom et al. 2018): members have lower ones."""
    _, after = endpoints(release)
    assert after is not None
    loss = _loss(release, after, private, held_out)
    ours, theirs = (-losses(release.model, after, data, loss) for data in (private, held_out))
    return Scored(ours, theirs, "by the loss, which is lower for members")


def by_loss_drop(release: Any, private: Data, held_out: Data) -> Scored:
    """Membership by the drop of a record's loss from the base to the trained weights: records that are easy to begin
    with do not look like members (Watson et al. 2022 calibrate by a reference model so)."""
    before, after = endpoints(release)
    assert before is not None
    assert after is not None
    loss = _loss(release, after, private, held_out)
    ours, theirs = (
        losses(release.model, before, data, loss) - losses(release.model, after, data, loss)
        for data in (private, held_out)
    )
    return Scored(ours, theirs, "by how far training lowered the loss from that of the base")


def _loss(release: Any, params: Params, private: Data, held_out: Data) -> Any:
    """The loss that the release tells, or its outputs do."""
    x, y = torch.cat([private.x, held_out.x]), torch.cat([private.y, held_out.y])
    return fitted_loss(release, logits_of(release.model, params, x), y)


def by_gradient(release: KnowsUpdate, private: Data, held_out: Data) -> Scored:
    """Membership by the inner product of a record's gradient with the update: a member's is part of it."""
    ours, theirs = (
        torch.cat([_along_update(release, some) for some in _batches(data)]) for data in (private, held_out)
    )
    return Scored(ours, theirs, "by how far the record's gradient points along the update")


def _along_update(release: KnowsUpdate, data: Data) -> Tensor:
    """(records,): the inner products of all records' gradients with the update, by differentiating a weighted sum of
    the gradients with respect to the weights of the records."""
    params = {name: release.at[name].detach().requires_grad_() for name in release.sent}
    each = losses_of(apply(release.model, release.at | params, data.x), data.y, release.loss)
    of_records = torch.zeros_like(each, requires_grad=True)
    gradients = torch.autograd.grad(each, list(params.values()), of_records, create_graph=True)
    products = [(g * release.sent[name]).sum() for name, g in zip(params, gradients, strict=True)]
    return torch.autograd.grad(torch.stack(products).sum(), of_records)[0]


def by_span(release: Any, private: Data, held_out: Data) -> Scored:
    """Membership by the fraction of a record outside the span of the first layer (diagnostics/span.py); the rank is
    the number of records where no gap shows it."""
    span = span_of(release, private)
    ours, theirs = (-span.outside(data.x) for data in (private, held_out))
    return Scored(ours, theirs, f"by what of the record lies outside the first layer's span of rank {span.rank}")


def span_of(release: Any, private: Data) -> Span:
    """The span of a release's first layer, of its update where it is one.

    Where no gap shows it, the rank is the number of records, and what is left of the base is tried out: what leaves the
    clearest gap after as many values is subtracted. That takes no record into account, only how many there are.
    """
    shown = release
    if not isinstance(release, KnowsFinal):
        shown = WeightsOnly(
            model=release.model,
            final=release.at | _first_layer_sent(release),
            shape=release.shape,
            bounds=release.bounds,
            num_classes=max(private.num_classes, 1),
        )
    span = estimate_span(shown)
    if span.rank is not None:
        return span
    fixed = getattr(release, "fixed", None)
    batch = getattr(release, "batch_size", None) or len(private)  # of several clients where they are averaged
    records = batch + (0 if fixed is None else len(fixed))
    if records >= len(span.values):
        message = (
            f"{records} records are as many as the first layer has inputs or rows, {len(span.values)}: they span all "
            "of it, and being in the span says nothing"
        )
        raise BadInput(message, code="unsupported-model", argument="release")
    every = [shown, *_from_scaled_bases(release)] if isinstance(release, KnowsInitial) else [shown]
    return max((estimate_span(each, rank=records) for each in every), key=lambda span: span.gap)


def _first_layer_sent(release: KnowsUpdate) -> Params:
    """The update of the first layer, zero where the client kept it frozen."""
    first = first_linear(release.model, release.shape)
    names = () if isinstance(first, Unsupported) else (f"{first.layer.path}.{kind}" for kind in ("weight", "bias"))
    return {name: release.sent.get(name, torch.zeros_like(release.at[name])) for name in names if name in release.at}


def _from_scaled_bases(release: KnowsInitial) -> Iterator[FineTunedUnknownRecipe]:
    """The release with multiples of the base's first layer, what weight decay may have left of it: all of it, the
    multiple nearest to the trained layer, and the median of their ratios, which is exact where most inputs are zero."""
    first = first_linear(release.model, release.shape)
    assert isinstance(first, FirstLinear)  # estimate_span refuses the others
    old, new = (params[first.layer.weight].double() for params in (release.initial, release.final))
    ratios = (new / old)[old != 0]
    nearest = float((old * new).sum() / old.square().sum().clamp_min(1e-300))
    for fraction in (1.0, nearest, float(ratios.median()) if len(ratios) else 0.0):
        layer = {n: fraction * p for n, p in release.initial.items() if n.startswith(f"{first.layer.path}.")}
        yield FineTunedUnknownRecipe(
            model=release.model,
            final=release.final,
            shape=release.shape,
            bounds=release.bounds,
            num_classes=release.num_classes,
            initial=release.initial | layer,
        )


def by_likelihood_ratio(release: Any, private: Data, held_out: Data, *, seconds: float, seed: int) -> Scored:
    """Membership by likelihood ratio from shadow models (Carlini et al. 2022)."""
    ratios = likelihood_ratios(release, private, held_out, seconds=seconds, seed=seed)
    kind = "records in and out of them" if ratios.online else "records that they did not see"
    meaning = f"by the likelihood ratio over {ratios.shadows} shadow models, from {kind}"
    return Scored(ratios.private, ratios.held_out, meaning, ratios.index)


def _attempt(
    name: str, group: Group, test: Callable[[], Scored], private: Data, held_out: Data, *, seed: int, seconds: float
) -> tuple[list[Evidence], list[Series]]:
    """The rows of one test and its ROC; one row without a value where it cannot be made."""
    try:
        with time_limit(max(seconds, _MIN_SECONDS)):
            scored = test()
        theirs = held_out.y.cpu() if scored.chosen is None else held_out.y.cpu()[scored.chosen]
        return membership_rows(name, group, scored, private.y.cpu(), theirs, seed=seed)
    except OutOfTime:
        reason = "it did not end within its part of the budget: give more with `--budget`"
    except BadInput as refusal:
        reason = str(refusal)
    except Exception as fault:
        reason = f"it failed: {type(fault).__name__}: {str(fault).partition(chr(10))[0]}"
    return [without_value(f"{name}: tpr@1%", group, FPR, reason)], []


def membership_rows(
    name: str, group: Group, scored: Scored, labels: Tensor, held_out_labels: Tensor, *, seed: int
) -> tuple[list[Evidence], list[Series]]:
    """The fraction identified at 1 % false positives, the AUC and the ROC, by a score that is larger for members."""
    ours, theirs = (each.detach().double().cpu() for each in (scored.private, scored.held_out))
    ours, theirs = ours.nan_to_num(nan=-torch.inf), theirs.nan_to_num(nan=torch.inf)  # to the safe side

    def resampled(rows: Tensor, null_rows: Tensor) -> float:
        return auc(ours[rows], theirs[null_rows])

    area = bootstrap_statistic(resampled, (len(ours), len(theirs)), seed=derive_seed(seed, "auc"), resamples=200)
    if (fewest := min(len(ours), len(theirs))) < _FEW:
        area = auc_of_few(area.value, fewest)
    found = identified_at_fpr(ours, theirs)
    identified = Evidence(
        name=f"{name}: tpr@1%",
        value=found.value,
        low=found.low,
        high=found.high,
        chance=FPR,
        meaning=f"fraction of the private records identified where 1 % of held-out ones are, {scored.meaning}",
        group=group,
    )
    if len(theirs) < _FEWEST:
        reason = f"a false-positive rate of 1 % needs {_FEWEST} held-out records or more, got {len(theirs)}: give more"
        identified = without_value(identified.name, group, FPR, reason)
    area_row = Evidence(
        name=f"{name}: AUC",
        value=area.value,
        low=area.low,
        high=area.high,
        chance=0.5,
        meaning=f"how often a private record scores higher than a held-out one, {scored.meaning}",
        p=rank_sum_test(ours, theirs, labels, held_out_labels),
        group=group,
    )
    curve = roc(ours, theirs, distinct=len(theirs), points=60)
    return [identified, area_row], [Series(name=name, x=curve.fpr, y=curve.tpr)]


def _roc_figure(curves: list[Series]) -> Figure:
    chance = Series(name="chance", x=curves[0].x, y=tuple(float(x) for x in curves[0].x), role="chance")
    return Figure(
        title="Membership",
        x_label="false-positive rate",
        y_label="true-positive rate",
        series=(*curves, chance),
        log_x=True,
    )


def _sampled(data: Data, size: int, seed: int) -> Data:
    if len(data) <= size:
        return data
    return data.take(torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:size])


def _batches(data: Data, size: int = 256) -> list[Data]:
    return [data.take(slice(first, first + size)) for first in range(0, len(data), size)]
