"""Tables column by column: how often a reconstruction has the exact value, beside what can be guessed without the
release: by imputation from the other columns of the record, and by the commonest value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from remanence.attacks.one_unknown.glm import Residual
from remanence.auditing.answer.report import AttackRow, Check, Evidence
from remanence.columns import Column
from remanence.errors import BadInput, listed
from remanence.experiments.finding import Finding
from remanence.experiments.words import percent
from remanence.metrics.matching import NONE
from remanence.metrics.statistics import binomial_proportion
from remanence.releases import KnowsFixed
from remanence.types import Data

_NEIGHBOURS = 5
_MAX_COLUMNS = 12  # that get a row of their own
_MAX_HELD_OUT = 2000
_TOLERANCE = 0.005  # of the range of held-out values, for a column whose resolution is not known


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnRates:
    """For one column, of which records (n,) the value is exact: reconstructed, imputed, and guessed."""

    column: Column
    reconstructed: Tensor
    imputed: Tensor
    guessed: Tensor


def encoding_checks(private: Data, held_out: Data) -> tuple[Check, ...]:
    """Notes on a table: what was done to columns that are no numbers, and where the box in which attacks search ends
    at the value of a private record."""
    if private.columns is None:
        return ()
    notes = list(private.columns.notes)
    if names := [column.name for column in private.columns.columns if _is_bounded_by(column, private, held_out)]:
        notes.append(
            f"In {len(names)} of {len(private.columns.columns)} columns ({listed(names)}) the smallest or the largest "
            "value is a private record's alone, and attacks search no further: one that is cut off there has the value "
            "exactly. Hold out records of wider ranges."
        )
    return tuple(Check(name="columns", status="note", text=note) for note in notes)


def _is_bounded_by(column: Column, private: Data, held_out: Data) -> bool:
    """Whether a side of the box is a value of private records and of no other, in a column of numbers."""
    ours, theirs = (each.x.flatten(1)[:, column.start].cpu() for each in (private, held_out))
    if column.kind == "category" or len(torch.cat([ours, theirs]).unique()) <= 2:
        return False
    return any(bool((ours == side).any()) and not bool((theirs == side).any()) for side in private.bounds)


def column_evidence(
    release: Any, private: Data, held_out: Data, findings: Mapping[str, Finding], attacks: Sequence[AttackRow]
) -> tuple[Evidence, ...]:
    """The rows of a table: of the attack that found the most, and of one column inferred from the others."""
    if private.columns is None or len(held_out) < _NEIGHBOURS:
        return ()
    held_out = held_out.take(slice(0, _MAX_HELD_OUT))
    ran = [row for row in attacks if row.name in findings and row.subject == "release"]
    rows = list[Evidence]()
    if ran:
        best = max(ran, key=lambda row: row.found or 0).name
        rows += _reconstructed_rows(best, column_rates(findings[best], held_out))
    if isinstance(release, KnowsFixed) and len(private) == 1:
        rows += _completed_rows(release, private, held_out)
    return tuple(rows)


def column_rates(finding: Finding, held_out: Data) -> list[ColumnRates]:
    """Which values of the records are exact, column by column, in the matched reconstructions of an attack."""
    truth, index = finding.truth, finding.scores.index.cpu()
    columns = truth.columns.columns if truth.columns is not None else ()
    has = index != NONE
    matched = truth.x.cpu().clone()
    matched[has] = finding.reconstruction.x.detach().cpu().to(matched)[index[has]]
    return [_rates(column, truth, held_out, matched, has) for column in columns]


def _rates(column: Column, truth: Data, held_out: Data, found: Tensor, has: Tensor) -> ColumnRates:
    values, known = column.raw(truth.x.cpu()), column.raw(held_out.x.cpu())
    return ColumnRates(
        column=column,
        reconstructed=_exact(column, column.raw(found), values, known) & has,
        imputed=_exact(column, impute(column, truth.x.cpu(), held_out.x.cpu()), values, known),
        guessed=_exact(column, _commonest(known).expand(len(values)), values, known),
    )


def impute(column: Column, x: Tensor, held_out: Tensor) -> Tensor:
    """(n,): the raw values of a column from the nearest held-out records by the other columns, their commonest category
    or the median of their numbers."""
    x, held_out = x.flatten(1).double(), held_out.flatten(1).double()
    others = torch.ones(x.shape[1], dtype=torch.bool)
    others[column.start : column.start + column.size] = False
    known = column.raw(held_out)
    if not bool(others.any()):
        return _commonest(known).expand(len(x))
    scale = held_out.std(0).clamp_min(1e-9)[others]
    distance = torch.cdist(x[:, others] / scale, held_out[:, others] / scale)
    nearest = known[distance.topk(min(_NEIGHBOURS, len(held_out)), largest=False).indices]
    if column.kind == "category":
        return nearest.mode(dim=1).values
    return nearest.median(dim=1).values


def _exact(column: Column, found: Tensor, values: Tensor, held_out: Tensor) -> Tensor:
    """(n,): whether raw values are the same, to half of the column's resolution."""
    if column.kind == "category":
        return found == values
    step = column.resolution
    tolerance = step / 2 if step is not None else _TOLERANCE * float(held_out.max() - held_out.min())
    return (found - values).abs() <= max(tolerance, 1e-9)


def _commonest(values: Tensor) -> Tensor:
    """The value that is most frequent; the median where none is there twice."""
    distinct, counts = values.unique(return_counts=True)
    return distinct[counts.argmax()] if int(counts.max()) > 1 else values.median()


def _reconstructed_rows(attack: str, rates: Sequence[ColumnRates]) -> list[Evidence]:
    """One row for all columns, and one for each of those that show the most beyond imputation."""
    if not rates:
        return []
    total = _row(f"columns: exact values by {attack}", *_joined(rates), what=f"values of {len(rates)} columns")
    excess = sorted(rates, key=lambda each: float((each.imputed.double() - each.reconstructed.double()).mean()))
    named = [
        _row(f"column {each.column.name}", each.reconstructed, each.imputed, each.guessed, what="values of this column")
        for each in excess[:_MAX_COLUMNS]
    ]
    return [total, *named]


def _joined(rates: Sequence[ColumnRates]) -> tuple[Tensor, Tensor, Tensor]:
    parts = zip(*((each.reconstructed, each.imputed, each.guessed) for each in rates), strict=True)
    found, imputed, guessed = (torch.cat(part) for part in parts)
    return found, imputed, guessed


def _row(name: str, found: Tensor, imputed: Tensor, guessed: Tensor, *, what: str) -> Evidence:
    rate = binomial_proportion(int(found.sum()), len(found))
    by_imputation, by_guess = float(imputed.double().mean()), float(guessed.double().mean())
    return Evidence(
        name=name,
        value=rate.value,
        low=rate.low,
        high=rate.high,
        chance=max(by_imputation, by_guess),
        meaning=(
            f"fraction of the {what} that are exact; imputation from the other columns gives {percent(by_imputation)}, "
            f"the commonest value {percent(by_guess)}"
        ),
    )


def _completed_rows(release: KnowsFixed, private: Data, held_out: Data) -> list[Evidence]:
    """One row for a linear model: each column of the unknown record from the others and the weights."""
    try:
        residual = Residual.from_release(release)
    except BadInput:
        return []
    assert private.columns is not None
    rates, everyone = list[ColumnRates](), torch.ones(len(private), dtype=torch.bool)
    for column in private.columns.columns:
        found = residual.complete(private.x, slice(column.start, column.start + column.size)).cpu()
        rates.append(_rates(column, private, held_out, found, everyone))
    what = f"values of {len(rates)} columns, each inferred from the others and the weights,"
    return [_row("columns: one inferred from the others", *_joined(rates), what=what)]
