"""The scale of severity, and the verdict in a sentence (docs/severity.md).

A step of the scale is taken only where chance would take it in fewer than one audit in a thousand, all of its tests
together:

- *many-records*, *some-records*: an attack returned exact copies; or records are listed at a false-discovery rate of
  5 %, and the p-value of all records is at most one in a thousand. Many are 10 % of the records. With fewer than 10
  records few tests reach one in a thousand, and one in a hundred has to do.
- *membership*: private records are distinguished from held-out ones of their class, by a membership test, the span, the
  ranks of reconstructions, or the tokens of a batch of text.
- *none-found*: attacks ran that could have found something, and none of it.
- *inconclusive*: none of it, and that says nothing (`undecided`).

Where the preflight finds private and held-out records to be of different kinds, exact copies alone count.

One attack that works may drown in the best score over several that do not, so that each is tested by itself too: half
of the level is for all attacks together, the other half is divided among them. Attacks on a stand-in take no part.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from remanence.auditing.answer.report import AttackRow, AuditTest, Check, Evidence, Severity
from remanence.auditing.answer.undecided import LEVEL, is_comparable, level_of, ran_on_release, undecided
from remanence.experiments.words import by_chance, number, percent, score
from remanence.metrics.power import reaches

MANY: Final = 0.1  # fraction of the records
MEMBERSHIP: Final = ("membership", "span", "tokens")  # groups of evidence whose p-values are tests of membership
FPR: Final = 0.01  # at which single members are identified
SIGN: Final = 0.05  # p, times the number of tests: signs of membership that do not reach the level of an audit
_COARSE: Final = 0.1  # of the records that must leak before any can be listed
_AUC: Final = ": AUC"
_COMPETE: Final = "as the best score over several attacks is larger by chance too"


def severity(
    attacks: Sequence[AttackRow],
    evidence: Sequence[Evidence],
    together: AuditTest | None = None,
    checks: Sequence[Check] = (),
) -> Severity:
    """The highest step that the attacks together or any evidence reach; where none is, and the attacks, the held-out
    records or the `checks` of the preflight could not have shown one, nothing found says nothing."""
    if (leak := find_leak(attacks, together)) is not None:
        return "many-records" if leak.test.found >= MANY * leak.test.records else "some-records"
    tests = _tests(attacks, together, evidence)
    if any(p <= LEVEL / len(tests) for _, p in tests):
        return "membership"
    return "inconclusive" if undecided(attacks, together, checks) else "none-found"


def _tests(
    attacks: Sequence[AttackRow], together: AuditTest | None, evidence: Sequence[Evidence]
) -> list[tuple[AuditTest | AttackRow | Evidence, float]]:
    """The tests of membership and their p-values: of evidence, and of the ranks of reconstructed records, where so many
    private and held-out ones can reach the level, by all attacks together and, where there are several, by the best of
    them, times their number."""
    tests: list[tuple[AuditTest | AttackRow | Evidence, float]] = [
        (row, row.p) for row in evidence if row.p is not None and row.group in MEMBERSHIP
    ]
    if together is not None and reaches(together.smallest_p, LEVEL):
        tests.append((together, together.p))
        ranked = [(row, row.p) for row in ran_on_release(attacks) if row.p is not None]
        if len(ranked) > 1:
            best, p = min(ranked, key=lambda each: each[1])
            tests.append((best, len(ranked) * p))
    return tests


class Leak(NamedTuple):
    """The test that shows that a release leaks: of all attacks together, or of the attack `by` by itself."""

    test: AuditTest
    by: str | None


def find_leak(attacks: Sequence[AttackRow], together: AuditTest | None) -> Leak | None:
    """The test that shows a leak: of all attacks together, or where that does not, of the one of several that found
    most by itself; None where none does."""
    ran = [row for row in ran_on_release(attacks) if row.records]
    if together is None or leaks(together, tests=2 if len(ran) > 1 else 1):
        return together and Leak(together, None)
    alone = [row for row in ran if len(ran) > 1 and leaks_alone(row, attacks=len(ran))]
    if not alone:
        return None
    best = max(alone, key=lambda row: row.found or 0)
    counts = replace(together, records=best.records or 0, found=best.found or 0, copies=best.exact or 0)
    return Leak(replace(counts, false=best.chance or 0.0, p=best.p or 0.0), best.name)


def leaks_alone(row: AttackRow, *, attacks: int) -> bool:
    """Whether one attack, of so many that ran, shows by itself that the release leaks."""
    return leaks(row, tests=2 * attacks if attacks > 1 else 1)


def leaks(tested: AuditTest | AttackRow, *, tests: int = 1) -> bool:
    """Whether there are exact copies; or records are listed, and all records together score better than held-out ones.

    One test of several is held to a level that is divided by their number."""
    copies = tested.copies if isinstance(tested, AuditTest) else tested.exact
    if not tested.found or tested.records is None or tested.p is None:
        return False
    return bool(copies) or tested.p <= level_of(tested.records, tests=tests)


def verdict(
    attacks: Sequence[AttackRow],
    evidence: Sequence[Evidence],
    step: Severity,
    together: AuditTest | None = None,
    checks: Sequence[Check] = (),
) -> str:
    """The answer in a sentence or two; "safe" and "anonymous" are no words of it."""
    ran = ran_on_release(attacks)
    why = "" if step in ("some-records", "many-records") else undecided(attacks, together, checks)
    tests = _tests(attacks, together, evidence)
    strongest, p = min(tests, key=lambda each: each[1]) if tests else (None, 1.0)
    shown = strongest is not None and p <= LEVEL / len(tests)
    sentences = [undecided_sentence(why, step, ran=bool(ran))] if why else []
    comparable = is_comparable(checks)
    searched = together is not None and ran and (together.found or not together.needed) and comparable
    if not why or (step == "inconclusive" and searched):
        sentences.append(_of_attacks([row for row in ran if row.records], together, step))
    if strongest is not None and shown and (step == "membership" or isinstance(strongest, Evidence)):
        sentences.append(_of_membership(strongest, evidence))
    if not comparable and not why:
        sentences.append("Private and held-out records are not of one kind, so that exact copies alone were counted.")
    if step in ("none-found", "inconclusive"):
        sentences += _of_signs(tests, together, found_nothing=step == "none-found")
    return " ".join(sentences)


def undecided_sentence(why: str, step: Severity, *, ran: bool, noun: str = "records") -> str:
    """The clause `why` nothing was decided about reconstruction as a sentence; `ran` says whether an attack did."""
    if step == "inconclusive":
        return f"Inconclusive: {why}."
    return f"Whether {noun} come back is undecided: {why}." if ran else f"{why[0].upper()}{why[1:]}."


def _of_signs(
    tests: Sequence[tuple[AuditTest | AttackRow | Evidence, float]], together: AuditTest | None, *, found_nothing: bool
) -> list[str]:
    """What the tests of membership say of an audit that reached no step; signs short of its level are named."""
    signs = [("the attacks" if isinstance(each, AuditTest) else each.name.removesuffix(_AUC), p) for each, p in tests]
    if together is not None and not reaches(together.smallest_p, LEVEL):
        signs.append(("the attacks", together.p))
    by, p = min(signs, key=lambda each: each[1], default=("", 1.0))
    if signs and p * len(signs) <= SIGN:
        return [
            f"Private records were distinguished from held-out ones by {by} (p {number(p)}), but not at the level of "
            "this audit."
        ]
    return (
        ["Private records were not distinguished from held-out ones beyond chance."] if found_nothing and tests else []
    )


def _of_attacks(ran: Sequence[AttackRow], together: AuditTest | None, step: Severity) -> str:
    assert together is not None
    best = max(ran, key=lambda row: (row.found or 0, row.exact or 0))
    tried = f"{len(ran)} attack{'s' if len(ran) > 1 else ''} that ran{_shortened(ran)}"
    noun = "subjects" if together.subjects else "records"
    if step in ("some-records", "many-records"):
        found, alone = find_leak(ran, together) or Leak(together, None)
        who, more = f" by {best.name}", ""
        if alone:
            who, more = f" by {alone} by itself, one of {tried}", f"; all together list {together.found or 'none'}"
        elif (best.found or 0) > found.found:
            who, more = f" by the {tried}, all together", f"; {best.name} by itself lists {best.found}, {_COMPETE}"
        elif len(ran) > 1:
            who = f", {best.found} by {best.name}, the strongest of {tried}"
        return (
            f"{found.found} of {found.records} {noun} {'was' if found.found == 1 else 'were'} reconstructed beyond "
            f"chance{who} ({by_chance(found.false)}, p {number(found.p)}){more}.{_of_copies(found)}"
        )
    if together.found:
        return (
            f"{together.found} of {together.records} {noun} came back closer than held-out ones, too few to tell them "
            f"from chance ({tried})."
        )
    if best.found:
        return (
            f"No record is listed by the {tried} taken together; {best.name} by itself lists {best.found} of "
            f"{best.records} (p {number(best.p or 1.0)})."
        )
    few = together.smallest_list
    unlisted = f" (fewer than {few} of the {together.records} would not be listed)" if _is_coarse(together) else ""
    return f"No record was found by the {tried}{unlisted}; a stronger or longer attack may find some."


def _of_copies(found: AuditTest) -> str:
    """How many of the records that were found are exact copies, which are a leak whatever the p-value."""
    if not found.copies:
        return ""
    who = f"{found.copies} of them" if found.copies < found.found else "It" if found.found == 1 else "All of them"
    what = "is an exact copy" if found.copies == 1 else "are exact copies"
    return f" {who} {what}{'' if found.p <= level_of(found.records) else ', which chance does not make'}."


def _is_coarse(together: AuditTest) -> bool:
    return max(1, _COARSE * together.records) < together.smallest_list <= together.records


def _shortened(ran: Sequence[AttackRow]) -> str:
    """How many of the attacks that ran did not run in full."""
    count = sum(row.shortened for row in ran)
    part = f"{count} of them " if count < len(ran) else "all " if count > 1 else ""
    return f", {part}shortened to keep the budget" if count else ""


def _of_membership(strongest: AuditTest | AttackRow | Evidence, evidence: Sequence[Evidence]) -> str:
    """How well private records are distinguished by the strongest test."""
    if not isinstance(strongest, Evidence):
        what = f"What {strongest.name}" if isinstance(strongest, AttackRow) else "What was"
        p = number(strongest.p or 1.0)
        return f"{what} reconstructed lies nearer to private than to held-out records, all taken together (p {p})."
    name = strongest.name.removesuffix(_AUC)
    rates = [row for row in evidence if row.name == f"{name}: tpr@1%" and row.value is not None]
    by = name if name.startswith("membership") else f"membership by the {name}"
    auc = f"(AUC {score(strongest.value)}, chance 0.5)"
    if rates and (rates[0].low or 0.0) > FPR:
        said = f"identifies {percent(rates[0].value)} of the private records at 1 % false positives {auc}."
    else:
        said = f"shows over all records together {auc}, which identifies no single one."
    return f"{by[0].upper()}{by[1:]} {said}"
