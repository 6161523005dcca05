"""The gate: conditions on a report, and the comparison with an earlier one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_report import AUC, RAN, REFUSED, TOGETHER, TPR, made_answer, null_answer
from refusals import refused

from remanence.auditing import Report
from remanence.auditing.answer.gate import compare, failures
from remanence.auditing.answer.report import Check

LEAKY, QUIET = Report(answer=made_answer()), Report(answer=null_answer())


@pytest.mark.parametrize(
    ("condition", "leaky", "quiet"),
    [
        ("found>0", True, False),
        ("found >= 20", True, False),
        ("found>20", False, False),
        ("found>=60%", True, False),
        ("found>=63%", False, False),
        ("found==0", False, True),
        ("exact>17", True, False),
        ("FirstLayer.found>0", True, False),
        ("membership.tpr@1%>0.05", True, False),
        ("membership.tpr@1%>5%", True, False),
        ("membership.tpr@1%>0.1", False, False),  # its value is 0.2, the lower end of its interval 0.08
        ("membership.auc>=0.7", True, False),
        ("membership.membership by loss: AUC>0.6", True, False),
        ("severity>=membership", True, False),
        ("severity>=none-found", True, True),
        ("severity==many-records", True, False),
    ],
)
def test_a_condition_fails_the_report_that_meets_it(condition: str, leaky: bool, quiet: bool) -> None:
    assert [bool(failures(report, [condition])) for report in (LEAKY, QUIET)] == [leaky, quiet]


def test_a_failure_says_condition_attack_and_numbers() -> None:
    first, second = failures(LEAKY, ["found>0", "membership.tpr@1%>0.05"])
    assert first == "found>0: all attacks together have found 20 of 32"
    assert "0.2, at least 0.08" in second


def test_a_count_that_chance_explains_does_not_fail_a_release() -> None:
    few = replace(RAN, found=1, exact=0, low=0.1, high=5.2, p=0.3)
    given = {"attacks": (few,), "together": replace(TOGETHER, found=1, copies=0, p=0.3)}
    assert failures(Report(answer=null_answer(**given)), ["found>0", "FirstLayer.found>0", "exact>0"]) == []
    copied = {"attacks": (replace(few, exact=1),), "together": replace(TOGETHER, found=1, copies=1, p=0.3)}
    assert len(failures(Report(answer=null_answer(**copied)), ["found>0", "FirstLayer.found>0"])) == 2


def test_one_attack_that_leaks_by_itself_fails_a_release() -> None:
    """As it takes a step of the scale of severity, though all attacks together list nothing."""
    listing = replace(RAN, name="KKT", found=6, exact=0, p=5e-5)
    report = Report(answer=null_answer(attacks=(replace(RAN, found=0, exact=0, p=0.5), listing)))
    assert failures(report, ["found>0", "found>=50%"]) == ["found>0: KKT by itself has found 6 of 32"]
    unsure = Report(answer=null_answer(attacks=(replace(RAN, found=0, exact=0, p=0.5), replace(listing, p=3e-4))))
    assert failures(unsure, ["found>0", "KKT.found>0"]) == []


@pytest.mark.parametrize("condition", ["found>0", "GLM.found>0", "membership.tpr@1%>0.05", "span.members>0"])
def test_what_was_not_measured_cannot_pass(condition: str) -> None:
    assert failures(Report(answer=null_answer(attacks=(REFUSED,), together=None, evidence=())), [condition])


FEW = replace(TOGETHER, found=0, copies=0, p=0.4, held_out=40, smallest_list=33, needed=24)
WARNED = replace(made_answer().preflight, checks=(Check(name="update", status="warning", text="it does not fit"),))


@pytest.mark.parametrize("severity", ["inconclusive", "membership"])
@pytest.mark.parametrize("changes", [{"together": FEW}, {"preflight": WARNED}], ids=["few", "warned"])
def test_counts_of_an_audit_that_could_have_found_nothing_do_not_pass(severity: str, changes: dict[str, Any]) -> None:
    report = Report(answer=null_answer(**changes, severity=severity))
    why = "24 or more" if "together" in changes else "`update`"
    for condition in ("found>0", "exact>0", "FirstLayer.found>0", "found>=50%"):
        [said] = failures(report, [condition])
        assert said.startswith(f"{condition}: ")
        assert why in said


@pytest.mark.parametrize("name", ["accuracy", "normalize"])
def test_evidence_on_inputs_that_are_not_those_of_the_model_does_not_pass(name: str) -> None:
    preflight = replace(WARNED, checks=(Check(name=name, status="warning", text="they do not fit"),))
    [said] = failures(Report(answer=null_answer(preflight=preflight)), ["membership.tpr@1%>0.05"])
    assert said.startswith("membership.tpr@1%>0.05: ")
    assert f"`{name}`" in said
    [said] = failures(Report(answer=made_answer(preflight=preflight)), ["membership.tpr@1%>0.05"])
    assert "at least 0.08" in said
    assert failures(Report(answer=null_answer(preflight=WARNED)), ["membership.tpr@1%>0.05"]) == []


@pytest.mark.parametrize("condition", ["severity>=membership", "severity>=none-found", "severity==many-records"])
def test_an_inconclusive_severity_excludes_no_step(condition: str) -> None:
    report = Report(answer=null_answer(together=FEW, severity="inconclusive"))
    [said] = failures(report, [condition])
    assert said.startswith(f"{condition}: the severity is inconclusive: 40 held-out records are too few")


def test_one_attack_of_many_needs_more_held_out_records() -> None:
    rows = tuple(replace(RAN, name=name, found=0, exact=0, p=0.4) for name in ("FirstLayer", "Stein", "SPEAR"))
    few = replace(TOGETHER, records=1, found=0, copies=0, p=0.4, held_out=300, smallest_p=1 / 301)
    report = Report(answer=null_answer(attacks=rows, together=few))
    assert failures(report, ["found>0"]) == []
    [said] = failures(report, ["Stein.found>0"])
    assert "run it alone" in said


def test_attacks_on_a_stand_in_do_not_fail_the_release() -> None:
    rows = (replace(RAN, found=0), replace(RAN, name="KKT", subject="stand-in"))
    report = Report(answer=null_answer(attacks=rows))
    assert failures(report, ["found>0", "FirstLayer.found>0"]) == []
    assert failures(report, ["KKT.found>0"]) == ["KKT.found>0: no attack ran that could say it"]


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("", "bad-condition"),
        ("found", "bad-condition"),
        ("found<1", "bad-condition"),
        ("found>0 and exact>0", "bad-condition"),
        ("found>x", "wrong-type"),
        ("found>0.5", "out-of-range"),
        ("found>-1", "out-of-range"),
        ("membership.auc>inf", "not-finite"),
        ("membership.auc>nan", "not-finite"),
        ("fond>0", "unknown-name"),
        ("Attack.found>0", "unknown-name"),
        ("severity>=bad", "unknown-name"),
    ],
)
def test_a_condition_that_cannot_be_understood_is_refused(condition: str, code: str) -> None:
    with refused(code, "--fail-if"):
        failures(LEAKY, [condition])


def test_compared_only_what_chance_does_not_explain_is_worse() -> None:
    assert compare(LEAKY, LEAKY) == compare(LEAKY, QUIET_ALL) == []
    worse = compare(QUIET, LEAKY)
    assert any(line.startswith("FirstLayer: at least 0.4375 now, at most") for line in worse)
    assert any(line.startswith("membership by loss: AUC") for line in worse)
    assert worse[-1] == "severity: many-records now, none-found before"
    overlapping = replace(RAN, found=22, low=16.0, high=27.0)
    assert compare(LEAKY, Report(answer=made_answer(attacks=(overlapping,)))) == []


QUIET_ALL = Report(answer=null_answer())


def test_counts_are_compared_as_fractions() -> None:
    ten_times = replace(RAN, records=320, found=200, low=180.0, high=218.0)
    assert compare(LEAKY, Report(answer=made_answer(attacks=(ten_times,)))) == []


def test_what_is_not_measured_any_more_is_named() -> None:
    fewer = Report(answer=null_answer(attacks=(REFUSED,), evidence=(AUC,)))
    assert compare(Report(answer=null_answer(evidence=(TPR, AUC))), fewer) == [
        "FirstLayer: measured before, and not any more",
        f"{TPR.name}: measured before, and not any more",
    ]


def test_a_severity_that_only_becomes_sayable_is_not_worse() -> None:
    none = Report(answer=null_answer(attacks=(), evidence=(), severity="inconclusive"))
    assert compare(none, QUIET) == []


def test_an_audit_that_became_inconclusive_is_worse() -> None:
    answer = null_answer(together=FEW, severity="inconclusive")
    assert compare(QUIET, Report(answer=answer)) == ["severity: inconclusive now, none-found before"]


def test_folders_and_files_are_compared_too(tmp_path: Path) -> None:
    LEAKY.save(tmp_path / "new")
    QUIET.save(tmp_path / "old")
    assert compare(tmp_path / "old", tmp_path / "new" / "report.json") == compare(QUIET, LEAKY)
    assert failures(tmp_path / "new", ["found>0"])
