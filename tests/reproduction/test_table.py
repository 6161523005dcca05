"""Statuses follow from results: every one can be reached, none can be written."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_archive import made_archive, made_recipe, made_result, paper, quantity
from refusals import refused
from scipy.stats import t

from remanence.experiments import Budget, Claim
from remanence.experiments.results import Result, dump_results
from remanence.reproduction import Exceeds, PaperClaim, Printed, Quantity, Row, UpperBound, decide, read_archive

NUMBER = Printed(
    quantity=quantity(), claim=Claim(quantity="error", higher_is_better=False, printed=1.0, where="table 1")
)
CLAIM = PaperClaim(where="table 1", text="The error is one.", criterion=NUMBER, minutes=7.0)
FAILS = UpperBound(quantities=(quantity(),), bound=1.0)


def row(claim: PaperClaim, *results: Result, **archive: Any) -> Row:
    (decided,) = decide([paper(claim)], made_archive(*results, **archive))
    return decided.row


@pytest.mark.parametrize(
    ("claim", "result", "status"),
    [
        (CLAIM, made_result(0.5, low=0.4, high=0.6), "beaten"),
        (CLAIM, made_result(0.5, low=0.4, high=1.2), "reproduced"),
        (CLAIM, made_result(0.5, low=None, high=None), "open"),  # one number, without an interval
        (CLAIM, made_result(1.0), "reproduced"),
        (CLAIM, made_result(2.0, low=1.5, high=2.5), "contradicted"),
        (CLAIM, made_result(2.0, low=None, high=None), "open"),
        (CLAIM, made_result(2.0, label="another"), "not run"),
        (CLAIM, made_result(2.0, name="another"), "not run"),
        (CLAIM, made_result(None), "not run"),
        (CLAIM, made_result(1.0, refusal="no"), "not run"),
        (CLAIM, made_result(1.0, scale="small"), "smaller"),
        (CLAIM, made_result(2.0, low=1.05, high=3.0), "open"),
        (CLAIM, made_result(2.0, low=1.05, high=3.0, budget=Budget(epochs=(10, 100))), "smaller"),
        (CLAIM, made_result(0.5, budget=Budget(records=(10, 100))), "smaller"),
        (CLAIM, made_result(0.5, budget=Budget(epochs=(10, 100))), "smaller"),
        (CLAIM, made_result(0.5, low=0.4, high=0.6, budget=Budget(iterations=(10, 100))), "beaten"),
        (CLAIM, made_result(2.0, budget=Budget(iterations=(10, 100))), "smaller"),
        (CLAIM, made_result(2.0, low=1.5, high=2.5, budget=Budget(shadows=(58, 59))), "contradicted"),
        (replace(CLAIM, differs="on digits"), made_result(0.5), "smaller"),
        (replace(CLAIM, assumes="in metres"), made_result(0.5), "reproduced"),  # not beaten
        (replace(CLAIM, assumes="in metres"), made_result(2.0), "open"),  # not contradicted
        (
            replace(CLAIM, unaffected_by=("records",)),
            made_result(2.0, low=1.5, high=2.5, budget=Budget(records=(1, 9))),
            "contradicted",
        ),
        (replace(CLAIM, criterion=FAILS), made_result(0.5), "reproduced"),
        (replace(CLAIM, criterion=FAILS), made_result(0.5, budget=Budget(iterations=(10, 100))), "smaller"),
        (replace(CLAIM, criterion=None), made_result(0.5), "not run"),
    ],
)
def test_statuses(claim: PaperClaim, result: Result, status: str) -> None:
    assert row(claim, result).status == status


def test_a_row_says_what_was_measured() -> None:
    assert row(CLAIM, made_result(1.05, low=0.9, high=1.2, chance=4.0, budget=Budget(iterations=(5, 50)))) == Row(
        paper="made2020",
        where="table 1",
        claim="The error is one.",
        printed=1.0,
        tolerance=0.1,
        ours=1.05,
        low=0.9,
        high=1.2,
        chance=4.0,
        seeds=(3,),
        budget={"iterations": 0.1},
        status="reproduced",
        recipe="made2020.table",
        minutes=1.0,
    )


def test_what_nothing_measures_shows_what_is_known() -> None:
    claim = PaperClaim(where="figure 1", text="It is six.", recipe="made2020.table", printed=6.0, minutes=7.0)
    found = row(claim)
    assert (found.printed, found.ours, found.seeds, found.status, found.minutes) == (6.0, None, (), "not run", 7.0)
    assert found.recipe == "made2020.table"


def test_seeds_are_pooled_with_an_interval_over_them() -> None:
    values = {1: 0.8, 2: 1.0, 5: 1.3}
    found = row(
        CLAIM, *(made_result(value, seed=seed, low=value - 0.01, high=value + 0.01) for seed, value in values.items())
    )
    each = np.array([*values.values()])
    low, high = t.interval(0.95, 2, loc=each.mean(), scale=each.std(ddof=1) / np.sqrt(3))
    assert (found.ours, found.low, found.high) == pytest.approx((each.mean(), low, high), rel=1e-5)
    assert found.seeds == (1, 2, 5)


def test_seeds_that_agree_are_no_surer_than_their_own_intervals() -> None:
    """No images were found at either seed: the mean has the interval of one seed, narrower by the root of two."""
    both = row(CLAIM, *(made_result(0.0, low=0.0, high=0.2, seed=seed) for seed in (1, 2)))
    assert (both.low, both.high) == (0.0, pytest.approx(0.2 / 2**0.5, rel=1e-5))
    apart = row(CLAIM, made_result(0.9, low=0.1, high=0.95, seed=1), made_result(0.92, low=0.2, high=0.96, seed=2))
    assert apart.low == pytest.approx(0.91 - np.sqrt((0.8**2 + 0.72**2) / 2 / 2), rel=1e-5)
    assert apart.high == pytest.approx(0.91 + t.ppf(0.975, 1) * 0.01, rel=1e-5)
    exact = row(CLAIM, *(made_result(0.5, low=None, high=None, seed=seed) for seed in (1, 2)))
    assert (exact.ours, exact.low, exact.high, exact.status) == (0.5, None, None, "open")


def test_what_was_assumed_stands_beside_the_claim() -> None:
    claim = replace(CLAIM, differs="on digits", assumes="in metres")
    text = "The error is one. Here: on digits. Left open, and read as: in metres."
    assert row(claim, made_result(1.0)).claim == text


def test_results_of_full_scale_stand_before_smaller_ones_and_a_seed_counts_once() -> None:
    found = row(CLAIM, made_result(9.0, scale="small", seed=1), made_result(1.0), made_result(7.0))
    assert (found.ours, found.seeds, found.status) == (1.0, (3,), "reproduced")


def test_victims_are_repetitions() -> None:
    both = Quantity(recipe="made2020.table", experiments=("one", "two"), name="error")
    found = row(
        replace(CLAIM, criterion=replace(NUMBER, quantity=both)), made_result(0.9), made_result(1.1, label="two")
    )
    assert (found.ours, found.seeds, found.minutes) == (pytest.approx(1.0), (3,), 2.0)
    one = row(replace(CLAIM, criterion=replace(NUMBER, quantity=both), minutes=0.0), made_result(0.9))
    assert (one.ours, one.minutes) == (0.9, 1.0)
    assert (found.budget, one.budget) == ({}, {"victims": 0.5})
    assert (found.status, one.status) == ("reproduced", "smaller")


def test_a_comparison_needs_both_sides() -> None:
    claim = replace(CLAIM, criterion=Exceeds(larger=(quantity("one"),), smaller=(quantity("two"),)))
    assert row(claim, made_result(2.0)).status == "not run"
    ours = made_result(2.0, low=1.8, high=2.2)
    less, more = (made_result(value, low=value - 0.1, high=value + 0.1, label="two") for value in (1.0, 3.0))
    assert row(claim, ours, less).status == "reproduced"
    assert row(claim, ours, more).status == "contradicted"
    assert (
        row(claim, ours, made_result(1.0, label="two", low=None, high=None)).status == "open"
    )  # one number, without an interval


def test_what_is_compared_is_of_the_same_seeds() -> None:
    claim = replace(CLAIM, criterion=Exceeds(larger=(quantity("one"),), smaller=(quantity("two"),)))
    ours = [made_result(4.0, seed=1), made_result(100.0, seed=2), made_result(2.0, label="two", seed=1)]
    found = row(claim, *ours)
    assert (found.ours, found.seeds) == (2.0, (1,))
    apart = row(claim, made_result(4.0, seed=1), made_result(2.0, label="two", seed=5))
    assert (apart.ours, apart.seeds) == (2.0, (1, 5))


def test_a_result_without_a_budget_has_its_recipes() -> None:
    recipes = {"made2020.table": made_recipe("one", budget=Budget(records=(1, 10)))}
    found = row(CLAIM, made_result(1.0), recipes=recipes)
    assert (found.budget, found.status) == ({"records": 0.1}, "smaller")
    stated = row(CLAIM, made_result(1.0, budget=Budget(records=(10, 10))), recipes=recipes)
    assert (stated.budget, stated.status) == ({}, "reproduced")


def test_an_archive_is_read_from_a_folder(tmp_path: Any) -> None:
    with refused("missing-file", "--results"):
        read_archive(tmp_path, {})
    (tmp_path / "made2020").mkdir()
    (tmp_path / "made2020" / "table.json").write_text(dump_results([made_result(1.0)]), encoding="utf-8")
    assert read_archive(tmp_path, {}).files == {"made2020/table": (made_result(1.0),)}
    (tmp_path / "made2020" / "table.json").write_bytes(b"\xff")
    with refused("damaged-file"):
        read_archive(tmp_path, {})
