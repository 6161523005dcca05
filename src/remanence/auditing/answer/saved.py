"""The folder of an audit: `report.json`, `record.json`, `report.html` and, unless redacted, `images.safetensors` or
`sentences.json`."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from remanence.auditing.answer.examples import dump_examples, load_examples
from remanence.auditing.answer.record import dump_record
from remanence.auditing.answer.report import SCHEMA, Answer, Report
from remanence.auditing.answer.sentences import dump_sentences, load_sentences
from remanence.disk import check_writable, read_text, replace_files
from remanence.errors import BadInput
from remanence.experiments.codec import MAX_BYTES, decode, encode, parse_json
from remanence.experiments.results import MAX_RESULTS, shown

ANSWER, RECORD, PAGE, IMAGES = "report.json", "record.json", "report.html", "images.safetensors"
SENTENCES = "sentences.json"


def dump_answer(answer: Answer) -> str:
    """The text of `report.json`."""
    return json.dumps(encode(answer), indent=1, allow_nan=False) + "\n"


def parse_answer(text: str, *, where: str) -> Answer:
    """The answer in `text`, every field checked; `where` is named in errors."""
    try:
        parsed = parse_json(text)
    except ValueError as error:
        raise _damaged(f"`{where}` is not JSON ({error})") from None
    if isinstance(parsed, dict) and parsed.get("schema") != SCHEMA:
        raise _damaged(f"`{where}` has the schema {shown(parsed.get('schema'))}, and this version reads {SCHEMA}")
    try:
        answer = decode(Answer, parsed)
    except BadInput as error:
        raise _damaged(f"`{where}` {error}") from None
    if max(len(answer.attacks), len(answer.countermeasures)) > MAX_RESULTS:
        raise _damaged(f"`{where}` must have at most {MAX_RESULTS} attacks and countermeasures")
    return answer


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
    if report.sentences:
        sentences = dump_sentences(report.sentences)
        writes[folder / SENTENCES] = lambda path: path.write_text(sentences, encoding="utf-8")
    writes[folder / ANSWER] = lambda path: path.write_text(answer, encoding="utf-8")  # last: with it, all is there
    replace_files(writes)
    for name, there in ((IMAGES, examples), (SENTENCES, report.sentences)):
        if not there:
            (folder / name).unlink(missing_ok=True)


def load_report(folder: Path) -> Report:
    """The report that `save_report` wrote; it has no findings, and the examples of each attack."""
    path = folder / ANSWER
    if not path.is_file():
        message = f"`{folder}` holds no audit (there is no {ANSWER} in it): give the folder that an audit wrote"
        raise BadInput(message, code="missing-file", argument="folder")
    return Report(
        answer=_answer_in(path),
        stored=load_examples(folder / IMAGES),
        sentences=load_sentences(folder / SENTENCES),
    )


def redacted(report: Report) -> Report:
    """The report without all that is about single records: pictures, values, sentences, figures with a point for each,
    and counts of labels, which of a small batch are the labels themselves."""
    figures = tuple(figure for figure in report.answer.figures if figure.kind == "lines")
    return Report(answer=replace(report.answer, figures=figures))


def _answer_in(path: Path) -> Answer:
    try:
        text = read_text(path, max_bytes=MAX_BYTES)
    except ValueError as error:
        if isinstance(error, BadInput):
            raise
        raise _damaged(f"`{path}` is no text ({error})") from None
    return parse_answer(text, where=str(path))


def _damaged(message: str) -> BadInput:
    return BadInput(f"{message}: make the audit again", code="damaged-file", argument="folder")


def load_answer(given: Any) -> Answer:
    """The answer of a `Report`, of a folder that an audit wrote, or of its `report.json`."""
    if isinstance(given, Report):
        return given.answer
    path = Path(given)
    if path.is_file():
        return _answer_in(path)
    return load_report(path).answer
