"""The scale of severity and the verdict: each step by what it needs, and nothing by chance."""

from dataclasses import replace

import pytest
import torch

from remanence.auditing.answer.advice import advice
from remanence.auditing.answer.report import AttackRow, AuditTest, Evidence, Severity
from remanence.auditing.answer.severity import severity, verdict

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


LISTING = replace(RAN, name="SimuDy", found=7, chance=0.35, p=2e-4)


@pytest.mark.parametrize(
    ("attacks", "together", "step"),
    [
        ((RAN, LISTING), ALL, "some-records"),  # which drowns in the best scores over both
        ((RAN, replace(LISTING, found=12)), ALL, "many-records"),
        ((RAN, RAN, RAN, LISTING), ALL, "none-found"),  # half of the level over four attacks
        ((RAN, replace(LISTING, p=3e-4)), ALL, "none-found"),
        ((RAN, replace(LISTING, found=0)), ALL, "membership"),
        ((RAN, replace(LISTING, subject="stand-in")), ALL, "none-found"),
        ((RAN, RAN), replace(ALL, found=5, p=6e-4), "none-found"),  # the other half
        ((RAN, RAN), replace(ALL, found=5, p=5e-4), "some-records"),
        ((replace(RAN, found=5, p=6e-4),), replace(ALL, found=5, p=6e-4), "some-records"),  # one test in all
    ],
)
def test_half_of_the_level_is_for_single_attacks(
    attacks: tuple[AttackRow, ...], together: AuditTest, step: Severity
) -> None:
    assert severity(attacks, (), together) == step


def test_the_level_of_a_step_holds_over_all_of_its_tests() -> None:
    """Five attacks that find nothing, with uniform p-values and lists whenever they are small: the worst case."""
    generator, alarms, audits = torch.Generator().manual_seed(0), 0, 40_000
    for p in torch.rand(audits, 6, generator=generator, dtype=torch.float64).mul_(0.02).tolist():
        rows = [replace(LISTING, p=each) for each in p[1:]]
        alarms += severity(rows, (), replace(ALL, found=1, p=p[0])) != "none-found"
    assert 0 < alarms * 0.02 / audits < 0.001 * 1.2  # p-values above 0.02 take no step


def test_the_verdict_names_the_attack_that_shows_a_leak_by_itself() -> None:
    said = verdict((RAN, LISTING), (), "some-records", ALL)
    assert said.startswith("7 of 100 records were reconstructed beyond chance by SimuDy by itself, one of 2 attacks")
    assert "p 0.0002); all together list none." in said
    unlisted = verdict((RAN, replace(LISTING, found=0)), (), "membership", ALL)
    assert "What SimuDy reconstructed lies nearer to private than to held-out records" in unlisted


def test_the_verdict_names_the_strongest_attack_and_test() -> None:
    found = replace(RAN, name="SimuDy", found=40, p=1e-4)
    together = replace(ALL, found=43, false=2.1, p=5e-5)
    said = verdict((RAN, found), (RATE, AUC), "many-records", together)
    assert "43 of 100 records were reconstructed beyond chance, 40 by SimuDy, the strongest of 2 attacks" in said
    assert "(about 2 by chance, p" in said
    fewer = verdict((RAN, found), (), "many-records", replace(together, found=39))
    assert fewer.startswith(
        "39 of 100 records were reconstructed beyond chance by the 2 attacks that ran, all together"
    )
    assert fewer.endswith("; SimuDy by itself lists 40.")
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


def test_attacks_that_had_no_time_are_said_to_have_had_none() -> None:
    skipped = replace(REFUSED, name="SimuDy", status="skipped", reason="it needs about 2 min")
    said = verdict((REFUSED, skipped), (RATE, AUC), "none-found")
    assert "SimuDy" in said
    assert "--budget" in said
    assert "could" not in said
    assert "could run" in verdict((REFUSED,), (RATE, AUC), "none-found")


def test_where_no_attack_ran_the_advice_is_to_audit_again() -> None:
    skipped = replace(REFUSED, name="SimuDy", status="skipped", reason="it needs about 2 min")
    assert "larger budget: SimuDy" in advice("LocalUpdate", "none-found", (REFUSED, skipped))[0]
    for attacks in ((REFUSED,), (REFUSED, skipped)):
        assert not any("Keep this report" in each for each in advice("LocalUpdate", "none-found", attacks))
    assert "Keep this report" in advice("LocalUpdate", "none-found", (RAN, skipped))[0]
