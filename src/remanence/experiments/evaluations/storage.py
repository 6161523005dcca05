"""Which rows of the first layer store a record: memorization of an MLP, before any attack."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from remanence.diagnostics.memorization import Storage, audit_storage
from remanence.experiments.experiment import Trial
from remanence.experiments.outcome import Figure, Measure, Outcome, Series
from remanence.metrics.statistics import binomial_proportion, bootstrap_mean
from remanence.seeds import derive_seed
from remanence.types import Caveat, Data

ABOUT = (
    "A row of the first layer stores a record if the record's own gradient changes it; where its neuron is off, as a "
    "ReLU's may be, the row learns nothing about the record. An activation whose derivative is never zero, such as "
    "ELU, makes every row store every record."
)
ROWS, NONE = "rows that store a record", "records that no row stores"
_PICTURES = 12  # for each number of rows


@final
@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """Evaluation: how many rows of the first layer store each private record at some steps of a full-batch training.

    Each record stands for a victim of its own; the victims are trained here, step by step, and none is attacked.
    """

    steps: tuple[int, ...]
    caveats: tuple[Caveat, ...] = ()

    def __call__(self, trial: Trial) -> Outcome:
        """Rows per record and records per row, with some records of each kind."""
        victims = trial.victims
        fixed, records, training = victims.split.fixed, victims.split.private, victims.victims.training
        initial = {name: p.to(fixed.x) for name, p in victims.initial.items()}
        found = audit_storage(training, victims.model, initial, fixed, records, steps=self.steps, seed=trial.seed)
        return Outcome(
            measures=tuple(_measures(found, trial.seed)),
            figures=_figures(found),
            pictures=_pictures(found, records),
            caveats=self.caveats,
        )


def _measures(found: Storage, seed: int) -> list[Measure]:
    rows, made = found.stored.shape[2], []
    for step, counts in zip(found.steps, found.rows_storing.T, strict=True):
        mean = bootstrap_mean(counts.double(), seed=derive_seed(seed, "rows", step))
        meaning = f"mean over the records of the number of rows, of {rows}, that the record changes at step {step}"
        made.append(Measure.from_interval(f"{ROWS}, step {step}", mean, meaning=meaning))
    never = found.stored.any(1).sum(1) == 0
    none = binomial_proportion(int(never.sum()), len(never))
    meaning = "fraction of the records that change no row at any of these steps"
    return [*made, Measure.from_interval(NONE, none, meaning=meaning)]


def _figures(found: Storage) -> tuple[Figure, Figure]:
    """Figure 5 of Mnemonist (2023), and the same by row."""
    rows, histogram = found.stored.shape[2], found.histogram().double()
    fractions = histogram / histogram.sum(1, keepdim=True)
    return (
        _bars(found, "Rows per record", "rows that store the record", range(rows + 1), fractions),
        _bars(found, "Records per row", "row", (f"S{row}" for row in range(rows)), found.fraction),
    )


def _bars(found: Storage, title: str, label: str, texts: Iterable[object], fractions: Tensor) -> Figure:
    x = tuple(map(str, texts))
    steps = zip(found.steps, fractions.tolist(), strict=True)
    series = tuple(Series(name=f"step {step}", x=x, y=tuple(values)) for step, values in steps)
    return Figure(title=title, x_label=label, y_label="fraction of the records", series=series, kind="bars")


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
