"""The folder of an audit: `report.json`, `record.json`, `report.html` and, unless redacted, `images.safetensors`."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from remanence.auditing.answer.examples import dump_examples, load_examples
from remanence.auditing.answer.record import dump_record
from remanence.auditing.answer.report import SCHEMA, Answer, Report
from remanence.disk import check_writable, replace_files
from remanence.errors import BadInput
from remanence.experiments.codec import decode, encode

ANSWER, RECORD, PAGE, IMAGES = "report.json", "record.json", "report.html", "images.safetensors"


def dump_answer(answer: Answer) -> str:
    """The text of `report.json`."""
    return json.dumps(encode(answer), indent=1, allow_nan=False) + "\n"


def parse_answer(text: str, *, where: str) -> Answer:
    """The answer in `text`, every field checked; `where` is named in errors."""
    try:
        parsed = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _damaged(f"`{where}` is not JSON ({error})") from None
    if isinstance(parsed, dict) and parsed.get("schema") != SCHEMA:
        raise _damaged(f"`{where}` has the schema {parsed.get('schema')!r}, and this version reads {SCHEMA}")
    try:
        return decode(Answer, parsed)
    except BadInput as error:
        raise _damaged(f"`{where}` {error}") from None


def save_report(report: Report, folder: Path, *, redact: bool) -> None:
    """Write the files of a report, none before all are made; those of an earlier report do not stay behind."""
    check_writable(folder)
    report = redacted(report) if redact else report
    answer, record, page = dump_answer(report.answer), dump_record(report.answer), report.to_html()
    writes: dict[Path, Callable[[Path], object]] = {
        folder / RECORD: lambda path: path.write_text(record, encoding="utf-8"),
        folder / PAGE: lambda path: path.write_text(page, encoding="utf-8"),
    }
    if examples := report.examples:
        images = dump_examples(examples)
        writes[folder / IMAGES] = lambda path: path.write_bytes(images)
    writes[folder / ANSWER] = lambda path: path.write_text(answer, encoding="utf-8")  # last: with it, all is there
    replace_files(writes)
    if not examples:
        (folder / IMAGES).unlink(missing_ok=True)


def load_report(folder: Path) -> Report:
    """The report that `save_report` wrote; it has no findings, and the examples of each attack."""
    path = folder / ANSWER
    if not path.is_file():
        message = f"`{folder}` holds no audit (there is no {ANSWER} in it): give the folder that an audit wrote"
        raise BadInput(message, code="missing-file", argument="folder")
    answer = parse_answer(path.read_text(encoding="utf-8"), where=str(path))
    return Report(answer=answer, stored=load_examples(folder / IMAGES))


def redacted(report: Report) -> Report:
    """The report without all that is about single records: pictures, values, figures with a point for each, and counts
    of labels, which of a small batch are the labels themselves."""
    figures = tuple(figure for figure in report.answer.figures if figure.kind == "lines")
    return Report(answer=replace(report.answer, figures=figures))


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _damaged(message: str) -> BadInput:
    return BadInput(f"{message}: make the audit again", code="damaged-file", argument="folder")


def load_answer(given: Any) -> Answer:
    """The answer of a `Report`, of a folder that an audit wrote, or of its `report.json`."""
    if isinstance(given, Report):
        return given.answer
    path = Path(given)
    if path.is_file():
        return parse_answer(path.read_text(encoding="utf-8"), where=str(path))
    return load_report(path).answer
