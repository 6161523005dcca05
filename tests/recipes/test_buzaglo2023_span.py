"""The recipe at smoke scale, from its studies to the page, and what it must show even there; the same of an audit."""

from functools import partial

import torch
from smoke import measures, results

from remanence.data import load
from remanence_recipes.demo import audit_cells, what_spans

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
    assert rising == sorted(rising)
    assert set(lines["Records by the rank"]["first weights known, no weight decay"]) == {20}  # after any epoch
    falling = lines["As the first weights die"]["weight decay 0.015"]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] < 1e-9
    (doubt,) = record.caveats
    assert doubt["code"] == "no-gap"
    assert doubt["text"].startswith("Weight decay 0: ")


def test_a_record_is_told_in_the_target_that_saw_it_and_in_no_other() -> None:
    found = measures(results(NAME)["with and without a record"])
    assert found["rank exact"] == found["AUC, with against without"] == found["told, with the record"] == 1
    assert found["told, without the record"] == 0


def test_an_audit_of_an_mlp_tells_the_number_of_its_records() -> None:
    study = what_spans(audit_cells(partial(load, "digits"))[-1])
    outcome = study.run(1, torch.device("cpu"))
    found = {measure.name: measure.value for measure in outcome.measures}
    assert found["training records, by the rank"] == 50
    assert found["private records told"] == found["AUC"] == 1
    assert found["held-out records taken for private ones"] < 0.04
    assert not outcome.caveats
