"""The scale of severity, and the verdict in a sentence (docs/severity.md).

A step of the scale is taken only where chance would take it in fewer than one audit in a thousand, all of its tests
together:

- *many-records*, *some-records*: an attack returned exact copies; or records are listed at a false-discovery rate of
  5 %, and the p-value of all records is at most one in a thousand. Many are 10 % of the records. With fewer than 10
  records no test reaches one in a thousand, and one in a hundred has to do.
- *membership*: private records are distinguished from held-out ones of their class, by a membership test, the span, the
  ranks of reconstructions, or the tokens of a batch of text.
- *none-found*: something was tested, and none of it.
- *inconclusive*: nothing could be tested: no attack ran and nothing was measured, or too few records were held out.

One attack that works may drown in the best score over several that do not, so that each is tested by itself too: half
of the level is for all attacks together, the other half is divided among them. Attacks on a stand-in take no part.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from remanence.auditing.answer.report import AttackRow, AuditTest, Evidence, Severity
from remanence.experiments.words import by_chance, number, percent, score

LEVEL: Final = 0.001  # of a whole audit, for each step of the scale
FEWEST_HELD_OUT: Final = 20  # records: with fewer no test tells a leak from chance
FEW: Final = 10  # records: with fewer no test of an audit reaches that level, and 1 % has to do
MANY: Final = 0.1  # fraction of the records
MEMBERSHIP: Final = ("membership", "span", "tokens")  # groups of evidence whose p-values are tests of membership
FPR: Final = 0.01  # at which single members are identified
_AUC: Final = ": AUC"


def severity(
    attacks: Sequence[AttackRow],
    evidence: Sequence[Evidence],
    together: AuditTest | None = None,
    *,
    held_out: int | None = None,
) -> Severity:
    """The highest step that the attacks together or any evidence reach; with few `held_out` records nothing found says
    nothing."""
    if (leak := find_leak(attacks, together)) is not None:
        return "many-records" if leak.test.found >= MANY * leak.test.records else "some-records"
    tests = _tests(attacks, together, evidence)
    if any(p <= LEVEL / len(tests) for _, p in tests):
        return "membership"
    tested = together is None or len(together.untested) == 0 or together.smallest_list <= together.records
    powerful = (held_out is None or held_out >= FEWEST_HELD_OUT) and tested
    return "none-found" if powerful and (_ran(attacks) or tests) else "inconclusive"


def _ran(attacks: Sequence[AttackRow]) -> list[AttackRow]:
    return [row for row in attacks if row.status == "ran" and row.subject == "release"]


def _tests(
    attacks: Sequence[AttackRow], together: AuditTest | None, evidence: Sequence[Evidence]
) -> list[tuple[AuditTest | AttackRow | Evidence, float]]:
    """The tests of membership and their p-values: of evidence, and of the ranks of enough reconstructed records, by all
    attacks together and, where there are several, by the best of them, times their number."""
    tests: list[tuple[AuditTest | AttackRow | Evidence, float]] = [
        (row, row.p) for row in evidence if row.p is not None and row.group in MEMBERSHIP
    ]
    if together is not None and together.records >= FEW:
        tests.append((together, together.p))
        ranked = [(row, row.p) for row in _ran(attacks) if row.p is not None]
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
    ran = [row for row in _ran(attacks) if row.records]
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
    level = LEVEL if tested.records >= FEW else 0.01
    return bool(copies) or tested.p <= level / tests


def verdict(
    attacks: Sequence[AttackRow], evidence: Sequence[Evidence], step: Severity, together: AuditTest | None = None
) -> str:
    """The answer in a sentence or two; "safe" and "anonymous" are no words of it."""
    ran = _ran(attacks)
    skipped = [row.name for row in attacks if row.status == "skipped"]
    sentences = [_of_attacks([row for row in ran if row.records], together, step, skipped)]
    tests = _tests(attacks, together, evidence)
    if step not in ("none-found", "inconclusive") and tests:
        strongest, p = min(tests, key=lambda each: each[1])
        if p <= LEVEL / len(tests) and (step == "membership" or isinstance(strongest, Evidence)):
            sentences.append(_of_membership(strongest, evidence))
    if step == "inconclusive" and (ran or tests):
        sentences.append(_too_few(together))
    if step == "none-found" and tests:
        sentences.append("Private records were not distinguished from held-out ones beyond chance.")
    return " ".join(sentences)


def _too_few(together: AuditTest | None) -> str:
    if together is not None and together.untested:
        classes = ", ".join(map(str, together.untested))
        return f"Inconclusive: no record of class {classes} was held out; add {FEWEST_HELD_OUT} or more of each."
    return f"Too few records were held out to tell anything from chance: give {FEWEST_HELD_OUT} or more."


def no_attack(skipped: Sequence[str] = ()) -> str:
    """The answer where nothing was attacked, for want of time where attacks that apply were `skipped`."""
    if skipped:
        return (
            f"No attack ran, for lack of time ({', '.join(skipped)}: give more with `--budget`), which is no proof "
            "that nothing leaks."
        )
    return "No attack could run on this release, which is no proof that nothing leaks."


def _of_attacks(
    ran: Sequence[AttackRow], together: AuditTest | None, step: Severity, skipped: Sequence[str] = ()
) -> str:
    if not ran or together is None:
        return no_attack(skipped)
    best = max(ran, key=lambda row: (row.found or 0, row.exact or 0))
    tried = f"{len(ran)} attack{'s' if len(ran) > 1 else ''} that ran{_shortened(ran)}"
    noun = "subjects" if together.subjects else "records"
    if step in ("some-records", "many-records"):
        found, alone = find_leak(ran, together) or Leak(together, None)
        who, more = f" by {best.name}", ""
        if alone:
            who, more = f" by {alone} by itself, one of {tried}", f"; all together list {together.found or 'none'}"
        elif (best.found or 0) > found.found:
            who, more = f" by the {tried}, all together", f"; {best.name} by itself lists {best.found}"
        elif len(ran) > 1:
            who = f", {best.found} by {best.name}, the strongest of {tried}"
        return (
            f"{found.found} of {found.records} {noun} {'was' if found.found == 1 else 'were'} reconstructed beyond "
            f"chance{who} ({by_chance(found.false)}, p {number(found.p)}){more}."
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
    return f"No record was found by the {tried}; a stronger or longer attack may find some."


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
