"""An answer in plain text: the lines that `print(report)` shows, and what the page says in the same words."""

from collections.abc import Sequence
from textwrap import shorten, wrap
from typing import Final

from remanence.auditing.answer.report import SEVERITIES, Answer, AttackRow, Countermeasure, Evidence, Severity
from remanence.auditing.answer.threats import TEXT
from remanence.errors import printable
from remanence.experiments.words import DASH, by_chance, number, percent, score

WIDTH: Final = 100  # columns
LINES: Final = 10
_NAME = 18  # columns of the first word of a line
SCALE: Final[dict[Severity, str]] = {
    "inconclusive": "too little could be tested to say anything",
    "none-found": "nothing beyond chance was found by what was tested",
    "membership": "who was in the data shows beyond chance, and no record was reconstructed",
    "some-records": "records were reconstructed, fewer than one in ten",
    "many-records": "one record in ten or more was reconstructed",
}
STATUS: Final = {"ran": "ran", "refused": "refused", "failed": "failed", "skipped": "skipped"}


def lines_of(answer: Answer) -> list[str]:
    """The answer in at most ten lines of at most a hundred columns; after a sweep one for each of its settings, and
    what would help."""
    verdict = wrap(answer.verdict, WIDTH, max_lines=3, placeholder=" …")
    after = [
        _line("not run", not_run(answer.attacks)),
        _line("evidence", _evidence_line(answer.evidence)),
        _line("what to do", answer.advice[0] if answer.advice else "Keep this report with the release."),
    ]
    room = LINES - len(verdict) - 1 - len(after)
    attacks = _attack_lines(answer.attacks, room)
    lines = (*verdict, _line("severity", _scale_line(answer.severity)), *attacks, *after, *_sweep_lines(answer))
    return [printable(each) for each in lines]


def _sweep_lines(answer: Answer) -> list[str]:
    """A table of the settings of a sweep, and what would help."""
    if answer.what_would_help is None:
        return []
    cells: list[tuple[str, ...]] = [("", "found", "p", "tokens (chance)", "labels (chance)", "membership", "accuracy")]
    cells += [setting_cells(row) for row in answer.countermeasures]
    measured = [column for column in zip(*cells, strict=True) if set(column[1:]) - {DASH, ""}]
    cells, widths = list(zip(*measured, strict=True)), [max(map(len, column)) for column in measured]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]
    return [_fitting(line.rstrip(), WIDTH) for line in lines] + wrap(answer.what_would_help, WIDTH)


def setting_cells(row: Countermeasure) -> tuple[str, ...]:
    """What a stand-in of an update shows: records found, tokens and labels beside chance, the AUC of membership, the
    accuracy."""
    if row.status != "ran":
        return row.setting, row.status, "", "", "", "", ""
    tested = row.together
    return (
        row.setting,
        _found_cell(row),
        number(tested.p) if tested else "",
        _with_chance(row.tokens),
        _with_chance(row.labels),
        score(row.auc.value) if row.auc else DASH,
        percent(row.accuracy.value) if row.accuracy else DASH,
    )


def _found_cell(row: Countermeasure) -> str:
    if (tested := row.together) is None:
        return "not tested"
    if tested.needed and not tested.found:
        return "too few held out"
    return f"{tested.found} of {tested.records}" + (f", {tested.copies} exact" if row.tokens else "")


def _with_chance(row: Evidence | None) -> str:
    return f"{percent(row.value)} ({percent(row.chance)})" if row and row.value is not None else DASH


def unit(answer: Answer) -> str:
    """What the audit counts, in a word: records, of a person each, or of text."""
    if answer.together is not None and answer.together.subjects:
        return "subject"
    return "sentence" if answer.release.kind == TEXT else "record"


def _line(name: str, text: str) -> str:
    start = f"{printable(name, WIDTH // 2):<{_NAME - 1}} "  # a long name keeps its distance
    return f"{start}{_fitting(text, WIDTH - len(start))}"


def _fitting(text: str, width: int) -> str:
    return shorten(text, width, placeholder=" …") if len(text) > width else text


def _scale_line(step: Severity) -> str:
    scale = " < ".join(name.upper() if name == step else name for name in SEVERITIES if name != "inconclusive")
    return f"INCONCLUSIVE, off the scale {scale}" if step == "inconclusive" else scale


def _attack_lines(attacks: Sequence[AttackRow], room: int) -> list[str]:
    ran = ranked(attacks)
    if not ran:
        return [_line("attacks", "none ran")]
    shown = ran if len(ran) <= room else ran[: room - 1]
    lines = [_line(row.name, attack_words(row)) for row in shown]
    if more := ran[len(shown) :]:
        lines.append(_line(f"{len(more)} more ran", f"found at most {max(row.found or 0 for row in more)}"))
    return lines


def ranked(attacks: Sequence[AttackRow]) -> list[AttackRow]:
    """The attacks that ran, the one that found the most first; those on a stand-in last."""
    ran = [row for row in attacks if row.status == "ran"]
    return sorted(ran, key=lambda row: (row.subject != "release", -(row.found or 0), -(row.exact or 0)))


def attack_words(row: AttackRow) -> str:
    """What an attack that ran found, beside chance."""
    ranks = f", picks {percent(row.ranks.first)} out of {row.ranks.held_out:,}" if row.ranks and row.found else ""
    chance = f" ({by_chance(row.chance)})" if row.found else ""
    shortened = ", shortened to keep the budget" if row.shortened else ""
    found = f"{row.found} of {row.records} found{chance}, p {number(row.p)}{shortened}{ranks}, {_seconds(row)}"
    return found + (", on a stand-in" if row.subject == "stand-in" else "")


def progress_line(row: AttackRow, seconds: float) -> str:
    """A line about an attack that is over so many seconds after the audit began, for whoever waits."""
    reason = row.reason.partition("\n")[0] if row.reason else ""
    return f"[{seconds:5.0f} s] {row.name}: {row.status}" + (f" ({reason})" if reason else "")


def interval_words(row: AttackRow) -> str:
    """The 95 % interval of what was found, in records."""
    return "" if row.low is None or row.high is None else f"{row.low:.1f} to {row.high:.1f}"


def _seconds(row: AttackRow) -> str:
    return f"{row.seconds:.1f} s" if row.seconds < 10 else f"{row.seconds:,.0f} s"


def not_run(attacks: Sequence[AttackRow]) -> str:
    """How many attacks were refused, skipped or failed, by their names."""
    parts = []
    for status in ("refused", "skipped", "failed"):
        if names := [row.name for row in attacks if row.status == status]:
            parts.append(f"{len(names)} {status} ({', '.join(names)})")
    return "; ".join(parts) or "every attack that was asked for ran"


def _evidence_line(evidence: Sequence[Evidence]) -> str:
    measured = sorted((row for row in evidence if row.value is not None), key=lambda r: 1.0 if r.p is None else r.p)
    return "; ".join(evidence_words(row) for row in measured[:2]) or "none: this release shows nothing to measure it by"


def evidence_words(row: Evidence) -> str:
    """A measurement beside chance."""
    if row.value is None:
        return f"{row.name}: inconclusive"
    chance = "" if row.chance is None else f" (chance {fraction_or_number(row.chance, row)})"
    return f"{row.name} {fraction_or_number(row.value, row)}{chance}"


def fraction_or_number(value: float | None, row: Evidence) -> str:
    """A rate as a percentage, anything else as a number."""
    rate = "AUC" not in row.name and row.value is not None and 0 <= row.value <= 1
    return percent(value) if rate else score(value)


def count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")
