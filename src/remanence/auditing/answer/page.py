"""The page of an audit: the answer on one screen, then what was audited, attacks, ladder of knowledge, evidence.

It is made with the templates, the style and the security policy of `remanence.report`, and computes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, final

from markupsafe import Markup

from remanence.auditing.answer.documentation import REFERENCES, questions
from remanence.auditing.answer.examples import Examples
from remanence.auditing.answer.report import SEVERITIES, Answer, AttackRow, Evidence, Report, Severity
from remanence.auditing.answer.severity import find_leak
from remanence.auditing.answer.threats import threats_asked, threats_not_asked
from remanence.auditing.answer.tradeoff import along_sweep, tradeoff
from remanence.auditing.answer.words import (
    SCALE,
    count,
    evidence_words,
    fraction_or_number,
    interval_words,
    not_run,
    ranked,
    unit,
)
from remanence.auditing.attempts.applicability import BASE, OTHERS, UPDATE, WEIGHTS
from remanence.experiments.words import by_chance, number, percent, score
from remanence.report.attacks import Shown, parse_call
from remanence.report.document import environment, page_parts
from remanence.report.figures import Rendered, interval, rendered
from remanence.report.pictures import png

if TYPE_CHECKING:
    from torch import Tensor

MAX_STRIP, MAX_COLUMNS = 8, 8  # pictures, and columns of a table, on the first screen
MAX_ROWS = 60  # columns of a table in the details
PARTS = ("truth", "reconstruction", "look-alike")
RUNGS = {
    WEIGHTS: "weights alone",
    BASE: "weights beside the base they were tuned from",
    OTHERS: "an attacker who has all records but one",
    UPDATE: "a federated update",
}


@final
@dataclass(frozen=True, kw_only=True)
class TableRecord:
    """One row of a table: each column with what is true, what was reconstructed and what the look-alike has."""

    title: str
    found: bool
    score: str
    facts: list[tuple[str, str]]  # how sure, how well, how much of it
    rows: list[tuple[str, list[str], bool]]  # the last: whether the reconstruction says the same as the truth
    more: int  # columns that are not shown


@final
@dataclass(frozen=True, kw_only=True)
class Gallery:
    """The worst records of one attack: pictures or table rows."""

    attack: str
    metric: str
    pictures: list[Shown]
    records: list[TableRecord]


@final
@dataclass(frozen=True, kw_only=True)
class Rung:
    """What an attacker with some knowledge finds: `row` is the strongest attack that ran, or there is a reason."""

    knowledge: str
    row: AttackRow | None
    interval: Markup
    reason: str


@final
@dataclass(frozen=True, kw_only=True)
class EvidenceView:
    """A measurement in words, with its interval svg where it is a fraction."""

    row: Evidence
    value: str
    chance: str
    reach: str
    interval: Markup


@final
@dataclass(frozen=True, kw_only=True)
class Detail:
    """One attack that ran: its settings, where it was published, its worst records."""

    row: AttackRow
    reference: str
    fields: list[tuple[str, str]]
    gallery: Gallery | None


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of the scale of severity."""

    name: Severity
    meaning: str
    current: bool


def render_report(report: Report) -> str:
    """The page of `report`; what it shows of single records is what `report.examples` holds."""
    answer, examples = report.answer, report.examples
    worst = report.worst
    strip, shown = examples.get(worst.name) if worst else None, dict(examples)  # each once
    return (
        environment("remanence.auditing.answer")
        .get_template("audit.html")
        .render(
            **page_parts(("remanence.auditing.answer", "audit.css")),
            answer=answer,
            scale=[Step(name=name, meaning=SCALE[name], current=name == answer.severity) for name in SEVERITIES],
            strip=_gallery(worst.name, strip, MAX_STRIP, MAX_COLUMNS) if worst and strip else None,
            personal=bool(examples or report.sentences),
            unit=unit(answer),
            sentences=report.sentences,
            shown_sentences=MAX_STRIP,
            numbers=_numbers(answer, worst),
            asked=threats_asked(answer.release.kind),
            not_asked=threats_not_asked(answer.release.kind),
            rows=[*ranked(answer.attacks), *(row for row in answer.attacks if row.status != "ran")],
            not_run=not_run(answer.attacks),
            ladder=_ladder(answer),
            evidence=[_evidence(row) for row in answer.evidence if row.group != "other"],
            columns=[_evidence(row) for row in answer.evidence if row.group == "other"],
            figures=[rendered(figure) for figure in answer.figures],
            details=[_detail(row, shown.pop(row.name, None)) for row in ranked(answer.attacks)],
            helps=answer.countermeasures,
            swept=(swept := any(row.value is not None for row in answer.countermeasures)),
            labels_swept=swept and (unit(answer) != "sentence" or any(row.labels for row in answer.countermeasures)),
            tradeoffs=_tradeoffs(answer),
            questions=questions(answer),
            interval_words=interval_words,
            by_chance=by_chance,
        )
    )


def _numbers(answer: Answer, worst: AttackRow | None) -> list[tuple[str, str, str]]:
    """The three numbers of the first screen: the list, the p-value and the rank, each with what it means."""
    leak = find_leak(answer.attacks, answer.together)
    if (found := leak.test if leak else answer.together) is None:
        return []
    who = f"{unit(answer)}s together, by {leak.by}" if leak and leak.by else f"{unit(answer)}s and attacks together"
    listed = f"of these {by_chance(found.false)}" if found.found else "none stands out"
    listed = "too few were held out for any list" if found.needed and not found.found else listed
    copies = f"; {count(found.copies, 'exact copy')}".replace("copys", "copies") if found.copies else ""
    often = f"1 in {1 / max(found.p, 1e-9):,.0f}" if found.p < 0.5 else "in most audits"
    said = [
        (f"{found.found:,} of {found.records:,}", f"{unit(answer)}s found", f"{listed}{copies}"),
        (often, "chance of such scores without a leak", f"all {who}, p {number(found.p)}"),
    ]
    if worst and (ranks := worst.ranks):
        said.append(
            (
                percent(ranks.first),
                "recognised by their reconstruction",
                f"it resembles them more than any of {ranks.held_out:,} held-out ones ({worst.name}); by chance "
                f"{percent(ranks.chance_first)}",
            )
        )
    return said


def _tradeoffs(answer: Answer) -> list[Rendered]:
    """Leakage against accuracy, by each measure of leakage that there is, or both along a sweep; the table beside them
    has the values."""
    rows = answer.countermeasures
    swept = along_sweep(rows, noun=unit(answer))
    figures = [swept] if swept.series else [tradeoff(rows, by=by) for by in ("found", "membership")]
    return [replace(rendered(figure), rows=[]) for figure in figures if figure.series]


def _gallery(attack: str, examples: Examples, pictures: int, columns: int) -> Gallery:
    shown = range(min(len(examples), pictures))
    image = examples.truth.ndim == 4
    return Gallery(
        attack=attack,
        metric=examples.metric,
        pictures=[_picture(examples, i) for i in shown] if image else [],
        records=[] if image else [_table_record(examples, i, columns) for i in shown],
    )


def _picture(examples: Examples, i: int) -> Shown:
    parts = (examples.truth, examples.reconstruction, examples.lookalike)
    return Shown(
        record=str(int(examples.record[i])),
        label=_label(examples, i),
        score=score(float(examples.score[i])),
        found=bool(examples.found[i]),
        parts=[(name, png(part[i])) for name, part in zip(PARTS, parts, strict=True)],
        facts=_facts(examples, i),
    )


def _facts(examples: Examples, i: int) -> list[tuple[str, str]]:
    """How sure a record is recognised, how well and by what, and how much of it came back."""
    facts = [
        ("p", f"{float(examples.p[i]):.2g}"),
        (f"rank of {examples.held_out + 1:,}", f"{int(examples.rank[i]):,}"),
        ("same values", percent(float(examples.same[i]))),
        ("recognised by", examples.by[i]),
    ]
    if shared := int(examples.shared[i]):
        facts.append(("mixed with", count(shared, "other record")))
    return facts


def _label(examples: Examples, i: int) -> str:
    label = int(examples.label[i])
    return examples.columns.describe_label(label) if examples.columns else str(label)


def _table_record(examples: Examples, i: int, columns: int) -> TableRecord:
    parts = (examples.truth, examples.reconstruction, examples.lookalike)
    truth, found, lookalike = (_values(examples, part[i : i + 1]) for part in parts)
    rows = [(name, [truth[name], found[name], lookalike[name]], truth[name] == found[name]) for name in truth]
    return TableRecord(
        title=f"Record {int(examples.record[i])}, label {_label(examples, i)}",
        found=bool(examples.found[i]),
        score=score(float(examples.score[i])),
        facts=_facts(examples, i),
        rows=rows[:columns],
        more=max(0, len(rows) - columns),
    )


def _values(examples: Examples, row: "Tensor") -> dict[str, str]:
    """The values of one row by the names of its columns, in the owner's units where these are known."""
    if examples.columns:
        return examples.columns.describe(row)[0]
    return {f"column {j}": f"{value:.3f}" for j, value in enumerate(row[0].tolist(), 1)}


def _ladder(answer: Answer) -> list[Rung]:
    """The rungs that this tool knows, weakest first, then any other that an attack names."""
    others = dict.fromkeys(row.knowledge for row in answer.attacks if row.knowledge and row.knowledge not in RUNGS)
    return [_rung(answer, knowledge) for knowledge in (*RUNGS, *others)]


def _rung(answer: Answer, knowledge: str) -> Rung:
    rows = [row for row in answer.attacks if row.knowledge == knowledge]
    asked = knowledge not in RUNGS or RUNGS[knowledge] in threats_asked(answer.release.kind)
    if ran := [row for row in ranked(rows) if row.subject == "release" and row.records]:
        best = ran[0]
        values = (best.found, best.low, best.high, best.chance)
        svg = interval(*((value or 0) / (best.records or 1) for value in values))
        return Rung(knowledge=knowledge, row=best, interval=Markup(svg), reason="")
    names = ", ".join(row.name for row in rows)
    reason = f"not tested: {names} did not run" if asked and rows else "not tested: not released here"
    return Rung(knowledge=knowledge, row=None, interval=Markup(""), reason=reason)


def _evidence(row: Evidence) -> EvidenceView:
    value, low, high, chance = row.value, row.low, row.high, row.chance
    svg = ""
    if value is not None and all(v is not None and 0 <= v <= 1 for v in (value, low, high, chance)):
        svg = interval(value, low or 0.0, high or 0.0, chance or 0.0)
    say = [fraction_or_number(each, row) for each in (low, high)]
    return EvidenceView(
        row=row,
        value="inconclusive" if value is None else fraction_or_number(value, row),
        chance=fraction_or_number(chance, row),
        reach="" if low is None or high is None else f"{say[0]} to {say[1]}",
        interval=Markup(svg),
    )


def _detail(row: AttackRow, examples: Examples | None) -> Detail:
    attack = row.name.partition(" (")[0]  # of one on a stand-in, whose label follows
    reference = REFERENCES[attack].text if attack in REFERENCES else "not published"
    gallery = _gallery(row.name, examples, len(examples), MAX_ROWS) if examples is not None else None
    return Detail(row=row, reference=reference, fields=parse_call(row.call or "")[1], gallery=gallery)


def render_table(answer: Answer) -> str:
    """The answer as a compact table, for a notebook."""
    rows = [*ranked(answer.attacks), *(row for row in answer.attacks if row.status != "ran")]
    cells = "".join(_cells(row) for row in rows)
    measured = "; ".join(evidence_words(row) for row in answer.evidence)
    head = "".join(f"<th>{name}</th>" for name in ("attack", "status", "found", "of", "chance", "p", "seconds"))
    return (
        f"<div><p><strong>{escape(answer.verdict)}</strong><br>Severity: <strong>{answer.severity}</strong> "
        f"({escape(SCALE[answer.severity])})</p><table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>"
        f"<p>{escape('Evidence: ' + measured if measured else 'No evidence could be measured.')}<br>"
        f"{escape(answer.advice[0] if answer.advice else '')}</p></div>"
    )


def _cells(row: AttackRow) -> str:
    values: Sequence[Any] = (row.name, row.status, row.found, row.records, row.chance, row.p)
    shown = "".join(f"<td>{escape('' if value is None else number(value))}</td>" for value in values)
    return f'<tr title="{escape(row.reason or "")}">{shown}<td>{row.seconds:.1f}</td></tr>'
