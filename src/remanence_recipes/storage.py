"""Which rows of the first layer store a record, as a study that any recipe of an MLP may hold."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from remanence.data import Split
from remanence.diagnostics.memorization import Storage, audit_storage
from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Series
from remanence.metrics.statistics import binomial_proportion, bootstrap_mean
from remanence.models import initial_params
from remanence.seeds import derive_seed
from remanence.training import Training
from remanence.types import Caveat, Data

ROWS, NONE = "rows that store a record", "records that no row stores"
_PICTURES = 12  # for each number of rows


def storage_study(
    label: str,
    split: Callable[[int], Split],
    model: Callable[[Data], nn.Module],
    training: Training,
    *,
    steps: Sequence[int],
    caveats: tuple[Caveat, ...] = (),
) -> Experiment:
    """How many rows of the first layer store each private record at some steps of a full-batch training."""
    about = (
        "A row of the first layer stores a record if the record's own gradient moves it; where its neuron is off, as "
        "a ReLU's may be, the row learns nothing about the record. An activation whose slope is never zero, such as "
        "ELU, makes every row store every record."
    )
    return Experiment(
        label=label,
        about=about,
        evaluations=(Measurement(measure=partial(_run, split, model, training, tuple(steps), caveats)),),
    )


def _run(
    split: Callable[[int], Split],
    model: Callable[[Data], nn.Module],
    training: Training,
    steps: tuple[int, ...],
    caveats: tuple[Caveat, ...],
    seed: int,
    device: torch.device,
) -> Outcome:
    parts = split(seed)
    fixed, records = parts.fixed.to(device), parts.private.to(device)
    net = model(records)
    initial = {name: p.to(fixed.x) for name, p in initial_params(net, seed=seed).items()}
    found = audit_storage(training, net, initial, fixed, records, steps=steps, seed=seed)
    return Outcome(
        measures=tuple(_measures(found, seed)),
        figures=(_histogram(found), _shares(found)),
        pictures=_pictures(found, records),
        caveats=caveats,
    )


def _measures(found: Storage, seed: int) -> list[Measure]:
    rows, made = found.stored.shape[2], []
    for step, counts in zip(found.steps, found.rows_storing.T, strict=True):
        mean = bootstrap_mean(counts.double(), seed=derive_seed(seed, "rows", step))
        meaning = f"mean over the records of the number of rows, of {rows}, that the record moves at step {step}"
        made.append(Measure.from_interval(f"{ROWS}, step {step}", mean, meaning=meaning))
    never = found.stored.any(1).sum(1) == 0
    none = binomial_proportion(int(never.sum()), len(never))
    meaning = "share of the records that move no row at any of these steps"
    return [*made, Measure.from_interval(NONE, none, meaning=meaning)]


def _histogram(found: Storage) -> Figure:
    """Figure 5 of the paper."""
    texts = tuple(str(count) for count in range(found.stored.shape[2] + 1))
    series = tuple(
        Series(name=f"step {step}", x=texts, y=tuple((counts / counts.sum()).tolist()))
        for step, counts in zip(found.steps, found.histogram().double(), strict=True)
    )
    label = "rows that store the record"
    return Figure(title="Rows per record", x_label=label, y_label="share of the records", series=series, kind="bars")


def _shares(found: Storage) -> Figure:
    texts = tuple(f"S{row}" for row in range(found.stored.shape[2]))
    series = tuple(
        Series(name=f"step {step}", x=texts, y=tuple(share.tolist()))
        for step, share in zip(found.steps, found.fraction, strict=True)
    )
    return Figure(title="Records per row", x_label="row", y_label="share of the records", series=series, kind="bars")


def _pictures(found: Storage, records: Data) -> dict[str, Tensor]:
    """Some records for each number of rows that ever store them; nothing where records are no images."""
    if records.x.ndim != 4:
        return {}
    rows = found.stored.shape[2]
    ever = found.stored.any(1).sum(1)
    return {
        f"stored by {count} of {rows} rows": records.x[ever == count][:_PICTURES].cpu()
        for count in range(rows + 1)
        if bool((ever == count).any())
    }
