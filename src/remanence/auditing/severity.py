"""The scale of severity, and the verdict in a sentence (docs/severity.md).

A step of the scale is taken only where chance would take it in fewer than one audit in a thousand.
"""

from collections.abc import Sequence
from typing import Final

from remanence.auditing.report import AttackRow, Evidence, Severity
from remanence.experiments.words import percent, score

LEVEL: Final = 0.001  # of a whole audit, for each step of the scale
FEW: Final = 10  # records: with fewer no test of an audit reaches that level, and 1 % has to do
MANY: Final = 0.1  # fraction of the records


def severity(attacks: Sequence[AttackRow], evidence: Sequence[Evidence]) -> Severity:
    """The highest step that any attack or evidence reaches."""
    ran = [row for row in attacks if row.status == "ran" and row.subject == "release"]
    if leaking := [row for row in ran if leaks(row, len(ran))]:
        largest = max((row.found or 0) / (row.records or 1) for row in leaking)
        return "many-records" if largest >= MANY else "some-records"
    members = [row for row in evidence if row.p is not None and row.group in ("membership", "span")]
    together = [row for row in ran if row.p is not None and (row.records or 0) >= FEW]
    tests = len(members) + len(together)
    p_values = [row.p or 0.0 for row in members] + [row.p or 0.0 for row in together]
    if any(p <= LEVEL / tests for p in p_values):
        return "membership"
    return "none-found" if ran or members else "inconclusive"


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
    ran = [row for row in attacks if row.status == "ran" and row.subject == "release" and row.records]
    if not ran:
        first = "No attack could run on this release, which is no proof that nothing leaks."
    else:
        best = max(ran, key=lambda row: (row.found or 0, row.exact or 0))
        tried = f"{len(ran)} attack{'s' if len(ran) > 1 else ''} that ran"
        if step in ("some-records", "many-records"):
            were = "was" if best.found == 1 else "were"
            first = (
                f"{best.found} of {best.records} records {were} reconstructed by {best.name} beyond chance "
                f"(chance {score(best.chance)}; the strongest of {tried})."
            )
        elif best.found:
            first = (
                f"{best.found} of {best.records} records came back closer than held-out ones by {best.name}, no more "
                f"than chance explains ({tried})."
            )
        else:
            first = f"No record was found by the {tried}; a stronger or longer attack may find some."
    members = [row for row in evidence if row.group in ("membership", "span") and row.value is not None]
    if step != "none-found" and step != "inconclusive" and members:
        best_row = min(members, key=lambda row: 1.0 if row.p is None else row.p)
        first += f" {best_row.name}: {percent(best_row.value)} (chance {percent(best_row.chance)})."
    if step == "none-found" and members:
        first += " Membership could not be told from held-out records beyond chance."
    return first
