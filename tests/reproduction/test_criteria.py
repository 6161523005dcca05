"""What measured numbers say about a claim."""

from dataclasses import replace

import pytest
from made_archive import quantity
from refusals import refused
from scipy.stats import ttest_rel

from remanence.experiments import Claim
from remanence.reproduction import (
    AboveChance,
    Criterion,
    Estimate,
    Exceeds,
    Increasing,
    LowerBound,
    Printed,
    UpperBound,
    Verdict,
)

A, B, C = quantity("a"), quantity("b"), quantity("c")
PAIR = Exceeds(larger=(A,), smaller=(B,))
BEYOND = replace(PAIR, beyond_chance=True)


def at(value: float, low: float | None = None, high: float | None = None, chance: float | None = None) -> Estimate:
    return Estimate(value=value, low=low, high=high, chance=chance)


def near(value: float) -> Estimate:
    return at(value, value - 0.1, value + 0.1)


def printed(number: float, *, up: bool | None) -> Printed:
    return Printed(quantity=A, claim=Claim(quantity="error", higher_is_better=up, printed=number, where="here"))


@pytest.mark.parametrize(
    ("criterion", "found", "verdict"),
    [
        (printed(1.0, up=False), [at(0.89, 0.8, 0.98)], "beaten"),
        (printed(1.0, up=False), [at(0.89, 0.7, 1.02)], "met"),  # its interval includes print
        (printed(1.0, up=False), [at(0.5)], "open"),  # one number, without an interval
        (printed(1.0, up=False), [near(0.92)], "met"),
        (printed(1.0, up=False), [near(1.09)], "met"),
        (printed(1.0, up=False), [at(1.2)], "open"),  # one number, without an interval
        (printed(1.0, up=False), [at(1.2, 1.15, 1.3)], "missed"),
        (printed(1.0, up=False), [at(1.2, 1.05, 1.4)], "open"),
        (printed(1.0, up=True), [at(1.2, 1.1, 1.3)], "beaten"),
        (printed(1.0, up=True), [at(1.2, 0.9, 1.5)], "met"),
        (printed(1.0, up=True), [at(0.8, 0.7, 0.85)], "missed"),
        (printed(1.0, up=None), [at(0.95)], "open"),
        (printed(1.0, up=None), [near(0.95)], "met"),
        (printed(1.0, up=None), [at(0.5)], "open"),
        (printed(1.0, up=None), [at(0.5, 0.4, 0.6)], "missed"),
        (printed(1.0, up=None), [at(1.2, 0.5, 1.9)], "open"),  # print lies inside of its interval
        (LowerBound(quantities=(A, B), bound=0.9), [near(0.95), near(0.91)], "met"),
        (LowerBound(quantities=(A, B), bound=0.9), [near(0.95), at(0.91)], "open"),
        (LowerBound(quantities=(A, B), bound=1.0, exact=True), [at(19.0), at(1.0)], "met"),
        (LowerBound(quantities=(A, B), bound=1.0, exact=True), [at(19.0), at(0.0)], "missed"),
        (LowerBound(quantities=(A, B), bound=0.9), [near(0.95), at(0.8, 0.7, 0.92)], "open"),
        (LowerBound(quantities=(A,), bound=0.9), [at(0.895)], "open"),
        (LowerBound(quantities=(A, B), bound=0.9), [near(0.95), at(0.8, 0.7, 0.85)], "missed"),
        (UpperBound(quantities=(A,), bound=0.1), [at(0.0)], "open"),
        (UpperBound(quantities=(A,), bound=0.1), [at(0.0, 0.0, 0.2)], "met"),
        (UpperBound(quantities=(A,), bound=1.0, exact=True), [at(1.0)], "met"),
        (UpperBound(quantities=(A,), bound=1.0, exact=True), [at(2.0)], "missed"),
        (UpperBound(quantities=(A,), bound=0.1), [at(0.2, 0.15, 0.3)], "missed"),
        (UpperBound(quantities=(A,), bound=0.1), [at(0.2, 0.05, 0.3)], "open"),
        (UpperBound(quantities=(A,), bound=0.0), [at(-0.1, -0.3, 0.1)], "met"),
        (UpperBound(quantities=(A,), bound=0.0, surely=True), [at(-0.1, -0.3, 0.1)], "open"),
        (UpperBound(quantities=(A,), bound=0.0, surely=True), [at(-0.2, -0.3, -0.1)], "met"),
        (UpperBound(quantities=(A,), bound=0.0, surely=True), [at(0.2, 0.1, 0.3)], "missed"),
        (UpperBound(quantities=(A,), bound=0.0, surely=True), [at(-0.1)], "open"),
        (AboveChance(quantity=A), [at(0.3, 0.2, 0.4, chance=0.1)], "met"),
        (AboveChance(quantity=A), [at(0.3, 0.05, 0.4, chance=0.1)], "open"),
        (AboveChance(quantity=A), [at(0.05, 0.0, 0.08, chance=0.1)], "missed"),
        (AboveChance(quantity=A), [at(0.3, chance=0.1)], "open"),
        (AboveChance(quantity=A), [at(0.05, chance=0.1)], "open"),
        (PAIR, [near(2.0), near(1.0)], "met"),
        (PAIR, [near(1.0), near(2.0)], "missed"),
        (PAIR, [at(1.0, 0.5, 2.1), at(2.0, 1.5, 2.5)], "open"),
        (PAIR, [at(2.0, 1.0, 3.0), at(1.5, 1.0, 2.0)], "open"),  # larger, by no more than chance
        (PAIR, [at(2.0, 1.0, 3.0), at(0.9, 0.8, 1.0)], "met"),  # difference 1.1, interval from 1.1 - hypot(1, 0.1)
        (PAIR, [at(2.0, 1.0, 3.0), at(1.1, 1.0, 1.2)], "open"),
        (PAIR, [at(0.0, 0.0, 0.0), at(0.0, 0.0, 0.0)], "open"),  # nothing was found in either
        (Exceeds(larger=(A,), smaller=(B,), factor=3.0), [near(2.0), near(1.0)], "missed"),
        (Exceeds(larger=(A,), smaller=(B, C)), [near(2.0), near(1.0), near(3.0)], "missed"),
        (BEYOND, [at(2.0, 1.9, 2.1, chance=1.0), near(1.0)], "met"),
        (BEYOND, [at(2.0, 1.9, 2.1, chance=2.0), near(1.0)], "open"),  # of what is at chance
        (BEYOND, [at(0.5, 0.4, 0.6, chance=1.0), near(1.0)], "open"),
        (Increasing(quantities=(A, B, C)), [near(1.0), near(2.0), near(3.0)], "met"),
        (Increasing(quantities=(A, B, C)), [near(1.0), near(3.0), near(2.0)], "missed"),
        (PAIR, [at(23.0), at(15.0)], "open"),  # counts of one victim each
        (PAIR, [at(23.0), near(15.0)], "open"),
    ],
)
def test_verdicts(criterion: Criterion, found: list[Estimate], verdict: Verdict) -> None:
    assert criterion.verdict(found) == verdict


def test_what_shares_its_seeds_is_compared_seed_by_seed() -> None:
    """Seeds differ by more than what is compared, as networks of different initial weights do."""
    larger, smaller = [1.2, 3.1, 5.15], [1.0, 2.9, 5.0]
    alike, same = (by_seed(values) for values in (larger, smaller))
    reference = ttest_rel(larger, smaller).confidence_interval(0.95)
    assert reference.low > 0
    assert PAIR.verdict([alike, same]) == "met"
    assert PAIR.verdict([same, alike]) == "missed"
    other = replace(same, by_seed={seed + 1: value for seed, value in same.by_seed.items()})
    assert PAIR.verdict([alike, other]) == "open"
    twice = Exceeds(larger=(A,), smaller=(B,), factor=1.1)
    assert ttest_rel(larger, [1.1 * value for value in smaller]).confidence_interval(0.95).low < 0
    assert twice.verdict([alike, same]) == "open"


def by_seed(values: list[float]) -> Estimate:
    return replace(Estimate.mean([at(value) for value in values]), by_seed=dict(enumerate(values)))


def test_equal_differences_are_no_surer_than_what_is_compared() -> None:
    larger, smaller = ([at(value, 0.0, 9.0) for value in values] for values in ([2.0, 3.0], [1.0, 2.0]))
    pooled = [
        replace(Estimate.mean(each), by_seed={seed: one.value for seed, one in enumerate(each)})
        for each in (larger, smaller)
    ]
    assert PAIR.verdict(pooled) == "open"


def test_the_number_in_the_table_is_the_one_that_decides() -> None:
    assert Exceeds(larger=(A,), smaller=(B, C)).ours([at(6.0), at(1.0), at(3.0)]) == at(2.0, chance=1.0)
    assert Increasing(quantities=(A, B, C)).ours([at(1.0), at(3.0), at(6.0)]) == at(2.0, chance=1.0)
    assert LowerBound(quantities=(A, B), bound=0.5).ours([at(0.9), at(0.6)]) == at(0.6)
    assert UpperBound(quantities=(A, B), bound=0.5).ours([at(0.1), at(0.2)]) == at(0.2)
    assert PAIR.ours([at(1.0), at(0.0)]) == at(1.0)  # no ratio to zero


def test_a_printed_number_is_needed() -> None:
    with refused("empty", "claim"):
        Printed(quantity=A, claim=Claim(quantity="error", higher_is_better=True, target=1.0, where="ours"))


def test_a_tolerance_can_be_another() -> None:
    wide = printed(10.0, up=True).within(0.5)
    assert (printed(10.0, up=True).verdict([near(6.0)]), wide.verdict([near(6.0)])) == ("missed", "met")
