"""What would help, in a sentence: which settings of a sweep hide the records, what stays readable, what it costs."""

from dataclasses import replace
from typing import Any

from made_report import AUC, RAN, TOGETHER

from remanence.auditing.answer.hiding import what_would_help
from remanence.auditing.answer.report import Countermeasure, Evidence
from remanence.auditing.countermeasures.axes import AXES
from remanence.metrics import Interval

LABELS = Evidence(name="labels", value=1.0, low=0.6, high=1.0, chance=0.4, meaning="labels", p=0.001, group="labels")


def row(name: str, value: float | None, count: int, *, p: float | None = None, **changes: Any) -> Countermeasure:
    words = AXES[name].words.format(value) if value is not None else "the update as it is"
    test = replace(TOGETHER, records=8, found=count, copies=0, p=p or (1e-4 if count else 0.5))
    accuracy = Interval(value=0.5, low=0.4, high=0.6)
    made = Countermeasure(
        name=name,
        setting=words,
        status="ran",
        value=value,
        accuracy=accuracy,
        attack=RAN,
        together=test,
        labels=LABELS,
        auc=replace(AUC, p=0.2),
    )
    return replace(made, **changes)


def unlistable(made: Countermeasure) -> Countermeasure:
    """The row where too few records are held out for any list."""
    return replace(made, together=made.together and replace(made.together, held_out=12, smallest_list=9, needed=24))


FIRST = row("baseline", None, 8)


def test_the_weakest_setting_from_which_on_all_hide_is_named() -> None:
    rows = [FIRST, row("clients", 2, 0), row("clients", 5, 3), row("clients", 10, 0), row("clients", 20, 0)]
    said = what_would_help(rows) or ""
    assert said.startswith("Sums of 10 clients would hide the records")
    assert "8 of 8 without" in said
    assert "at this budget" in said
    assert "labels stay readable" in said
    assert "membership not beyond chance" in said
    assert "accuracy stays at 50\N{NO-BREAK SPACE}%" in said
    worse = replace(rows[3], accuracy=Interval(value=0.3, low=0.2, high=0.4))
    said = what_would_help([*rows[:3], worse, rows[4]]) or ""
    assert "30\N{NO-BREAK SPACE}% with sums of 10 clients in place of 50\N{NO-BREAK SPACE}%" in said


def test_several_axes_are_one_sentence_and_those_that_do_not_hide_are_named() -> None:
    quiet = replace(LABELS, p=0.4)
    rows = [
        *(FIRST, row("clients", 5, 0), row("noise", 0.1, 8), row("noise", 1, 0, labels=quiet)),
        *(row("clip", 1, 8), row("bits", 2, 0, together=None)),
    ]
    said = what_would_help(rows) or ""
    assert said.startswith("Sums of 5 clients or noise of 1 would hide the records")
    assert "clipping to 1 would not" in said
    assert "2-bit entries could not be tested" in said
    assert "labels stay readable with sums of 5 clients;" in said
    assert said.count(". ") == 0


def test_traces_without_a_list_do_not_count_as_hidden() -> None:
    said = what_would_help([FIRST, row("noise", 1, 0, p=0.005)]) or ""
    assert said.startswith(
        "No setting of the sweep hides the records (8 of 8 found without, 0 of 8 with noise of 1, p 0.0"
    )
    assert "would hide" in (what_would_help([FIRST, row("noise", 1, 0, p=0.02)]) or "")
    assert "noise of 1 would not" in (what_would_help([FIRST, row("clients", 5, 0), row("noise", 1, 0, p=0.005)]) or "")


def test_a_few_held_out_records_do_not_tell_what_would_hide() -> None:
    rows = [row("baseline", None, 8), row("noise", 1, 0)]
    assert "would hide the" in (what_would_help(rows) or "")
    for few in ([unlistable(each) for each in rows], [rows[0], unlistable(rows[1])]):
        said = what_would_help(few) or ""
        assert said.startswith("No setting of the sweep could be tested")
        assert "noise of 1 could not be tested" in said
        assert "12 held-out records are too few for any list of the 8 private records" in said
        assert "hold out 24 or more, besides those of other clients" in said
    nothing = what_would_help([unlistable(row("baseline", None, 0)), rows[1]]) or ""
    assert nothing.startswith("12 held-out records are too few for any list")


def test_settings_that_were_not_tested_are_named_apart() -> None:
    rows = [row("baseline", None, 8), row("clients", 25, 0, together=None), row("noise", 0.01, 8)]
    said = what_would_help(rows) or ""
    assert said.startswith("No setting of the sweep that could be tested hides the records (8 of 8 found without, 8 of")
    assert "; sums of 25 clients could not be tested" in said
    assert "not tested with" not in said
    said = what_would_help([rows[0], row("clients", 5, 0), unlistable(row("clients", 25, 0)), rows[2]]) or ""
    assert said.startswith("Sums of 5 clients would hide the records")
    assert "noise of 0.01 would not; sums of 25 clients could not be tested; 12 held-out" in said
    for changed in (row("clients", 25, 3), row("clients", 25, 8)):  # found all the same
        assert "could not" not in (what_would_help([rows[0], unlistable(changed)]) or "")


def test_where_nothing_hides_or_nothing_was_found_it_says_so() -> None:
    nothing = what_would_help([FIRST, row("noise", 1, 7)]) or ""
    assert "8 of 8 found without, 7 of 8 with noise of 1" in nothing
    unfound = what_would_help([row("baseline", None, 0), row("noise", 1, 0)]) or ""
    assert unfound.startswith("No record is found beyond chance in the update as it is, at this budget, so that the")
    untested = what_would_help([replace(FIRST, together=None), row("noise", 1, 0)]) or ""
    assert untested.startswith("No attack ran")
    assert not any("safe" in each for each in (nothing, unfound, untested))


def test_an_attack_without_time_where_nothing_was_found_is_named() -> None:
    rows = [FIRST, row("noise", 1, 0, no_time=("SimuDy",))]
    assert "not all attacks had time (SimuDy)" in (what_would_help(rows) or "")
    rows = [replace(FIRST, no_time=("SimuDy",)), rows[1]]  # which may have been stopped there, and found some
    assert "not all attacks had time (SimuDy)" in (what_would_help(rows) or "")
    rows = [replace(FIRST, no_time=("SimuDy",)), row("noise", 1, 0)]
    assert "SimuDy" not in (what_would_help(rows) or "")


def test_rows_of_models_have_no_sentence_of_a_sweep() -> None:
    assert what_would_help([]) is None
    assert what_would_help([replace(FIRST, name="weight decay")] * 2) is None


def test_a_sweep_of_which_nothing_could_be_made_says_why() -> None:
    refused = row("clients", 300, 0, status="refused", together=None, reason="too few records are held out")
    assert what_would_help([FIRST, refused]) == ("No setting of the sweep could be made: too few records are held out.")


def test_a_sweep_without_time_for_the_update_as_it_is_asks_for_more() -> None:
    rows = [replace(FIRST, together=None, attack=None, no_time=("SimuDy",)), row("clients", 2, 0)]
    said = what_would_help(rows) or ""
    assert said.startswith("There was no time")
    assert "SimuDy: give more with `--budget`" in said
    assert "would hide the records" in said
    assert "no attack ran" in (what_would_help([replace(rows[0], no_time=()), rows[1]]) or "").lower()
