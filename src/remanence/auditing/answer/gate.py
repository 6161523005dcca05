"""The gate of a release: conditions that fail it (`--fail-if`), and the comparison with an earlier audit (`--compare`).

A condition is `QUANTITY OPERATOR VALUE`:

    found>0                   records that all attacks together found, or one of them by itself where that alone shows
                              a leak; `found>=5%` as a fraction of the records
    exact>0                   exact copies among them
    FirstLayer.found>=3       the same for one attack
    membership.tpr@1%>0.05    evidence, by its group and the end of its name; the lower end of its interval is compared
    severity>=membership      a step of the scale

A count that chance explains counts as 0, by the test that the scale of severity uses; evidence is compared by the end
of its 95 % interval nearest to chance. So a model that leaks nothing meets a condition on counts or the severity in
fewer than one audit in a thousand, one on evidence at its chance level in fewer than one in forty for each row. What
was not measured cannot pass: a condition on it fails, as does one on counts where nothing could have been found, one
on the severity of an audit that is inconclusive, and one on evidence of records that do not fit the model.
"""

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from remanence.attacks import ATTACKS, DAGER
from remanence.auditing.answer.report import SEVERITIES, Answer, AttackRow, Evidence
from remanence.auditing.answer.saved import load_answer
from remanence.auditing.answer.severity import find_leak, leaks_alone
from remanence.auditing.answer.undecided import could_show, undecided_answer
from remanence.errors import BadInput, unknown_name

_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
}
_GROUPS = ("membership", "span", "labels", "tokens", "other")
_COUNTS = ("found", "exact")
_INPUTS = ("accuracy", "normalize")  # checks that warn where a model does not know the records as they were given
_CONDITION = re.compile(r"\s*([A-Za-z][\w.@%:+ -]*?)\s*(>=|>|==)\s*(\S+)\s*")


@final
@dataclass(frozen=True, kw_only=True)
class Condition:
    """A parsed condition; `subject` is an attack, a group of evidence or nothing, `fraction` whether a count was
    given in per cent of the records."""

    text: str
    subject: str
    quantity: str
    operator: str
    value: float
    fraction: bool = False


def parse_condition(text: str) -> Condition:
    """The condition that `text` says; what cannot be understood is refused, never ignored."""
    if not (match := _CONDITION.fullmatch(text)):
        raise _refused(text, "is not QUANTITY OPERATOR VALUE with one of >=, >, ==, as `found>0`", "bad-condition")
    name, sign, value = match.groups()
    if name == "severity":
        if value not in SEVERITIES:
            raise unknown_name("severity", value, SEVERITIES, argument="--fail-if")
        return Condition(text=text.strip(), subject="", quantity=name, operator=sign, value=SEVERITIES.index(value))
    subject, _, quantity = name.partition(".")
    subject, quantity = (subject, quantity) if quantity else ("", subject)
    attacks = [attack.__name__ for attack in (*ATTACKS, DAGER)]
    if subject not in ("", *attacks, *_GROUPS):
        raise unknown_name("attack or group of evidence", subject, [*attacks, *_GROUPS], argument="--fail-if")
    if subject not in _GROUPS and quantity not in _COUNTS:
        raise unknown_name("quantity", quantity, [*_COUNTS, "severity", "membership.tpr@1%"], argument="--fail-if")
    threshold, fraction = _threshold(text, value)
    fraction = fraction and subject not in _GROUPS
    if subject not in _GROUPS and not fraction and (threshold != int(threshold) or threshold < 0):
        raise _refused(text, "compares a count with what is none: give 0, 1, 2, … or per cent", "out-of-range")
    return Condition(
        text=text.strip(), subject=subject, quantity=quantity, operator=sign, value=threshold, fraction=fraction
    )


def _threshold(text: str, value: str) -> tuple[float, bool]:
    percent = value.endswith("%")
    try:
        number = float(value.removesuffix("%"))
    except ValueError:
        raise _refused(text, f"has `{value}` where a number must stand", "wrong-type") from None
    number = number / 100 if percent else number
    if not -1e12 < number < 1e12:
        raise _refused(text, f"has `{value}` where a finite number must stand", "not-finite")
    return number, percent


def failures(report: Any, conditions: Sequence[str]) -> list[str]:
    """A sentence for each of the `conditions` that fails `report` (a `Report`, or the folder of one)."""
    answer, parsed = load_answer(report), [parse_condition(each) for each in conditions]
    return [sentence for each in parsed if (sentence := _failure(answer, each))]


def _failure(answer: Answer, condition: Condition) -> str:
    sign = _OPERATORS[condition.operator]
    if condition.quantity == "severity":
        met = sign(SEVERITIES.index(answer.severity), condition.value)
        said = f"{condition.text}: the severity is {answer.severity}"
        if answer.severity == "inconclusive":  # which excludes no step
            return f"{said}: {undecided_answer(answer)}"
        return said if met else ""
    if condition.subject in _GROUPS:
        return _evidence_failure(answer, condition, sign)
    if not condition.subject:
        return _audit_failure(answer, condition, sign)
    rows = [row for row in answer.attacks if row.name == condition.subject]
    ran = sum(row.status == "ran" and row.subject == "release" for row in answer.attacks)
    counted = [(row, value) for row in rows if (value := _count(row, condition, ran)) is not None]
    if not counted:
        return f"{condition.text}: no attack ran that could say it"
    worst, value = max(counted, key=lambda pair: pair[1])
    count = getattr(worst, condition.quantity)
    said = f"{condition.text}: {worst.name} has {condition.quantity} {count} of {worst.records}"
    if value == 0 and (why := undecided_answer(answer) or _alone_undecided(answer, ran)):
        return f"{condition.text}: {why}"
    return said if sign(value, condition.value) else ""


def _alone_undecided(answer: Answer, ran: int) -> str:
    """That no one of so many attacks could show a leak by itself, among so few held-out records."""
    test = answer.together
    if test is None or could_show(test, tests=2 * ran if ran > 1 else 1):
        return ""
    few = f"{test.held_out:,} held out are too few to tell what one of {ran} attacks finds by itself"
    return f"{few}; run it alone (`--attack`), or hold out more"


def _audit_failure(answer: Answer, condition: Condition, sign: Callable[[float, float], bool]) -> str:
    """The condition on the records that all attacks together found, or one by itself where that alone shows a leak."""
    leak = find_leak(answer.attacks, answer.together)
    if (found := leak.test if leak else answer.together) is None:
        return f"{condition.text}: no attack ran that could say it"
    count = found.found if condition.quantity == "found" else found.copies
    value = 0.0 if leak is None else count / max(1, found.records) if condition.fraction else float(count)
    who = f"{leak.by} by itself has" if leak and leak.by else "all attacks together have"
    said = f"{condition.text}: {who} {condition.quantity} {count} of {found.records}"
    if leak is None and (why := undecided_answer(answer)):
        return f"{condition.text}: {why}"
    return said if sign(value, condition.value) else ""


def _count(row: AttackRow, condition: Condition, ran: int) -> float | None:
    """The count of an attack, 0 where chance explains it, None where the attack did not run on the release."""
    value = getattr(row, condition.quantity)
    if row.status != "ran" or row.subject != "release" or value is None or not row.records:
        return None
    if not leaks_alone(row, attacks=ran):
        return 0.0
    return value / row.records if condition.fraction else float(value)


def _evidence_failure(answer: Answer, condition: Condition, sign: Callable[[float, float], bool]) -> str:
    rows = [row for row in answer.evidence if row.group == condition.subject and _is_named(row, condition.quantity)]
    measured = [(row, low) for row in rows if (low := row.low if row.low is not None else row.value) is not None]
    if not measured:
        names = ", ".join(row.name for row in answer.evidence if row.group == condition.subject) or "nothing"
        return f"{condition.text}: it was not measured (of {condition.subject} there is {names})"
    worst, low = max(measured, key=lambda pair: pair[1])
    said = f"{condition.text}: {worst.name} is {worst.value:.4g}, at least {low:.4g} (95 % interval)"
    if sign(low, condition.value):
        return said
    warned = [each.name for each in answer.preflight.checks if each.status == "warning" and each.name in _INPUTS]
    if warned:
        return f"{condition.text}: {worst.name} was measured on records that do not fit the model (`{warned[0]}` warns)"
    return ""


def _is_named(row: Evidence, quantity: str) -> bool:
    """`tpr@1%` names `membership by loss: tpr@1%` and every other row that ends so."""
    return quantity.casefold() in (row.name.casefold(), row.name.rpartition(": ")[2].casefold())


def _refused(text: str, why: str, code: str) -> BadInput:
    return BadInput(f"`--fail-if {text}` {why}", code=code, argument="--fail-if")


def compare(old: Any, new: Any) -> list[str]:
    """What got worse from the audit `old` to the audit `new` (reports or folders of them): a sentence each.

    Worse is what chance does not explain: the lower end of the new 95 % interval lies above the upper end of the old
    one, as a fraction of the records; or the severity rose to membership, or to reconstructed records. An attack or
    evidence that was measured before and is not any more is named too, and an audit that became inconclusive, as a
    release must not get better by not looking.
    """
    before, after = load_answer(old), load_answer(new)
    later, worse = dict(_intervals(after)), []
    for name, (_, high) in _intervals(before):
        if name not in later:
            worse.append(f"{name}: measured before, and not any more")
        elif (low := later[name][0]) > high:
            worse.append(f"{name}: at least {low:.4g} now, at most {high:.4g} before")
    if _grade(after) > max(1, _grade(before)) or (_grade(after) == 0 < _grade(before)):
        worse.append(f"severity: {after.severity} now, {before.severity} before")
    return worse


def _intervals(answer: Answer) -> Iterator[tuple[str, tuple[float, float]]]:
    """Each attack and evidence with its interval; attacks as a fraction of the records."""
    for row in answer.attacks:
        if row.status == "ran" and row.records and row.low is not None and row.high is not None:
            name = row.name if row.subject == "release" else f"{row.name} on a stand-in"
            yield name, (row.low / row.records, row.high / row.records)
    for each in answer.evidence:
        if each.low is not None and each.high is not None:
            yield each.name, (each.low, each.high)


def _grade(answer: Answer) -> int:
    """The step of the scale; some and many records are one, as a tenth of the records is no level of chance."""
    return min(SEVERITIES.index(answer.severity), SEVERITIES.index("some-records"))
