"""The scale of severity and the verdict: each step by what it needs, and nothing by chance."""

from dataclasses import replace

import pytest

from remanence.auditing.answer.report import AttackRow, AuditTest, Evidence, Severity
from remanence.auditing.answer.severity import leaks, severity, verdict

RAN = AttackRow(name="KKT", status="ran", records=100, found=0, chance=0.0, exact=0, fdr=0.05, p=0.5)
REFUSED = AttackRow(name="GLM", status="refused", reason="it needs more")
ALL = AuditTest(
    records=100,
    found=0,
    copies=0,
    false=0.0,
    fdr=0.05,
    p=0.5,
    held_out=1000,
    smallest_list=2,
    untested=(),
    subjects=False,
)
AUC = Evidence(name="span: AUC", value=0.5, low=0.4, high=0.6, chance=0.5, meaning="by the span", p=0.5, group="span")
RATE = replace(AUC, name="span: tpr@1%", value=0.01, chance=0.01, p=None)


@pytest.mark.parametrize(
    ("attacks", "together", "evidence", "step"),
    [
        ((), None, (), "inconclusive"),
        ((REFUSED,), None, (), "inconclusive"),
        ((REFUSED,), None, (RATE, AUC), "none-found"),
        ((RAN,), ALL, (), "none-found"),
        ((RAN,), replace(ALL, found=1, false=0.05), (AUC,), "none-found"),
        ((RAN,), replace(ALL, found=30, false=1.5), (AUC,), "none-found"),  # but all together score like held-out ones
        ((RAN,), replace(ALL, p=1e-4), (), "membership"),  # nothing is listed
        ((RAN,), ALL, (replace(AUC, p=1e-6),), "membership"),
        ((RAN,), ALL, (replace(AUC, p=9e-4),), "none-found"),  # one of two tests
        ((RAN,), ALL, (replace(AUC, p=1e-6, group="labels"),), "none-found"),
        ((RAN,), replace(ALL, records=5, p=1e-4), (), "none-found"),  # too few for ranks
        ((RAN,), replace(ALL, found=9, p=1e-4), (), "some-records"),
        ((RAN,), replace(ALL, found=10, p=1e-4), (), "many-records"),
        ((RAN,), replace(ALL, found=1, copies=1), (), "some-records"),
        ((RAN,), replace(ALL, found=1, copies=1, records=1), (), "many-records"),
        ((RAN,), replace(ALL, found=3, records=4, p=0.009), (), "many-records"),  # of four records no p is smaller
        ((RAN,), replace(ALL, untested=(3, 7), smallest_list=101), (), "inconclusive"),
    ],
)
def test_each_step_is_taken_by_what_it_needs(
    attacks: tuple[AttackRow, ...], together: AuditTest | None, evidence: tuple[Evidence, ...], step: Severity
) -> None:
    assert severity(attacks, evidence, together) == step
    said = verdict(attacks, evidence, step, together)
    assert said.endswith(".")
    assert "safe" not in said
    assert "anonymous" not in said
    assert ("reconstructed beyond chance" in said) == (step in ("some-records", "many-records"))


def test_one_attack_of_several_needs_more() -> None:
    row = replace(RAN, found=7, p=5e-4)
    assert leaks(row)
    assert not leaks(row, attacks=5)
    assert leaks(replace(row, exact=1), attacks=5)
    assert not leaks(replace(row, found=0, p=0.0))


def test_the_verdict_names_the_strongest_attack_and_test() -> None:
    found = replace(RAN, name="SimuDy", found=40, p=1e-4)
    together = replace(ALL, found=43, false=2.1, p=5e-5)
    said = verdict((RAN, found), (RATE, AUC), "many-records", together)
    assert "43 of 100 records were reconstructed beyond chance, 40 by SimuDy, the strongest of 2 attacks" in said
    assert "(about 2 by chance, p" in said
    people = verdict((found,), (), "many-records", replace(together, subjects=True))
    assert "43 of 100 subjects were reconstructed beyond chance by SimuDy" in people
    rate, area = replace(RATE, value=0.98, low=0.9), replace(AUC, value=0.999, p=1e-20)
    shown = verdict((RAN,), (rate, area), "membership", ALL)
    assert "Membership by the span identifies 98\N{NO-BREAK SPACE}% of the private records" in shown
    by_ranks = verdict((RAN,), (RATE, AUC), "membership", replace(ALL, p=1e-4))
    assert "nearer to private" in by_ranks
    assert "span" not in by_ranks
    assert "no proof" in verdict((REFUSED,), (), "inconclusive")


def test_a_verdict_does_not_deny_what_one_attack_lists() -> None:
    """The best score over attacks lists none where another attack is noise; the row of one lists some."""
    listing = replace(RAN, name="GradientMatching", records=8, found=6, p=5e-5)
    said = verdict((replace(RAN, records=8), listing), (AUC,), "none-found", replace(ALL, records=8))
    assert said.startswith("No record is listed by the 2 attacks that ran taken together; GradientMatching by itself")
    assert "lists 6 of 8" in said


def test_with_few_held_out_records_nothing_found_says_nothing() -> None:
    assert severity([RAN], [], ALL, held_out=200) == "none-found"
    assert severity([RAN], [], ALL, held_out=5) == "inconclusive"
    assert "held out" in verdict([RAN], [], "inconclusive", ALL)
    lacking = replace(ALL, untested=(3, 7))
    assert "no record of class 3, 7 was held out; add 20 or more" in verdict([RAN], [], "inconclusive", lacking)
