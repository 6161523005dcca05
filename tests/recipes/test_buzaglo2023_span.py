"""The recipe at smoke scale, from its studies to the page, and what it must show even there."""

from smoke import measures, results

NAME = "buzaglo2023.span"


def test_the_rank_shows_once_the_first_weights_have_died() -> None:
    record = results(NAME)["weight decay and epochs"]
    found = measures(record)
    assert found["rank, weight decay 0.015"] == found["rank, first weights known, no weight decay"] == 20
    assert found["rank, weight decay 0"] is None
    assert found["AUC, weight decay 0.015"] == found["private records told, weight decay 0.015"] == 1
    assert found["AUC, weight decay 0"] < 1
    lines = {figure.title: {s.name: s.y for s in figure.series} for figure in record.figures}
    rising = lines["Records told by the span"]["weight decay 0.015"]
    assert list(rising) == sorted(rising)
    assert set(lines["Records by the rank"]["first weights known, no weight decay"]) == {20}  # after any epoch
    falling = lines["As the first weights die"]["weight decay 0.015"]
    assert list(falling) == sorted(falling, reverse=True)
    assert falling[-1] < 1e-9
    (caveat,) = record.caveats
    assert caveat.code == "no-gap"
    assert caveat.text.startswith("Weight decay 0: ")


def test_a_record_is_told_in_the_target_that_saw_it_and_in_no_other() -> None:
    found = measures(results(NAME)["with and without a record"])
    assert found["rank exact"] == found["AUC, with against without"] == found["told, with the record"] == 1
    assert found["told, without the record"] == 0
