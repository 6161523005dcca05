"""Parts of an answer that audits of records and of text share: what was released, what was not tested, versions."""

import platform
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch

from remanence.auditing.answer.report import AttackRow, Check, Released
from remanence.auditing.answer.threats import threats_not_asked
from remanence.experiments.provenance import version
from remanence.experiments.summary import described
from remanence.metrics.exchangeability import FDR
from remanence.types import Caveat


def correction(rows: Sequence[AttackRow]) -> str:
    ran = [row for row in rows if row.status == "ran" and row.subject == "release"]
    if not ran:
        return "No attack ran."
    if len(ran) == 1:
        return f"1 attack ran. It lists records at a false-discovery rate of {FDR:.0%}, and its p-value is the audit's."
    return (
        f"{len(ran)} attacks ran. Each lists records at a false-discovery rate of {FDR:.0%} by itself. The list and "
        "the p-value of the audit are of all of them together: the best score of each record over the attacks is "
        "ranked, for private and held-out records alike, so that no correction for their number is needed. The "
        "severity gives half of its level to that test, and divides the other half among the attacks, each by itself."
    )


def not_tested(release: Any, rows: Sequence[AttackRow]) -> tuple[str, ...]:
    """What the audit did not look at: attacks that did not run, and threat models that were not asked about."""
    attacks = [f"{row.name}: {row.reason}" for row in rows if row.status != "ran"]
    threats = threats_not_asked(type(release).__name__)
    asked = [f"threat model not asked about: {threat}" for threat in threats]
    return (*attacks, *asked)


def warnings_of(checks: Sequence[Check]) -> tuple[Caveat, ...]:
    """What the preflight warned of, which limits all that follows."""
    return tuple(Caveat(code="preflight-warning", text=each.text) for each in checks if each.status == "warning")


def released(release: Any, *, shape: tuple[int, ...], num_classes: int) -> Released:
    shown = {field.name: getattr(release, field.name) for field in fields(release)}
    params = shown.get("final") or shown.get("at") or {}
    return Released(
        kind=type(release).__name__,
        model=described(release.model),
        parameters=sum(p.numel() for p in params.values()),
        shape=shape,
        num_classes=num_classes,
        shows={name: described(value) for name, value in shown.items() if value is not None},
        withholds=release.withholds,
    )


def versions() -> dict[str, str]:
    """The versions that an audit depends on."""
    return {"remanence": version(), "torch": torch.__version__, "python": platform.python_version()}
