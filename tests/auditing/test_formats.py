"""JUnit, SARIF, Markdown, model card and the disclosure-control record, each against the rules of its format."""

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from made_report import RAN, REFUSED, TOGETHER, made_answer, null_answer

from remanence.auditing import Report
from remanence.auditing.answer.documentation import REFERENCES
from remanence.auditing.answer.formats import model_card, to_junit, to_sarif, to_summary
from remanence.auditing.answer.gate import failures
from remanence.auditing.answer.record import dump_record, record_schema
from remanence.auditing.answer.threats import threats_not_asked
from remanence.auditing.attempts.applicability import _KINDS

CONDITIONS = ["found>0", "severity>=many-records", "exact>100"]
SARIF = {  # what SARIF 2.1.0 requires of the objects that are used here
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "required": ["tool", "results"],
                "properties": {
                    "tool": {"required": ["driver"], "properties": {"driver": {"required": ["name", "rules"]}}},
                    "invocations": {"items": {"required": ["executionSuccessful"]}},
                    "results": {
                        "items": {
                            "required": ["message", "ruleId", "ruleIndex", "level", "locations"],
                            "properties": {
                                "message": {"required": ["text"], "properties": {"text": {"minLength": 1}}},
                                "level": {"enum": ["none", "note", "warning", "error"]},
                            },
                        }
                    },
                },
            },
        },
    },
}


def test_junit_has_a_case_for_each_attack_and_condition() -> None:
    answer = made_answer()
    suite = ET.fromstring(to_junit(answer, CONDITIONS, failures(Report(answer=answer), CONDITIONS))).find("testsuite")
    assert suite is not None
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert cases == {
        "FirstLayer": ["failure"],
        "GLM": ["skipped"],
        "Stein": ["skipped"],
        "KKT": ["error"],
        "found>0": ["failure"],
        "severity>=many-records": ["failure"],
        "exact>100": [],
    }
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["7", "3", "1", "2"]


def test_junit_of_a_quiet_audit_fails_nowhere_and_holds_no_control_characters() -> None:
    reason = "bad\x00\x1b<>&\"'"
    answer = null_answer(attacks=(replace(RAN, found=0, exact=0), replace(REFUSED, reason=reason)))
    suite = ET.fromstring(to_junit(answer)).find("testsuite")
    assert suite is not None
    assert suite.get("failures") == suite.get("errors") == "0"
    skipped = suite.find("testcase/skipped")
    assert skipped is not None
    assert (skipped.get("message") or "").endswith("bad  <>&\"'")


def test_an_attack_that_could_have_found_nothing_does_not_pass_in_junit() -> None:
    few = replace(TOGETHER, found=0, copies=0, p=0.4, held_out=40, smallest_list=33, needed=24)
    answer = null_answer(together=few, severity="inconclusive", verdict="Inconclusive: 40 are too few.")
    [case, _] = ET.fromstring(to_junit(answer)).iter("testcase")
    skipped = case.find("skipped")
    assert skipped is not None
    assert "hold out 24 or more" in (skipped.get("message") or "")
    [result] = json.loads(to_sarif(answer))["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("remanence/inconclusive", "warning")
    assert result["message"]["text"] == answer.verdict


@pytest.mark.parametrize(
    ("severity", "rules"),
    [
        ("many-records", ["reconstruction", "gate"]),
        ("membership", ["membership", "gate"]),
        ("inconclusive", ["inconclusive", "gate"]),
        ("none-found", ["gate"]),
    ],
)
def test_sarif_names_what_the_severity_rests_on(severity: str, rules: list[str]) -> None:
    sarif = json.loads(to_sarif(made_answer(severity=severity), artifact="models/a.pt", failed=["found>0: it is"]))
    jsonschema.validate(sarif, SARIF)
    run = sarif["runs"][0]
    assert [result["ruleId"] for result in run["results"]] == [f"remanence/{rule}" for rule in rules]
    defined = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(defined[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    uris = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in run["results"]}
    assert uris == {run["artifacts"][0]["location"]["uri"]} == {"models/a.pt"}
    assert len({result["partialFingerprints"]["remanence/v1"] for result in run["results"]}) == len(rules)


@pytest.mark.parametrize(("found", "named"), [((2, 0), ["A"]), ((0, 0), ["A", "B"])])
def test_what_attacks_show_only_together_is_named_too(found: tuple[int, int], named: list[str]) -> None:
    rows = tuple(replace(RAN, name=n, found=f, exact=0, p=0.01) for n, f in zip("AB", found, strict=True))
    answer = made_answer(attacks=rows, severity="some-records")
    results = json.loads(to_sarif(answer))["runs"][0]["results"]
    assert [each["message"]["text"].partition(":")[0] for each in results] == named
    failed = ET.fromstring(to_junit(answer)).iter("testcase")
    assert [case.get("name") for case in failed if case.find("failure") is not None] == named


def test_summary_is_a_table_that_nothing_in_it_breaks() -> None:
    answer = made_answer(verdict="a | b <script>", attacks=(RAN, replace(REFUSED, reason="x|y\nz")))
    text = to_summary(answer, failed=["found>0: FirstLayer"], worse=["AUC: worse"])
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") in (8, 5) for line in tables)
    assert "<script" not in text
    assert "| FirstLayer | ran | 20 of 32 |" in text
    assert all(words in text for words in ("**Gate failed**", "**Worse than before**", "**What to do**", "Not tested"))
    assert "Gate failed" not in to_summary(null_answer())


def test_model_card_says_date_attacks_result_and_what_was_not_tested() -> None:
    text = model_card(made_answer())
    for words in ("2025-01-31", "FirstLayer", "20 of 32", "many-records", "queries to a served model", "lower bound"):
        assert words in text
    assert "no attack" in model_card(made_answer(attacks=(REFUSED,), evidence=()))


@pytest.mark.parametrize("answer", [made_answer(), null_answer(), made_answer(attacks=(), evidence=())])
def test_record_fits_its_schema_and_answers_every_question(answer: object) -> None:
    record = json.loads(dump_record(answer))  # type: ignore[arg-type]
    jsonschema.validate(record, record_schema())
    assert all(each["answer"].strip() for each in record["documentation"])
    assert record["threat_models"] == ["a federated update"]
    assert record["threat_models_not_asked"] == list(threats_not_asked("Gradient"))


def test_record_says_where_each_attack_was_published() -> None:
    record = json.loads(dump_record(made_answer()))
    assert [(each["row"]["name"], each["year"]) for each in record["attacks"]][:2] == [
        ("FirstLayer", 2023),
        ("GLM", 2022),
    ]
    assert {kind.attack.__name__ for kind in _KINDS} <= REFERENCES.keys()
