"""The scale of severity and the verdict: each step by what it needs, and nothing by chance."""

from dataclasses import replace

import pytest
import torch

from remanence.auditing.answer.advice import advice
from remanence.auditing.answer.report import AttackRow, AuditTest, Check, Evidence, Severity
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
    smallest_p=5e-5,
    needed=0,
    lacking=(),
    untested=(),
    subjects=False,
)
FEW = replace(ALL, held_out=40, smallest_list=101, needed=24, lacking=(3, 7))  # for any list
AUC = Evidence(name="span: AUC", value=0.5, low=0.4, high=0.6, chance=0.5, meaning="by the span", p=0.5, group="span")
RATE = replace(AUC, name="span: tpr@1%", value=0.01, chance=0.01, p=None)


@pytest.mark.parametrize(
    ("attacks", "together", "evidence", "step"),
    [
        ((), None, (), "inconclusive"),
        ((REFUSED,), None, (), "inconclusive"),
        ((REFUSED,), None, (RATE, AUC), "inconclusive"),  # nothing was attacked
        ((REFUSED,), None, (RATE, replace(AUC, p=1e-6)), "membership"),
        ((replace(RAN, subject="stand-in"),), None, (RATE, AUC), "inconclusive"),
        ((RAN,), ALL, (), "none-found"),
        ((RAN,), replace(ALL, found=1, false=0.05), (AUC,), "none-found"),
        ((RAN,), replace(ALL, found=30, false=1.5), (AUC,), "none-found"),  # but all together score like held-out ones
        ((RAN,), replace(ALL, p=1e-4), (), "membership"),  # nothing is listed
        ((RAN,), ALL, (replace(AUC, p=1e-6),), "membership"),
        ((RAN,), ALL, (replace(AUC, p=9e-4),), "none-found"),  # one of two tests
        ((RAN,), ALL, (replace(AUC, p=1e-6, group="labels"),), "none-found"),
        ((RAN,), replace(ALL, records=4, p=1e-4), (), "membership"),  # few records among many held-out ones
        ((RAN,), replace(ALL, records=1, p=0.002, smallest_p=0.002), (), "none-found"),  # no p is smaller
        ((RAN,), replace(ALL, found=9, p=1e-4), (), "some-records"),
        ((RAN,), replace(ALL, found=10, p=1e-4), (), "many-records"),
        ((RAN,), replace(ALL, found=1, copies=1), (), "some-records"),
        ((RAN,), replace(ALL, found=1, copies=1, records=1), (), "many-records"),
        ((RAN,), replace(ALL, found=3, records=4, p=0.009), (), "many-records"),  # of four records no p is smaller
        ((RAN,), FEW, (), "inconclusive"),
        ((RAN,), replace(FEW, untested=(3, 7)), (AUC,), "inconclusive"),
        ((RAN,), replace(FEW, p=1e-4), (), "membership"),
        ((RAN,), replace(FEW, found=1, copies=1), (), "some-records"),
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


def test_records_of_another_kind_leave_exact_copies_alone() -> None:
    kind = Check(name="kind", status="warning", text="Private and held-out records are not of one kind: darker.")
    assert severity((RAN,), (), ALL, (replace(kind, status="note"),)) == "none-found"
    assert severity((RAN,), (), ALL, (kind,)) == "inconclusive"
    said = verdict((RAN,), (), "inconclusive", ALL, (kind,))
    assert said.startswith("Inconclusive: private and held-out records are not of one kind")
    assert "No record was found" not in said
    assert kind.text[1:] in advice("WeightsOnly", "inconclusive", (RAN,), (kind,))[0]
    copied, test = replace(RAN, found=2, exact=2), replace(ALL, found=2, copies=2, p=1.0)
    assert severity((copied,), (), test, (kind,)) == "some-records"
    assert "exact copies alone were counted" in verdict((copied,), (), "some-records", test, (kind,))
    near = replace(kind, name="near-copies")
    assert severity((RAN,), (), ALL, (near,)) == "inconclusive"
    assert severity((RAN,), (), replace(ALL, p=1e-4), (near,)) == "membership"


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
    assert fewer.endswith(
        "; SimuDy by itself lists 40, as the best score over several attacks is larger by chance too."
    )
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


def test_with_few_held_out_records_the_verdict_says_how_many_it_takes() -> None:
    said = verdict([RAN], [], "inconclusive", FEW)
    assert said.startswith("Inconclusive: 40 held-out records are too few for any list of the 100 private records")
    assert said.endswith("hold out 24 or more with label 3, 7.")
    assert "No record was found" not in said
    every, one = replace(FEW, lacking=tuple(range(9))), replace(FEW, records=1, lacking=(), subjects=True)
    assert verdict([RAN], [], "inconclusive", every).endswith("24 or more with each label.")
    assert "for any list of the private subject beyond" in verdict([RAN], [], "inconclusive", one)
    members = verdict([RAN], [RATE, replace(AUC, p=1e-6)], "membership", FEW)
    assert members.startswith("Whether records come back is undecided: 40 held-out records are too few for any list")
    assert "Membership by the span" in members


@pytest.mark.parametrize(
    ("found", "copies", "p", "said"),
    [
        (1, 1, 0.09, "It is an exact copy, which chance does not make."),
        (1, 1, 5e-5, "It is an exact copy."),
        (7, 7, 5e-5, "All of them are exact copies."),
        (7, 1, 5e-5, "1 of them is an exact copy."),
        (7, 3, 0.4, "3 of them are exact copies, which chance does not make."),
        (7, 0, 5e-5, ""),
    ],
)
def test_exact_copies_are_said_to_be_such(found: int, copies: int, p: float, said: str) -> None:
    row = replace(RAN, found=found, exact=copies, p=p)
    sentence = verdict((row,), (), "some-records", replace(ALL, found=found, copies=copies, p=p))
    assert sentence.endswith(said)
    assert ("exact cop" in sentence) == bool(said)


@pytest.mark.parametrize("name", ["update", "normalize", "outputs", "accuracy", "rounding", "lookup"])
def test_where_the_attacks_searched_in_vain_nothing_found_says_nothing(name: str) -> None:
    warned = [Check(name=name, status="warning", text="it does not fit")]
    assert severity([RAN], [], ALL, warned) == "inconclusive"
    assert severity([RAN], [replace(AUC, p=1e-6)], ALL, warned) == "membership"
    assert severity([RAN], [], replace(ALL, found=9, p=1e-4), warned) == "some-records"
    assert severity([RAN], [], ALL, [replace(warned[0], status="note")]) == "none-found"
    assert severity([RAN], [], ALL, [replace(warned[0], name="dropout")]) == "none-found"
    said = verdict([RAN], [], "inconclusive", ALL, warned)
    assert said.startswith(f"Inconclusive: what the attacks assume does not fit (see the warning on `{name}`)")
    assert "No record was found by the 1 attack that ran" in said
    assert advice("LocalUpdate", "inconclusive", [RAN], warned)[0].endswith("it does not fit")
    both = verdict([RAN], [], "inconclusive", FEW, warned)
    assert "hold out 24 or more" in both
    assert f"`{name}`" in both


def test_signs_that_are_short_of_the_level_are_no_chance() -> None:
    few = replace(ALL, records=1, p=0.002, smallest_p=0.002)
    said = verdict([RAN], [AUC], "none-found", few)
    assert "distinguished from held-out ones by the attacks (p 0.002), but not at the level of this audit" in said
    assert "beyond chance" not in said
    assert "by span (p 0.004)" in verdict([RAN], [replace(AUC, p=0.004)], "none-found", ALL)
    assert "not distinguished from held-out ones beyond chance" in verdict([RAN], [AUC], "none-found", ALL)


def test_a_list_that_only_many_records_could_make_is_said_to_be_one() -> None:
    said = verdict([RAN], [], "none-found", replace(ALL, smallest_list=40))
    assert "(fewer than 40 of the 100 would not be listed)" in said
    assert "listed" not in verdict([RAN], [], "none-found", replace(ALL, smallest_list=10))


def test_attacks_that_had_no_time_are_said_to_have_had_none() -> None:
    skipped = replace(REFUSED, name="SimuDy", status="skipped", reason="it needs about 2 min")
    said = verdict((REFUSED, skipped), (RATE, AUC), "inconclusive")
    assert said.startswith("Inconclusive: no attack ran, for lack of time")
    assert "SimuDy" in said
    assert "--budget" in said
    assert "could" not in said
    assert "could run" in verdict((REFUSED,), (RATE, AUC), "inconclusive")


def test_where_no_attack_ran_the_advice_is_to_audit_again() -> None:
    skipped = replace(REFUSED, name="SimuDy", status="skipped", reason="it needs about 2 min")
    assert "larger budget: SimuDy" in advice("LocalUpdate", "inconclusive", (REFUSED, skipped))[0]
    for attacks in ((REFUSED,), (REFUSED, skipped)):
        assert not any("Keep this report" in each for each in advice("LocalUpdate", "inconclusive", attacks))
    assert "Keep this report" in advice("LocalUpdate", "none-found", (RAN, skipped))[0]


def test_without_a_recipe_nothing_found_says_which_attacks_on_the_base_did_not_run() -> None:
    refused = replace(REFUSED, name="SimuDy", reason="needs the training recipe: --recipe")
    said = " ".join(advice("FineTunedUnknownRecipe", "none-found", (RAN, refused)))
    assert "`--recipe`" in said
    assert "SimuDy" in said
    assert "--recipe" not in " ".join(advice("FineTuned", "none-found", (RAN, REFUSED)))
