"""Whether an audit that found nothing says anything, or could have found nothing whatever leaks.

It says nothing where no attack ran on the release; where the preflight warns that what the attacks assume does not fit
it, so that they searched in vain; where so few records were held out that no list of the private ones is possible,
or no p-value of them all reaches the level of an audit (`remanence.metrics.power`); or where the held-out records are
of another kind than the private ones, or near copies of them, so that ranks among them are no measure of chance.
"""

from collections.abc import Sequence
from typing import Final

from remanence.auditing.answer.report import Answer, AttackRow, AuditTest, Check
from remanence.auditing.answer.threats import TEXT
from remanence.auditing.answer.words import count
from remanence.metrics.power import reaches

LEVEL: Final = 0.001  # of a whole audit, for each step of the scale
FEW: Final = 10  # records: with fewer few tests of an audit reach that level, and 1 % has to do
ASSUMED: Final = (
    "normalize",
    "outputs",
    "accuracy",
    "update",
    "rounding",
    "lookup",
)  # checks of what attacks search with
KIND: Final = "kind"  # the check of whether private and held-out records are of one kind
NEAR_COPIES: Final = "near-copies"  # the check of whether held-out records are near copies of private ones
_OF_ANOTHER_KIND: Final = (
    "private and held-out records are not of one kind, and differ for other reasons than what the model was trained on "
    "(see the warning on `kind`), hold out records of the same kind and audit again"
)
_NEAR_COPIES: Final = (
    "held-out records are near copies of private ones, which hide what leaks of these (see the warning on "
    "`near-copies`), leave them out and audit again"
)
_NAMED = 5  # labels at most


def level_of(records: int, *, tests: int = 1) -> float:
    """The level of the p-value of so many records, where a leak may show in one of several tests."""
    return (LEVEL if records >= FEW else 0.01) / tests


def undecided(
    attacks: Sequence[AttackRow],
    together: AuditTest | None,
    checks: Sequence[Check] = (),
    *,
    noun: str = "records",
) -> str:
    """Why it says nothing that the `attacks` found nothing, with the way out, as a clause; empty where it does say
    something."""
    reasons = [] if is_comparable(checks) else [_OF_ANOTHER_KIND]
    if together is None or not ran_on_release(attacks):
        return "; ".join([*reasons, no_attack([row.name for row in attacks if row.status == "skipped"])])
    if any(check.name == NEAR_COPIES and check.status == "warning" for check in checks):
        reasons.append(_NEAR_COPIES)
    reasons += [too_few(together, noun=noun)] if together.needed else []
    if names := list(dict.fromkeys(check.name for check in checks if check.status == "warning" and is_assumed(check))):
        listed = " and ".join(f"`{name}`" for name in names)
        warnings = f"warning{'s' if len(names) > 1 else ''} on {listed}"
        reasons.append(f"what the attacks assume does not fit (see the {warnings}), put that right and audit again")
    return "; ".join(reasons)


def undecided_answer(answer: Answer) -> str:
    """`undecided` of a whole answer; empty too where records were reconstructed."""
    if answer.severity not in ("inconclusive", "none-found", "membership"):
        return ""
    noun = "sentences" if answer.release.kind == TEXT else "records"
    return undecided(answer.attacks, answer.together, answer.preflight.checks, noun=noun)


def ran_on_release(attacks: Sequence[AttackRow]) -> list[AttackRow]:
    return [row for row in attacks if row.status == "ran" and row.subject == "release"]


def is_comparable(checks: Sequence[Check]) -> bool:
    """Whether ranks among the held-out records measure chance, as far as the preflight can tell."""
    return not any(check.name == KIND and check.status == "warning" for check in checks)


def is_assumed(check: Check) -> bool:
    """Whether attacks search in vain where this check warns."""
    return check.name in ASSUMED


def could_show(test: AuditTest, *, tests: int) -> bool:
    """Whether a leak could show in one of so many tests of these records, whatever was reconstructed."""
    enough = test.smallest_list <= test.records
    return enough and reaches(test.smallest_p, level_of(test.records, tests=tests))


def no_attack(skipped: Sequence[str] = ()) -> str:
    """That nothing was attacked, for want of time where attacks that apply were `skipped`, as a clause."""
    if skipped:
        return (
            f"no attack ran, for lack of time ({', '.join(skipped)}: give more with `--budget`), which is no proof "
            "that nothing leaks"
        )
    return "no attack could run on this release, which is no proof that nothing leaks"


def too_few(test: AuditTest, *, noun: str = "records") -> str:
    """That too few records were held out for any list, and how many it takes, as a clause."""
    noun = "subjects" if test.subjects else noun
    return few_held_out(test.records, test.held_out, test.needed, test.lacking, noun=noun)


def few_held_out(
    records: int,
    held_out: int,
    needed: int,
    lacking: Sequence[int],
    *,
    noun: str = "records",
    targets: Sequence[float] | None = None,
) -> str:
    """The clause of `too_few`, of so many private and held-out records; labels stand for the `targets` of a
    regression."""
    singular, which = noun.removesuffix("s"), ""
    if lacking:
        kind = "label" if targets is None else "target value"
        which = f" with {kind} {named_labels(lacking, targets)}" if len(lacking) <= _NAMED else f" with each {kind}"
    private = f"the {records:,} private {noun}" if records > 1 else f"the private {singular}"
    return (
        f"{count(held_out, f'held-out {singular}')} are too few for any list of {private} beyond chance, "
        f"whatever leaks; hold out {needed:,} or more{which}"
    )


def named_labels(labels: Sequence[int], targets: Sequence[float] | None) -> str:
    """Labels as a list, those of a regression by the `targets` that they stand for."""
    return ", ".join(str(label) if targets is None else f"{targets[label]:.6g}" for label in labels)
