"""What one SVD of a first layer tells, as a study that any audit of an MLP may hold."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from math import nan, prod

import torch
from torch import Tensor, nn

from remanence.attacks import Span, read_span
from remanence.checks import few_held_out, no_gap, records_outside
from remanence.data import Split
from remanence.data.splits import check_disjoint
from remanence.errors import BadInput
from remanence.experiment import Figure, Measure, Outcome, Series, Study
from remanence.loading import load_weights
from remanence.metrics import Interval, Membership, membership
from remanence.nets import initial_params, mlp
from remanence.release import WeightsOnly
from remanence.seeds import stream
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


def span_study(label: str, split: Callable[[int], Split]) -> Study:
    """How many records trained an MLP with weight decay, and whether private ones tell from held-out ones."""
    about = (
        "An MLP is trained with weight decay on a few private records, in float64, until its first weights have died "
        "out. One SVD of its first layer, from the weights alone: the rank is the number of records, and a record that "
        "was trained on lies in the span."
    )
    return Study(label=label, about=about, run=partial(_run, split))


def _run(split: Callable[[int], Split], seed: int, device: torch.device) -> Outcome:
    parts = split(seed)
    private = parts.private.take(slice(0, _MOST)).to(device, torch.float64)
    model = mlp(private.shape, private.num_classes, hidden=_HIDDEN, activation=nn.ReLU)
    final = _training(private)(model, started(model, private, seed=seed), private)
    release = WeightsOnly(model=model, final=final, shape=private.shape, num_classes=private.num_classes)
    return _told(read_span(release), private, parts.test, seed)


def finished_study(
    label: str, records: Callable[[], Data], held_out: Callable[[], Data], weights: str | os.PathLike[str]
) -> Study:
    """The same of a finished model, from its file: `records` are those that trained it."""
    about = (
        "One SVD of the first layer of a finished model: how many records it says, and whether given ones lie in it."
    )
    return Study(label=label, about=about, run=partial(_finished, records, held_out, weights))


def _finished(
    records: Callable[[], Data],
    held_out: Callable[[], Data],
    weights: str | os.PathLike[str],
    seed: int,
    device: torch.device,
) -> Outcome:
    private, others = records(), held_out()
    release = _first_layer(load_weights(weights), private, device)
    check_disjoint({"data": private, "held-out": others})
    return _told(read_span(release), private, others, seed)


def _first_layer(params: Params, records: Data, device: torch.device) -> WeightsOnly:
    """A model that is cut off behind it: what follows does not matter."""
    features = prod(records.shape)
    matrices = {n: p for n, p in params.items() if n.endswith("weight") and p.ndim == 2 and p.is_floating_point()}
    names = [name for name, p in matrices.items() if len(p) and p.shape[1] == features]
    if len(names) != 1:
        raise BadInput(
            f"`weights` must hold one matrix of a linear layer with {features} columns, the numbers of a record, "
            f"got {names or 'none'}: use `read_span` from Python"
        )
    bias, rows = params.get(f"{names[0].removesuffix('weight')}bias"), len(params[names[0]])
    if bias is not None and bias.shape != (rows,):
        raise BadInput(f"`weights` must hold {rows} biases for `{names[0]}`, got the shape {tuple(bias.shape)}")
    final = {"1.weight": params[names[0]]} | ({} if bias is None else {"1.bias": bias})
    linear = nn.Linear(features, rows, bias=bias is not None, device="meta")
    return WeightsOnly(
        model=nn.Sequential(nn.Flatten(), linear),
        final={name: p.to(device) for name, p in final.items()},
        shape=records.shape,
        num_classes=records.num_classes,
    )


def _told(found: Span, records: Data, held_out: Data, seed: int) -> Outcome:
    rank, values = rank_measure(RANK, found, len(records)), singular_values({"the first layer": found})
    if caveat := no_gap(found):
        return Outcome(measures=(rank,), figures=(values,), caveats=(caveat,))
    inside, out = (found.outside(data.x) for data in (records, held_out))
    told = membership(-inside, -out, seed=stream(seed, "membership"))
    return Outcome(
        measures=(rank, *membership_measures(told)),
        figures=(values, outside_figure(inside, out)),
        caveats=tuple(filter(None, (records_outside(inside), few_held_out(told)))),
    )


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
    share_told, wrong = (unknown, unknown) if few_held_out(told) else (told.share_told, told.false_positives)
    return [
        Measure.of(
            TOLD + suffix,
            share_told,
            chance=0.01,
            meaning=f"share of the records trained on that are told from held-out ones at 1 % false positives, {by}",
        ),
        Measure.of(
            FALSE + suffix,
            wrong,
            chance=0.01,
            meaning="share of the held-out records, others than those that set the threshold, that pass it",
        ),
        Measure.of(
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
