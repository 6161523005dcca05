"""The scale of severity, and the verdict in a sentence (docs/severity.md).

A step of the scale is taken only where chance would take it in fewer than one audit in a thousand, all of its tests
together:

- *many-records*, *some-records*: an attack returned exact copies; or found more records than the false-positive rate
  explains (binomial) while all private records together lie nearer to its reconstructions than held-out ones of their
  class do (permutation). Many are 10 % of the records. With fewer than 10 records no test reaches one in a thousand,
  and one in a hundred has to do.
- *membership*: private records are distinguished from held-out ones of their class, by a membership test, the span, or
  the ranks of an attack's reconstructions.
- *none-found*: something was tested, and none of it.
- *inconclusive*: nothing could be tested.

Attacks on a stand-in take no part.
"""

from collections.abc import Sequence
from typing import Final

from remanence.auditing.answer.report import AttackRow, Evidence, Severity
from remanence.experiments.words import percent, score

LEVEL: Final = 0.001  # of a whole audit, for each step of the scale
FEWEST_HELD_OUT: Final = 20  # records: with fewer no test tells a leak from chance
FEW: Final = 10  # records: with fewer no test of an audit reaches that level, and 1 % has to do
MANY: Final = 0.1  # fraction of the records
FPR: Final = 0.01  # at which single members are identified
_AUC: Final = ": AUC"


def severity(attacks: Sequence[AttackRow], evidence: Sequence[Evidence], *, held_out: int | None = None) -> Severity:
    """The highest step that any attack or evidence reaches; with few `held_out` records nothing found says nothing."""
    ran = _ran(attacks)
    if leaking := [row for row in ran if leaks(row, len(ran))]:
        largest = max((row.found or 0) / (row.records or 1) for row in leaking)
        return "many-records" if largest >= MANY else "some-records"
    tests = _tests(ran, evidence)
    if any(p <= LEVEL / len(tests) for _, p in tests):
        return "membership"
    powerful = held_out is None or held_out >= FEWEST_HELD_OUT
    return "none-found" if powerful and (ran or tests) else "inconclusive"


def _ran(attacks: Sequence[AttackRow]) -> list[AttackRow]:
    return [row for row in attacks if row.status == "ran" and row.subject == "release"]


def _tests(ran: Sequence[AttackRow], evidence: Sequence[Evidence]) -> list[tuple[AttackRow | Evidence, float]]:
    """The tests of membership and their p-values: of evidence, and of the ranks of enough reconstructed records."""
    members = [(row, row.p) for row in evidence if row.p is not None and row.group in ("membership", "span")]
    together = [(row, row.p) for row in ran if row.p is not None and (row.records or 0) >= FEW]
    return [*members, *together]


def leaks(row: AttackRow, attacks: int) -> bool:
    """Whether there are exact copies; or more records were found than chance explains, and all records together score
    better than held-out ones."""
    from scipy.stats import binom

    if not row.found or row.records is None or row.level is None or row.p is None:
        return False
    if row.exact:
        return True
    level = LEVEL if row.records >= FEW else 0.01
    tail = float(binom.sf(row.found - 1, row.records, row.level))
    return tail <= level / attacks and row.p <= level / attacks


def verdict(attacks: Sequence[AttackRow], evidence: Sequence[Evidence], step: Severity) -> str:
    """The answer in a sentence or two; "safe" and "anonymous" are no words of it."""
    ran = _ran(attacks)
    sentences = [_of_attacks([row for row in ran if row.records], step)]
    tests = _tests(ran, evidence)
    if step not in ("none-found", "inconclusive") and tests:
        strongest, p = min(tests, key=lambda each: each[1])
        if p <= LEVEL / len(tests) and (step == "membership" or isinstance(strongest, Evidence)):
            sentences.append(_of_membership(strongest, evidence))
    if step == "inconclusive" and (ran or tests):
        sentences.append(f"Too few records were held out to tell anything from chance: give {FEWEST_HELD_OUT} or more.")
    if step == "none-found" and tests:
        sentences.append("Private records were not distinguished from held-out ones beyond chance.")
    return " ".join(sentences)


def _of_attacks(ran: Sequence[AttackRow], step: Severity) -> str:
    if not ran:
        return "No attack could run on this release, which is no proof that nothing leaks."
    leaking = [row for row in ran if leaks(row, len(ran))]
    best = max(leaking or ran, key=lambda row: (row.found or 0, row.exact or 0))
    tried = f"{len(ran)} attack{'s' if len(ran) > 1 else ''} that ran"
    if step in ("some-records", "many-records"):
        were = "was" if best.found == 1 else "were"
        return (
            f"{best.found} of {best.records} records {were} reconstructed by {best.name} beyond chance "
            f"(chance {score(best.chance)}; the strongest of {tried})."
        )
    if best.found:
        return (
            f"{best.found} of {best.records} records came back closer than held-out ones by {best.name}, too few to "
            f"tell them from chance ({tried})."
        )
    return f"No record was found by the {tried}; a stronger or longer attack may find some."


def _of_membership(strongest: AttackRow | Evidence, evidence: Sequence[Evidence]) -> str:
    """How well private records are distinguished by the strongest test."""
    if isinstance(strongest, AttackRow):
        return f"What {strongest.name} reconstructed lies nearer to the private than to held-out records."
    name = strongest.name.removesuffix(_AUC)
    rates = [row for row in evidence if row.name == f"{name}: tpr@1%" and row.value is not None]
    by = name if name.startswith("membership") else f"membership by the {name}"
    auc = f"(AUC {score(strongest.value)}, chance 0.5)"
    if rates and (rates[0].low or 0.0) > FPR:
        said = f"identifies {percent(rates[0].value)} of the private records at 1 % false positives {auc}."
    else:
        said = f"shows over all records together {auc}, which identifies no single one."
    return f"{by[0].upper()}{by[1:]} {said}"
