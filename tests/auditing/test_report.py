"""What a report says of itself: in text, in a notebook, as a frame, as files that are read back."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from made_report import AUC, RAN, REFUSED, TPR, made_answer, null_answer, real_report
from refusals import refused
from safetensors.torch import load_file

from remanence.auditing import AttackRow, Report, audit
from remanence.auditing.answer.gate import failures
from remanence.auditing.answer.record import record_schema
from remanence.auditing.answer.report import SEVERITIES, Severity, schema
from remanence.data import load

REPORT = Report(answer=made_answer())
MANY = made_answer(
    verdict="a sentence " * 60,
    attacks=tuple(replace(RAN, name=f"Attack{i}", found=i) for i in range(12)) + (REFUSED,) * 12,
    advice=("do this and that " * 30,),
)


@pytest.mark.parametrize("answer", [made_answer(), null_answer(), MANY, made_answer(attacks=(), evidence=())])
def test_printed_it_is_ten_lines_of_a_hundred_columns(answer: object) -> None:
    lines = str(Report(answer=answer)).splitlines()  # type: ignore[arg-type]
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 100
    assert min(map(len, lines)) > 0


def test_printed_it_says_verdict_severity_attacks_and_what_to_do() -> None:
    text = str(REPORT)
    assert text.startswith("20 of 32 records were reconstructed")
    assert "MANY-RECORDS" in text
    assert "20 of 32 found (fewer than one by chance), p 0.0001, picks 62\N{NO-BREAK SPACE}% out of 500" in text
    assert "1 refused (GLM); 1 skipped (Stein); 1 failed (KKT)" in text
    assert "membership by loss: AUC 0.800 (chance 0.500)" in text
    assert "Do not send such updates one by one." in text


def test_of_many_attacks_the_strongest_are_printed() -> None:
    text = str(Report(answer=MANY))
    assert "Attack11" in text
    assert "Attack0 " not in text
    assert "12 refused" in text


def test_repr_is_one_short_line_even_with_findings() -> None:
    report = real_report()
    assert len(repr(report)) < 120
    assert len(repr(report.findings)) < 200
    assert "FirstLayer on Gradient" in repr(report.findings)


def test_in_a_notebook_it_is_a_table_with_everything_escaped() -> None:
    hostile = replace(REFUSED, name="<b>x</b>", reason='"><script>')
    html = Report(answer=made_answer(attacks=(RAN, hostile), verdict="<i>"))._repr_html_()
    assert html.count("<tr") == 3
    assert "<script" not in html
    assert "<b>" not in html
    assert "<i>" not in html
    assert "many-records" in html


def test_frame_has_a_row_for_each_attack() -> None:
    frame = REPORT.to_frame()
    assert list(frame["name"]) == [row.name for row in REPORT.attacks]
    assert frame.set_index("name").loc["FirstLayer", "found"] == 20
    assert list(Report(answer=made_answer(attacks=())).to_frame().columns) == list(frame.columns)


def test_frame_without_pandas_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refused("missing-package", "pandas"):
        REPORT.to_frame()


def test_worst_is_the_attack_that_found_most_of_the_release() -> None:
    rows = (RAN, replace(RAN, name="Stein", found=25), replace(RAN, name="KKT", found=30, subject="stand-in"))
    worst = Report(answer=made_answer(attacks=rows)).worst
    assert isinstance(worst, AttackRow)
    assert worst.name == "Stein"
    assert Report(answer=made_answer(attacks=(REFUSED,))).worst is None


@pytest.mark.parametrize("table", [False, True])
def test_saved_and_loaded_it_says_and_shows_the_same(tmp_path: Path, table: bool) -> None:
    report = real_report(table)
    folder = report.save(tmp_path / "audit")
    assert {path.name for path in folder.iterdir()} == {
        *("report.json", "record.json", "report.html", "images.safetensors")
    }
    again = Report.load(folder)
    assert again.answer == report.answer
    assert str(again) == str(report)
    assert again.to_html() == report.to_html() == (folder / "report.html").read_text(encoding="utf-8")
    jsonschema.validate(json.loads((folder / "report.json").read_text()), schema())
    jsonschema.validate(json.loads((folder / "record.json").read_text()), record_schema())


def test_examples_are_the_records_found_and_their_reconstructions(tmp_path: Path) -> None:
    report = real_report()
    stored = load_file(report.save(tmp_path) / "images.safetensors")
    truth, found = stored["FirstLayer/truth"].double() / 255, stored["FirstLayer/reconstruction"].double() / 255
    records = stored["FirstLayer/record"]
    assert report.truth is not None
    assert torch.allclose(truth, report.truth.x[records], atol=0.5 / 255)
    mask = stored["FirstLayer/found"].bool()
    assert mask.sum() == report.findings["FirstLayer"].scores.found.sum() > 0
    assert mask.tolist() == sorted(mask.tolist(), reverse=True)
    assert (truth - found)[mask].abs().max() < 0.05
    assert (stored["FirstLayer/lookalike"].double() / 255 - truth).abs().flatten(1).mean(1).min() > 0.01


def test_redacted_nothing_about_a_record_is_left(tmp_path: Path) -> None:
    report = real_report()
    report.save(tmp_path)
    report.save(tmp_path, redact=True)  # what an earlier one left goes too
    assert not (tmp_path / "images.safetensors").exists()
    text = (tmp_path / "report.json").read_text()
    assert "one point for each record" not in text
    assert "Labels of the batch" not in text
    page = (tmp_path / "report.html").read_text()
    assert "data:image" not in page
    assert page == report.to_html(redact=True)


def test_a_folder_without_an_audit_or_with_a_damaged_one_is_refused(tmp_path: Path) -> None:
    with refused("missing-file", "folder"):
        Report.load(tmp_path)
    real_report().save(tmp_path)
    (tmp_path / "images.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    with refused("damaged-file"):
        Report.load(tmp_path)
    for text in ("{", "[]", '{"schema": 99}', '{"schema": 1}'):
        (tmp_path / "report.json").write_text(text)
        with refused("damaged-file"):
            Report.load(tmp_path)


def test_what_cannot_be_written_leaves_the_earlier_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    REPORT.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space"):
        Report(answer=null_answer()).save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("severity", SEVERITIES)
def test_no_text_of_ours_calls_a_release_safe_or_anonymous(severity: Severity) -> None:
    report = Report(answer=made_answer(severity=severity, verdict="", evidence=(TPR, AUC)))
    for text in (str(report), report.to_html(), report.model_card(), report._repr_html_()):
        assert " safe" not in text.casefold()
        assert "anonym" not in text.casefold()


@pytest.mark.parametrize(("name", "made"), [("audit", schema), ("record", record_schema)])
def test_the_committed_schemas_are_current(name: str, made: Callable[[], dict[str, Any]]) -> None:
    """`remanence schema --audit > docs/audit.schema.json` writes one, `--record` the other."""
    committed = json.loads((Path(__file__).parents[2] / "docs" / f"{name}.schema.json").read_text(encoding="utf-8"))
    assert committed == made()
    jsonschema.Draft202012Validator.check_schema(committed)


@pytest.mark.slow
def test_a_real_audit_of_a_leaking_update_fails_the_gate_and_names_what_was_found(tmp_path: Path) -> None:
    made = real_report()
    assert made.truth is not None
    others = load("digits").to("cpu", torch.float64).take(slice(8, 400))
    release = made.findings["FirstLayer"].release
    report = audit(release, truth=made.truth, held_out=others, attacks=["FirstLayer"], budget=60)
    again = Report.load(report.save(tmp_path))
    assert failures(tmp_path, ["found>0", "severity>=some-records"])
    assert again.worst == report.worst
    assert again.examples["FirstLayer"].found.all()
    assert again.answer.advice[0] in again.to_html()
    jsonschema.validate(json.loads((tmp_path / "record.json").read_text()), record_schema())
