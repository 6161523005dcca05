"""An audit for other programs: JUnit XML, SARIF 2.1.0, a Markdown summary, a paragraph for a model card."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol
from xml.etree import ElementTree as ET

from remanence.auditing.answer.report import Answer, AttackRow, Evidence
from remanence.auditing.answer.severity import MEMBERSHIP, leaks_alone
from remanence.auditing.answer.threats import threats_not_asked
from remanence.auditing.answer.undecided import LEVEL, undecided_answer
from remanence.auditing.answer.words import SCALE, attack_words, count, evidence_words, interval_words, not_run, ranked
from remanence.disk import write_text
from remanence.experiments.words import between, number, score

_RULES: Final = {
    "reconstruction": "Training records can be reconstructed from the release beyond chance.",
    "membership": "Which records were trained on can be inferred from the release beyond chance.",
    "inconclusive": "Too little could be tested to say anything about the release.",
    "gate": "A condition that the release must not meet is met.",
}


def to_junit(answer: Answer, conditions: Sequence[str] = (), failed: Sequence[str] = ()) -> str:
    """JUnit XML with a case for each attack and for each condition of the gate.

    An attack fails where it reconstructed records beyond chance, is skipped where it was refused, the budget ended or
    it could have found nothing whatever leaks, and is an error where it raised one. `failed` is what `failures`
    returned for `conditions`.
    """
    leaking = _leaking(answer)
    why = undecided_answer(answer)
    cases = [_attack_case(row, row in leaking, why) for row in answer.attacks]
    cases += [_gate_case(each, failed) for each in conditions]
    kinds = {kind: sum(case.find(kind) is not None for case in cases) for kind in ("failure", "skipped", "error")}
    suite = ET.Element(
        "testsuite",
        name="remanence audit",
        tests=str(len(cases)),
        failures=str(kinds["failure"]),
        errors=str(kinds["error"]),
        skipped=str(kinds["skipped"]),
        time=f"{answer.seconds:.3f}",
        timestamp=answer.date[:19],
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in {"severity": answer.severity, "verdict": answer.verdict, "model": answer.digests.model}.items():
        ET.SubElement(properties, "property", name=name, value=_printable(value))
    suite.extend(cases)
    suites = ET.Element("testsuites", name="remanence audit")
    suites.append(suite)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _attack_case(row: AttackRow, leaking: bool, undecided: str) -> ET.Element:
    case = ET.Element("testcase", classname="remanence.attacks", name=row.name, time=f"{row.seconds:.3f}")
    reason = _printable(row.reason or "")
    if row.status == "failed":
        ET.SubElement(case, "error", message=reason)
    elif row.status != "ran":
        ET.SubElement(case, "skipped", message=f"{row.status}: {reason}")
    elif leaking:
        ET.SubElement(case, "failure", message=attack_words(row))
    elif undecided and row.subject == "release":
        ET.SubElement(case, "skipped", message=f"inconclusive: {_printable(undecided)}")
    else:
        ET.SubElement(case, "system-out").text = attack_words(row)
    return case


def _gate_case(condition: str, failed: Sequence[str]) -> ET.Element:
    case = ET.Element("testcase", classname="remanence.gate", name=_printable(condition), time="0")
    for sentence in failed:
        if sentence.startswith(f"{condition.strip()}:"):
            ET.SubElement(case, "failure", message=_printable(sentence))
    return case


def _printable(text: str) -> str:
    """The text without control characters, which XML cannot hold."""
    return "".join(sign if sign >= " " else " " for sign in text)


def to_sarif(answer: Answer, *, artifact: str = "model", failed: Sequence[str] = ()) -> str:
    """SARIF 2.1.0 for code scanning: a result for each leaking attack, each membership row that no chance explains, and
    each failed condition. `artifact` is the path of the released file in the repository."""
    leaking = [f"{row.name}: {attack_words(row)}." for row in _leaking(answer)]
    results = [_result("reconstruction", text, answer, artifact) for text in leaking]
    if answer.severity == "membership":
        best = [evidence_words(row) for row in _members(answer.evidence) if (row.p or 0.0) <= LEVEL]
        text = best[0] if best else "all records together score better than held-out ones"
        results.append(_result("membership", f"{text}.", answer, artifact, level="warning"))
    if answer.severity == "inconclusive":
        results.append(_result("inconclusive", answer.verdict, answer, artifact, level="warning"))
    results += [_result("gate", f"{sentence}.", answer, artifact) for sentence in failed]
    run = {
        "tool": {"driver": _driver(answer)},
        "invocations": [{"executionSuccessful": True, "commandLine": answer.command}],
        "artifacts": [{"location": {"uri": artifact}, "hashes": {"sha-256": answer.digests.model}}],
        "results": results,
        "properties": {"severity": answer.severity, "verdict": answer.verdict},
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _driver(answer: Answer) -> Mapping[str, Any]:
    rules = [{"id": f"remanence/{name}", "shortDescription": {"text": text}} for name, text in _RULES.items()]
    return {"name": "remanence", "version": answer.versions.get("remanence", ""), "rules": rules}


def _result(rule: str, text: str, answer: Answer, artifact: str, *, level: str = "error") -> Mapping[str, Any]:
    fingerprint = sha256(f"{rule} {text.partition(':')[0]} {artifact}".encode()).hexdigest()
    return {
        "ruleId": f"remanence/{rule}",
        "ruleIndex": list(_RULES).index(rule),
        "level": level,
        "message": {"text": text},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": artifact, "index": 0}}}],
        "partialFingerprints": {"remanence/v1": fingerprint},
    }


def _leaking(answer: Answer) -> list[AttackRow]:
    """The attacks on which a severity of reconstructed records rests: that leak by themselves, or where they do only
    together, that list a record; none where the severity is lower."""
    if answer.severity not in ("some-records", "many-records"):
        return []
    ran = [row for row in answer.attacks if row.status == "ran" and row.subject == "release"]
    alone = [row for row in ran if leaks_alone(row, attacks=len(ran))]
    return alone or [row for row in ran if row.found] or ran


def _members(evidence: Sequence[Evidence]) -> list[Evidence]:
    measured = [row for row in evidence if row.group in MEMBERSHIP and row.p is not None]
    return sorted(measured, key=lambda row: row.p or 0.0)


def to_summary(answer: Answer, *, failed: Sequence[str] = (), worse: Sequence[str] = ()) -> str:
    """A Markdown summary, as a CI job shows it."""
    lines = [f"## Remanence audit: {answer.severity}", "", _markdown(answer.verdict), ""]
    for title, sentences in (("Gate failed", failed), ("Worse than before", worse)):
        if sentences:
            lines += [f"**{title}**", "", *(f"- {_markdown(sentence)}" for sentence in sentences), ""]
    lines += ["| attack | | found | 95 % interval | chance | p | seconds |", "|---|---|--:|--:|--:|--:|--:|"]
    lines += [_summary_row(row) for row in (*ranked(answer.attacks), *_others(answer.attacks))]
    if answer.evidence:
        lines += ["", "| evidence | value | 95 % interval | chance |", "|---|--:|--:|--:|"]
        for row in answer.evidence:
            value = "inconclusive" if row.value is None else score(row.value)
            lines.append(f"| {_markdown(row.name)} | {value} | {between(row.low, row.high)} | {score(row.chance)} |")
    if answer.advice:
        lines += ["", "**What to do**", "", *(f"- {_markdown(each)}" for each in answer.advice)]
    if answer.what_would_help:
        lines += ["", "**What would help**", "", _markdown(answer.what_would_help)]
    threats, model, data = threats_not_asked(answer.release.kind), answer.digests.model, answer.digests.data
    lines += ["", f"Not tested: {'; '.join(threats)}; {_markdown(not_run(answer.attacks))}."]
    lines += ["", f"{answer.date[:10]}, SHA-256 of the model `{model[:16]}…`, of the data `{data[:16]}…`"]
    return "\n".join(lines) + "\n"


def _others(attacks: Sequence[AttackRow]) -> list[AttackRow]:
    return [row for row in attacks if row.status != "ran"]


def _summary_row(row: AttackRow) -> str:
    if row.status != "ran":
        return f"| {row.name} | {row.status} | | | | | |"
    found = f"{row.found} of {row.records}"
    reach = interval_words(row)
    subject = "stand-in" if row.subject == "stand-in" else "ran"
    return f"| {row.name} | {subject} | {found} | {reach} | {score(row.chance)} | {number(row.p)} | {row.seconds:.1f} |"


def _markdown(text: str) -> str:
    """Text that stays text in a table of Markdown and in the HTML made of it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("\n", " ")


def model_card(answer: Answer) -> str:
    """A paragraph for the model card: what was tested on which day, what came of it, what was not tested."""
    ran = ranked(answer.attacks)
    tried = f"{count(len(ran), 'reconstruction attack')} ({', '.join(row.name for row in ran)})" if ran else "no attack"
    evidence = "; ".join(evidence_words(row) for row in _members(answer.evidence)[:2])
    sentences = [
        f"The release (SHA-256 `{answer.digests.model[:16]}…`) was audited on {answer.date[:10]} with remanence "
        f"{answer.versions.get('remanence', '')} against {tried}, on {count(answer.records, 'training record')} beside "
        f"{answer.held_out:,} held-out ones.",
        f"{answer.verdict} Severity: {answer.severity} ({SCALE[answer.severity]}).",
        f"Evidence of membership: {evidence}." if evidence else "",
        f"Not tested: {'; '.join(threats_not_asked(answer.release.kind))}.",
        "What was found is a lower bound of what can be found.",
    ]
    return f"**Privacy audit.** {' '.join(each for each in sentences if each)}\n"


class Files(Protocol):
    """The files that are wanted beside the report, and the conditions of the gate."""

    @property
    def junit(self) -> str | None: ...
    @property
    def sarif(self) -> str | None: ...
    @property
    def summary(self) -> str | None: ...
    @property
    def fail_if(self) -> tuple[str, ...]: ...


def write_formats(answer: Answer, wanted: Files, failed: Sequence[str], worse: Sequence[str]) -> None:
    """Write the formats that are wanted, with the conditions that failed and what got worse."""
    every = [*failed, *worse]
    texts = {
        wanted.junit: to_junit(answer, wanted.fail_if, every),
        wanted.sarif: to_sarif(answer, failed=every),
        wanted.summary: to_summary(answer, failed=failed, worse=worse),
    }
    for file, text in texts.items():
        if file:
            write_text(Path(file), text)
