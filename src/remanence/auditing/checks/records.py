"""Checks of the records: labels beside the outputs of the model, records that are in two sets, too few held out."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from remanence.auditing.answer.report import Check
from remanence.auditing.answer.undecided import few_held_out, level_of, named_labels
from remanence.auditing.checks.outputs import released_loss
from remanence.metrics.exchangeability import FDR
from remanence.metrics.power import power_of, unscored
from remanence.metrics.subjects import Subjects
from remanence.training import SquaredError
from remanence.types import Data

_COARSE = 0.1  # of the records that must leak before any is listed
IN_BOTH = 0.05  # of the records of a set: more stop an audit


def check_labels(private: Data, held_out: Data, outputs: int, release: Any) -> list[Check]:
    """Labels beside the outputs: out of their range, from 1, of one class only, without held-out ones of a class; of a
    regression they stand for target values."""
    loss, labels, targets = released_loss(release), torch.cat([private.y, held_out.y]), targets_of(release)
    classes = len(loss.values) if isinstance(loss, SquaredError) else max(outputs, 2)
    one, several = ("class", "classes") if targets is None else ("target value", "target values")
    if int(labels.max()) >= classes:
        from_one = int(labels.min()) == 1 and int(labels.max()) == classes
        advice = "they count from 1, subtract 1" if from_one else "give the labels that the model was trained with"
        text = (
            f"Labels go up to {int(labels.max())}, and the model tells {classes} {several}, 0..{classes - 1}: {advice}."
        )
        return [Check(name="labels", status="stop", text=text)]
    if len(labels.unique()) < 2:
        text = f"All records are of {one} {named_labels(labels[:1].tolist(), targets)}: give records of two or more."
        return [Check(name="labels", status="stop", text=text)]
    alone = sorted(set(private.y.tolist()) - set(held_out.y.tolist()))
    if alone:
        count = int(sum((private.y == label).sum() for label in alone))
        text = (
            f"No record of {one} {named_labels(alone, targets)} was held out: the {count} private records of it have "
            "nothing to be compared with, and the rank test cannot list them. Hold out some."
        )
        return [Check(name="labels", status="warning", text=text)]
    return [Check(name="labels", status="ok", text=f"{len(labels.unique())} {several}, {outputs} outputs.")]


def targets_of(release: Any) -> tuple[float, ...] | None:
    """The target values that labels stand for in a regression; None for a classifier."""
    loss = released_loss(release)
    return loss.values if isinstance(loss, SquaredError) and len(loss.values) > 2 else None


def check_disjoint(release: Any, private: Data, held_out: Data, numbers: dict[str, float | None]) -> list[Check]:
    """Records that are in two sets: a held-out record that was trained on is no measure of chance."""
    checks = []
    ours, theirs = _keys(private), _keys(held_out)
    both = _shared(ours, theirs)
    numbers["records_in_both_sets"] = both
    if both:
        status: Literal["warning", "stop"] = "stop" if both >= IN_BOTH * len(private) else "warning"
        text = (
            f"{both} of {len(private)} private records are among the held-out ones too, which must never have been "
            "trained on: leave them out of one of the two."
        )
        checks.append(Check(name="held-out", status=status, text=text))
    if copies := len(private) - len(distinct(private)):
        text = f"{copies} of {len(private)} private records are copies of others: attacks and tests count each once."
        checks.append(Check(name="data", status="note", text=text))
    fixed = getattr(release, "fixed", None)
    if fixed is not None and len(fixed):
        known = _keys(fixed.to(private.x.device, private.x.dtype))
        for name, keys, count in (("data", ours, len(private)), ("held-out", theirs, len(held_out))):
            if shared := _shared(keys, known):
                status = "stop" if shared >= IN_BOTH * count else "warning"
                text = f"{shared} of {count} records of `{name}` are among those that the attacker has: leave them out."
                checks.append(Check(name=name, status=status, text=text))
    return [*checks, *check_power(private, held_out, targets_of(release))]


def check_power(private: Data, held_out: Data, targets: Sequence[float] | None = None) -> list[Check]:
    """A warning where too few records are held out for any list of the private ones, with the number that several
    attacks need, and a note where many of them must leak before any is listed; labels stand for `targets`."""
    private = distinct(private)
    pool = unscored(torch.cat([private.y, held_out.y]).cpu(), private=len(private))
    if (subjects := Subjects.from_groups(private, held_out)) is not None:
        pool = subjects.pooled(pool, seed=0)
    alone, several = (
        power_of(pool, fdr=FDR, level=level_of(pool.private, tests=tests), subjects=subjects) for tests in (1, 2)
    )
    theirs, noun = len(pool.labels) - pool.private, "records" if subjects is None else "subjects"
    if alone.needed:
        text = few_held_out(pool.private, theirs, several.needed, several.lacking, noun=noun, targets=targets)
        return [Check(name="held-out", status="warning", text=f"{text[0].upper()}{text[1:]}.")]
    if alone.smallest_list <= max(1, _COARSE * alone.records):
        return []
    text = (
        f"{alone.smallest_list} of the {alone.records} private {noun} must leak before any can be listed, as "
        f"{theirs:,} are held out: hold out more, of each {'class' if targets is None else 'target value'}, to see "
        "fewer."
    )
    return [Check(name="held-out", status="note", text=text)]


def distinct(data: Data) -> Data:
    """Each record once, the first of its copies: copies are no further evidence, and would count as such."""
    first = distinct_positions(data)
    return data if len(first) == len(data) else data.take(first.to(data.x.device))


def distinct_positions(data: Data) -> Tensor:
    """(distinct records,): the position of the first of its copies, in order."""
    first = {
        each: position for position, each in reversed(list(enumerate(zip(_keys(data), data.y.tolist(), strict=True))))
    }
    return torch.tensor(sorted(first.values()), dtype=torch.int64)


def _keys(data: Data) -> list[bytes]:
    return [row.tobytes() for row in data.x.detach().cpu().flatten(1).contiguous().view(torch.uint8).numpy()]


def _shared(keys: Sequence[bytes], others: Sequence[bytes]) -> int:
    known = set(others)
    return sum(key in known for key in keys)


def evenly(data: Data, limit: int) -> Data:
    """At most `limit` records, evenly over the set, which may be sorted by class."""
    if len(data) <= limit:
        return data
    return data.take(torch.linspace(0, len(data) - 1, limit, device=data.x.device).round().long())
