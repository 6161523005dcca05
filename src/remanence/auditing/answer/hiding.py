"""What would help against the leak of an update: the settings of a sweep that hide the records, in a sentence.

A setting hides the records where the attacks that ran find none and score private records no better than held-out ones
(p above 1 %), and every stronger setting of the axis that was tested does too. That speaks of these attacks and this
budget alone; a setting that no attack could read was not tested, nor was one where nothing is found and too few records
were held out for any list.
"""

from collections.abc import Callable, Sequence
from typing import Final

from remanence.auditing.answer.report import Countermeasure, Evidence
from remanence.auditing.answer.severity import leaks
from remanence.auditing.answer.undecided import too_few
from remanence.experiments.words import number, percent

CHANCE: Final = 0.01  # p above which scores are those of chance
_KINDS: Final[dict[str, Callable[[Countermeasure], Evidence | None]]] = {
    "tokens": lambda row: row.tokens,
    "labels": lambda row: row.labels,
    "membership": lambda row: row.auc,
}


def what_would_help(rows: Sequence[Countermeasure], *, noun: str = "records") -> str | None:
    """The sentence of a sweep, whose rows of each axis go from the weakest to the strongest; None for other rows."""
    swept = [row for row in rows[1:] if row.value is not None]
    axes = dict[str, list[Countermeasure]]()
    for row in swept:
        if row.status == "ran":
            axes.setdefault(row.name, []).append(row)
    if not axes:
        return f"No setting of the sweep could be made: {swept[0].reason}." if swept else None
    first, tested = rows[0], [[row for row in axis if _is_tested(row)] for axis in axes.values()]
    strongest = [axis[-1] for axis in tested if axis]
    untested = [row for axis in axes.values() for row in axis if not _is_tested(row)]
    hiding = [weakest for axis in tested if (weakest := _weakest_hiding(axis))]
    if not _leaks(first):
        clauses = [
            f"{_undefended(first, noun)}, so that the sweep does not say what would hide the {noun}",
            *_readable([first]),
        ]
    elif not strongest:
        clauses = [
            f"no setting of the sweep could be tested, so that it does not say what would hide the {noun}",
            *_untested(untested, noun),
        ]
    elif hiding:
        failing = [row for row in strongest if not hides(row)]
        clauses = [
            f"{_listed(hiding)} would hide the {noun}: none is found by the attacks that ran at this budget, "
            f"{_count(first)} without",
            *([f"{_listed(failing)} would not"] if failing else []),
            *_untested(untested, noun),
            *_readable(hiding),
            *_accuracies(hiding, first),
            *_no_time(hiding),
        ]
    else:
        found = ", ".join(f"{_count(row)} with {row.setting}{_traces(row)}" for row in strongest)
        clauses = [
            f"no setting of the sweep that could be tested hides the {noun} ({_count(first)} found without, {found})"
            if untested
            else f"no setting of the sweep hides the {noun} ({_count(first)} found without, {found})",
            *_untested(untested, noun),
            *_readable(strongest),
        ]
    sentence = "; ".join(clauses)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _weakest_hiding(axis: Sequence[Countermeasure]) -> Countermeasure | None:
    """The first setting from which on all hide the records."""
    weakest = None
    for row in reversed(axis):
        if not hides(row):
            break
        weakest = row
    return weakest


def _is_tested(row: Countermeasure) -> bool:
    """Whether attacks ran, and records were found or could have been among those held out."""
    return row.together is not None and (row.together.found > 0 or not row.together.needed)


def hides(row: Countermeasure) -> bool:
    """Whether attacks ran that could find something, and none of them found anything beyond chance."""
    return row.together is not None and _is_tested(row) and not row.together.found and row.together.p > CHANCE


def _untested(rows: Sequence[Countermeasure], noun: str) -> list[str]:
    """The settings that were not tested, and where that is for want of held-out records, how many it takes."""
    few = [row.together for row in rows if row.together is not None]
    clauses = [f"{_listed(rows)} could not be tested"] if rows else []
    if few:
        largest = max(few, key=lambda test: test.needed)
        clauses.append(f"{too_few(largest, noun=noun)}, besides those of other clients")
    return clauses


def _leaks(row: Countermeasure) -> bool:
    return row.together is not None and leaks(row.together)


def _undefended(row: Countermeasure, noun: str) -> str:
    if row.together is None:
        if row.no_time:
            names = ", ".join(row.no_time)
            return f"there was no time to attack the update as the sweep makes it ({names}: give more with `--budget`)"
        return "no attack ran on the update as the sweep makes it"
    if not _is_tested(row):
        return too_few(row.together, noun=noun)
    return f"no {noun.removesuffix('s')} is found beyond chance in the update as it is, at this budget"


def _readable(rows: Sequence[Countermeasure]) -> list[str]:
    """What can be inferred from the updates of these rows beyond chance though records are not found."""
    everywhere, clauses, nowhere = list[str](), list[str](), list[str]()
    for name, evidence in _KINDS.items():
        measured = [row for row in rows if (each := evidence(row)) is not None and each.p is not None]
        shown = [row for row in measured if _p(evidence(row)) <= CHANCE]
        if not measured:
            continue
        if len(shown) == len(measured):
            everywhere.append(name)
        elif shown:
            clauses.append(f"{name} stay readable with {_listed(shown)}".replace("membership stay", "membership stays"))
        else:
            nowhere.append(name)
    if everywhere:
        verb = "stays" if everywhere == ["membership"] else "stay"
        clauses.insert(0, f"{' and '.join(everywhere)} {verb} readable")
    return clauses + ([f"{' and '.join(nowhere)} not beyond chance"] if nowhere else [])


def _p(evidence: Evidence | None) -> float:
    return 1.0 if evidence is None or evidence.p is None else evidence.p


def _accuracies(rows: Sequence[Countermeasure], first: Countermeasure) -> list[str]:
    """The accuracy with each of the rows where it was measured, and without."""
    each = {row.setting: percent(row.accuracy.value) for row in rows if row.accuracy is not None}
    if first.accuracy is None or not each:
        return []
    without = percent(first.accuracy.value)
    if set(each.values()) == {without}:
        return [f"accuracy stays at {without}"]
    changed = [f"{accuracy} with {setting}" for setting, accuracy in each.items()]
    return [f"accuracy is {_joined(changed, 'and')} in place of {without}"]


def _no_time(rows: Sequence[Countermeasure]) -> list[str]:
    """The attacks that had no time, or too little, where nothing was found."""
    names = dict.fromkeys(name for row in rows for name in row.no_time)
    return [f"not all attacks had time ({', '.join(names)}), give more"] if names else []


def _count(row: Countermeasure) -> str:
    assert row.together is not None
    return f"{row.together.found} of {row.together.records}"


def _traces(row: Countermeasure) -> str:
    """The p-value of a setting where records are not found, and score better than held-out ones all the same."""
    return "" if row.together is None or row.together.found else f", p {number(row.together.p)}"


def _listed(rows: Sequence[Countermeasure]) -> str:
    return _joined([row.setting for row in rows], "or")


def _joined(words: Sequence[str], last: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
