"""The scale of severity and the verdict: each step by what it needs, and nothing by chance."""

from dataclasses import replace

import pytest
import torch

from remanence.auditing.answer.report import AttackRow, Evidence, Severity
from remanence.auditing.answer.severity import leaks, severity, verdict

RAN = AttackRow(name="KKT", status="ran", records=100, found=0, chance=1.0, exact=0, level=0.01, p=0.5)
REFUSED = AttackRow(name="GLM", status="refused", reason="it needs more")
AUC = Evidence(name="span: AUC", value=0.5, low=0.4, high=0.6, chance=0.5, meaning="by the span", p=0.5, group="span")
RATE = replace(AUC, name="span: tpr@1%", value=0.01, chance=0.01, p=None)


@pytest.mark.parametrize(
    ("attacks", "evidence", "step"),
    [
        ((), (), "inconclusive"),
        ((REFUSED,), (), "inconclusive"),
        ((REFUSED,), (RATE, AUC), "none-found"),
        ((RAN,), (), "none-found"),
        ((replace(RAN, found=1),), (AUC,), "none-found"),
        ((replace(RAN, found=30),), (AUC,), "none-found"),  # but all records together score like held-out ones
        ((replace(RAN, found=2, p=1e-4),), (), "membership"),  # two of 100 are what 1 % explains
        ((replace(RAN, p=1e-4),), (), "membership"),
        ((RAN,), (replace(AUC, p=1e-6),), "membership"),
        ((RAN,), (replace(AUC, p=9e-4),), "none-found"),  # one of two tests
        ((RAN,), (replace(AUC, p=1e-6, group="labels"),), "none-found"),
        ((replace(RAN, records=5, p=1e-4),), (), "none-found"),  # too few for ranks
        ((replace(RAN, found=9, p=1e-4),), (), "some-records"),
        ((replace(RAN, found=10, p=1e-4),), (), "many-records"),
        ((replace(RAN, found=1, exact=1),), (), "some-records"),
        ((replace(RAN, found=1, exact=1, records=1),), (), "many-records"),
        ((replace(RAN, found=100, exact=100, p=0.0, subject="stand-in"), RAN), (), "none-found"),
    ],
)
def test_each_step_is_taken_by_what_it_needs(
    attacks: tuple[AttackRow, ...], evidence: tuple[Evidence, ...], step: Severity
) -> None:
    assert severity(attacks, evidence) == step
    said = verdict(attacks, evidence, step)
    assert said.endswith(".")
    assert "safe" not in said
    assert "anonymous" not in said
    assert ("beyond chance (" in said) == (step in ("some-records", "many-records"))


def test_counts_of_chance_alone_hardly_ever_leak() -> None:
    generator = torch.Generator().manual_seed(0)
    false = torch.binomial(torch.full((2000,), 100.0), torch.full((2000,), 0.01), generator=generator)
    p = torch.rand(2000, generator=generator)
    rows = [replace(RAN, found=int(found), p=float(each)) for found, each in zip(false, p, strict=True)]
    assert not any(leaks(row, attacks=1) for row in rows)


def test_more_attacks_need_more() -> None:
    row = replace(RAN, found=7, p=5e-4)
    assert leaks(row, attacks=1)
    assert not leaks(row, attacks=5)


def test_the_verdict_names_the_strongest_attack_and_test() -> None:
    found = replace(RAN, name="SimuDy", found=40, p=1e-4)
    said = verdict((RAN, found), (RATE, AUC), "many-records")
    assert "40 of 100 records were reconstructed by SimuDy" in said
    shown = verdict((RAN,), (replace(RATE, value=0.98), replace(AUC, value=0.999, p=1e-20)), "membership")
    assert "Membership by the span identifies 98\N{NO-BREAK SPACE}% of the private records" in shown
    by_ranks = verdict((replace(RAN, p=1e-4),), (RATE, AUC), "membership")
    assert "KKT" in by_ranks
    assert "span" not in by_ranks
    assert "no proof" in verdict((REFUSED,), (), "inconclusive")


def test_with_few_held_out_records_nothing_found_says_nothing() -> None:
    quiet = AttackRow(name="KKT", status="ran", records=50, found=0, low=0, high=3, chance=0.5, level=0.01, p=0.4)
    assert severity([quiet], [], held_out=200) == "none-found"
    assert severity([quiet], [], held_out=5) == "inconclusive"
    assert "held out" in verdict([quiet], [], "inconclusive")
