"""The planner fits the runs into minutes that decide most; runs write results one by one, and go on after a cut."""

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from made_archive import HARDWARE, made_archive, made_recipe, made_result, paper, quantity
from tiny_experiments import tiny_measurement

from remanence.experiments import Budget, Recipe
from remanence.experiments.results import dump_results, parse_results
from remanence.reproduction import (
    PaperClaim,
    Plan,
    Quantity,
    UpperBound,
    Work,
    decide,
    plan_runs,
    read_archive,
    run_plan,
    total_minutes,
)
from remanence.reproduction.plan import write_result


def claim(recipe: str, label: str = "one", *, name: str = "error", **changes: Any) -> PaperClaim:
    criterion = UpperBound(quantities=(quantity(label, recipe=recipe, name=name),), bound=1.0)
    return PaperClaim(**({"where": "here", "text": "It is small.", "criterion": criterion} | changes))


def planned(*claims: PaperClaim, results: Any = (), recipes: dict[str, Recipe] | None = None, **options: Any) -> Plan:
    known = {f"made2020.{name}": made_recipe("one", "two") for name in "abc"} | (recipes or {})
    archive = made_archive(*results, recipes=known)
    return plan_runs(decide([paper(*claims)], archive), archive, **({"minutes": inf, "seed": 3} | options))


def names(works: tuple[Work, ...]) -> list[str]:
    return [work.recipe for work in works]


def test_what_decides_most_in_each_minute_comes_first() -> None:
    claims = [claim("made2020.a", minutes=5), claim("made2020.b", minutes=30), claim("made2020.c", minutes=12)]
    everything = planned(*claims)
    assert names(everything.chosen) == ["made2020.a", "made2020.c", "made2020.b"]
    assert everything.minutes == 47
    some = planned(*claims, minutes=30)  # not the one run that would fill them
    assert (names(some.chosen), names(some.left)) == (["made2020.a", "made2020.c"], ["made2020.b"])
    assert planned(*claims, minutes=0).chosen == ()


def test_several_claims_and_heavy_ones_outweigh_a_short_run() -> None:
    short, long = claim("made2020.a", minutes=5), claim("made2020.b", minutes=8)
    assert names(planned(short, long, minutes=8).chosen) == ["made2020.a"]
    assert names(planned(short, long, replace(long, where="there"), minutes=8).chosen) == ["made2020.b"]
    assert names(planned(short, replace(long, weight=3.0), minutes=8).chosen) == ["made2020.b"]
    smaller = made_result(0.5, recipe="made2020.a", seed=1, scale="small")  # what was never run comes first
    assert names(planned(short, long, results=[smaller], minutes=8).chosen) == ["made2020.b"]


def test_claims_of_one_recipe_are_one_run_and_a_long_recipe_is_split() -> None:
    claims = claim("made2020.a", "two", minutes=5), claim("made2020.a", minutes=8, where="there")
    (work,) = planned(*claims).chosen
    whole = Work(recipe="made2020.a", experiments=("one", "two"), seed=3, minutes=13, decides=work.decides)
    assert work == whole
    assert set(work.decides) == {"made2020, here", "made2020, there"}
    some = planned(*claims, minutes=8)
    assert some.chosen == (replace(whole, experiments=("two",), minutes=5, decides=("made2020, here",)),)
    assert some.left == (replace(whole, experiments=("one",), minutes=8, decides=("made2020, there",)),)


def test_of_repetitions_the_first_decides_and_others_fill_the_minutes() -> None:
    victims = Quantity(recipe="made2020.a", experiments=("one", "two"), name="error")
    repeated = replace(claim("made2020.a", minutes=10), criterion=UpperBound(quantities=(victims,), bound=1.0))
    (work,) = planned(repeated, minutes=7).chosen
    assert (work.experiments, work.minutes) == (("one",), 5)
    (work,) = planned(repeated, minutes=10).chosen
    assert (work.experiments, work.decides) == (("one", "two"), ("made2020, here",))


def test_a_claim_that_takes_longer_than_a_sitting_is_begun() -> None:
    both = (quantity("one", recipe="made2020.a"), quantity("two", recipe="made2020.a"))
    long = replace(claim("made2020.a", minutes=40), criterion=UpperBound(quantities=both, bound=1.0))
    found = planned(long, minutes=30)
    assert [(work.experiments, work.minutes, work.decides) for work in found.chosen] == [(("one",), 20, ())]
    assert [work.experiments for work in found.left] == [("two",)]


def test_minutes_are_those_of_earlier_results() -> None:
    earlier = made_result(0.5, recipe="made2020.a", seconds=180.0, seed=1)
    waiting = claim("made2020.a", minutes=50)
    (work,) = planned(waiting, results=[earlier], statuses=["reproduced"]).chosen
    assert work.minutes == 3


@pytest.mark.parametrize(("estimate", "minutes"), [(4.0, 4.0), (0.0, 90.0)])
def test_minutes_of_a_cpu_count_where_there_is_no_estimate(estimate: float, minutes: float) -> None:
    on_cpu = replace(HARDWARE, device="x86_64 CPU")
    earlier = made_result(0.5, recipe="made2020.a", seconds=5400.0, seed=1, hardware=on_cpu)
    (work,) = planned(claim("made2020.a", minutes=estimate), results=[earlier], statuses=["reproduced"]).chosen
    assert work.minutes == minutes


def test_what_has_a_result_of_the_seed_is_not_run_again() -> None:
    done = made_result(0.5, recipe="made2020.a", scale="full")
    assert planned(claim("made2020.a"), results=[done], statuses=["reproduced"]).chosen == ()
    assert planned(claim("made2020.a"), results=[done], statuses=["reproduced"], seed=4).chosen
    assert planned(claim("made2020.a"), results=[done]).chosen == ()  # reproduced is no gap


def test_no_run_helps_what_is_not_measured_or_short_by_design() -> None:
    short = made_recipe("one", budget=Budget(epochs=(1, 100)))
    result = made_result(0.5, recipe="made2020.s", seed=1)
    small = made_result(0.5, recipe="made2020.a", seed=1, scale="small")
    unmeasured = PaperClaim(where="there", text="It is so.")
    found = planned(
        claim("made2020.s"),
        claim("made2020.a", minutes=1),
        unmeasured,
        results=[result, small],
        recipes={"made2020.s": short},
    )
    assert (names(found.chosen), found.unmeasured, found.short) == (["made2020.a"], 1, 1)


def test_another_seed_may_decide_what_is_open_but_for_what_a_reading_of_ours_misses() -> None:
    undecided = made_result(0.9, recipe="made2020.a", seed=1, low=None, high=None)
    missed = made_result(1.5, recipe="made2020.b", seed=1)
    both = [undecided, missed, replace(undecided, recipe="made2020.c")]
    read = {"assumes": "in metres", "minutes": 1}
    found = planned(
        claim("made2020.a", minutes=1), claim("made2020.b", **read), claim("made2020.c", **read), results=both
    )
    assert (names(found.chosen), found.short) == (["made2020.a", "made2020.c"], 1)


def test_one_run_of_everything_counts_each_experiment_once() -> None:
    one, two = claim("made2020.a", minutes=9), claim("made2020.a", "two", minutes=4)
    unmeasured = PaperClaim(where="there", text="It is so.", recipe="made2020.b", minutes=2.0)
    recorded = [made_result(0.5, recipe="made2020.a", seconds=60.0, seed=seed) for seed in (3, 4)]
    archive = made_archive(*recorded, recipes={"made2020.a": made_recipe("one", "two")})
    decided = decide([paper(one, one, two, unmeasured, unmeasured)], archive)
    assert total_minutes(decided, archive) == 1 + 4 + 2


@pytest.fixture
def recipes() -> dict[str, Recipe]:
    return {"made2020.a": lambda scale: [tiny_measurement("one"), tiny_measurement("two")]}


def run(chosen: Plan, recipes: dict[str, Recipe], folder: Path) -> Any:
    where = {"results": folder / "results", "runs": folder / "runs", "device": "cpu", "command": "made"}
    return run_plan(chosen, recipes, minutes=10.0, **where)


def test_a_run_that_was_cut_goes_on(tmp_path: Path, recipes: dict[str, Recipe]) -> None:
    results = tmp_path / "results"
    claims = [claim("made2020.a", label, name="mean grey", minutes=1) for label in ("one", "two")]
    empty = made_archive(recipes=recipes)
    first = plan_runs(decide([paper(*claims)], empty), empty, minutes=10, seed=3)
    making = run(first, recipes, tmp_path)
    assert next(making)[2].label == "one"
    making.close()  # cut
    archive = read_archive(results, recipes)
    decided = decide([paper(*claims)], archive)
    assert [each.row.status for each in decided] == ["reproduced", "not run"]
    second = plan_runs(decided, archive, minutes=10, seed=3)
    assert [work.experiments for work in second.chosen] == [("two",)]
    assert [result.label for _, _, result in run(second, recipes, tmp_path)] == ["two"]
    archive = read_archive(results, recipes)
    assert [each.row.status for each in decide([paper(*claims)], archive)] == ["reproduced", "reproduced"]
    assert {folder.name for folder in (tmp_path / "runs").iterdir()} == {"made2020.a-seed-3", "made2020.a-seed-3-2"}


def test_work_that_no_longer_fits_is_left(
    tmp_path: Path, recipes: dict[str, Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(recipe="made2020.a", experiments=("one",), seed=3, minutes=6.0, decides=("made2020, here",))
    late = iter([0.0, 1.0, 400.0])  # seconds: at the start, before the first, before the second
    monkeypatch.setattr("remanence.reproduction.plan.perf_counter", lambda: next(late))
    both = Plan(chosen=(work, replace(work, experiments=("two",), minutes=4.0)), left=(), unmeasured=0, short=0)
    assert [result.label for _, _, result in run(both, recipes, tmp_path)] == ["one", "two"]
    late = iter([0.0, 1.0, 430.0])
    assert [result.label for _, _, result in run(both, recipes, tmp_path)] == ["one"]


def test_results_of_other_seeds_stay(tmp_path: Path) -> None:
    first = write_result(tmp_path, made_result(1.0, seed=1))
    assert first == tmp_path / "made2020" / "table.json"
    assert write_result(tmp_path, made_result(2.0, seed=1, label="two")) == first
    assert write_result(tmp_path, made_result(3.0, seed=1)) == first
    other = write_result(tmp_path, made_result(4.0, seed=7))
    assert other == tmp_path / "made2020" / "table-seed-7.json"
    text = first.read_text(encoding="utf-8")
    assert text == dump_results([made_result(2.0, seed=1, label="two"), made_result(3.0, seed=1)])
    (kept,) = parse_results(other.read_text(encoding="utf-8"), where="other")
    assert kept.measures[0].value == 4.0
