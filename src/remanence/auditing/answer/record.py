"""The disclosure-control record of an audit: one JSON file for whoever must show later what was tested, and how.

It holds digests, attacks run and refused with their reasons, budgets, results with intervals and chance, what was not
tested, versions and date, and answers the questions that data protection authorities ask to be documented (EDPB Opinion
28/2024; CNIL, status of AI models, July 2025). Nothing in it is about a single record.
"""

import json
from dataclasses import dataclass
from typing import Any, Final, Literal, final

from remanence.auditing.answer.documentation import REFERENCES, Question, questions
from remanence.auditing.answer.report import Answer, AttackRow, AuditTest, Digests, Evidence, Released, Severity
from remanence.auditing.answer.threats import threats_asked, threats_not_asked
from remanence.auditing.answer.words import SCALE
from remanence.experiments.codec import encode, json_schema
from remanence.types import Caveat

SCHEMA: Final = 4


@final
@dataclass(frozen=True, kw_only=True)
class AttackRecord:
    """One attack: the row of the report, and where the attack was published."""

    row: AttackRow
    reference: str
    year: int | None


@final
@dataclass(frozen=True, kw_only=True)
class DisclosureRecord:
    """What was audited, how, and what came of it, as `record.json` holds it."""

    schema: int
    kind: Literal["disclosure-control record"]
    date: str
    versions: dict[str, str]
    command: str
    seed: int
    release: Released
    digests: Digests
    records: int
    held_out: int
    threat_models: tuple[str, ...]  # asked about
    threat_models_not_asked: tuple[str, ...]
    budget: float  # seconds given
    seconds: float  # seconds taken
    attacks: tuple[AttackRecord, ...]
    together: AuditTest | None
    correction: str
    evidence: tuple[Evidence, ...]
    severity: Severity
    severity_meaning: str
    verdict: str
    advice: tuple[str, ...]
    not_tested: tuple[str, ...]
    caveats: tuple[Caveat, ...]
    documentation: tuple[Question, ...]


def disclosure_record(answer: Answer) -> DisclosureRecord:
    """The record of an audit."""
    return DisclosureRecord(
        schema=SCHEMA,
        kind="disclosure-control record",
        date=answer.date,
        versions=answer.versions,
        command=answer.command,
        seed=answer.seed,
        release=answer.release,
        digests=answer.digests,
        records=answer.records,
        held_out=answer.held_out,
        threat_models=threats_asked(answer.release.kind),
        threat_models_not_asked=threats_not_asked(answer.release.kind),
        budget=answer.budget,
        seconds=answer.seconds,
        attacks=tuple(_attack(row) for row in answer.attacks),
        together=answer.together,
        correction=answer.correction,
        evidence=answer.evidence,
        severity=answer.severity,
        severity_meaning=SCALE[answer.severity],
        verdict=answer.verdict,
        advice=answer.advice,
        not_tested=answer.not_tested,
        caveats=answer.caveats,
        documentation=questions(answer),
    )


def _attack(row: AttackRow) -> AttackRecord:
    reference = REFERENCES.get(row.name.partition(" (")[0])  # of one on a stand-in, whose label follows
    if reference is None:
        return AttackRecord(row=row, reference="not published", year=None)
    return AttackRecord(row=row, reference=reference.text, year=reference.year)


def dump_record(answer: Answer) -> str:
    """The text of `record.json`."""
    return json.dumps(encode(disclosure_record(answer)), indent=1, allow_nan=False) + "\n"


def record_schema() -> dict[str, Any]:
    """The JSON schema of `record.json`."""
    return {"title": "remanence disclosure-control record", **json_schema(DisclosureRecord)}
