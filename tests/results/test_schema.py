"""The check of a record: it passes what docs/results-format.md describes and names what is wrong with the rest."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_experiments import tiny_experiment, tiny_measurement

from remanence.errors import BadInput
from remanence.experiments import Completed, Point, run_experiment
from remanence.experiments.results import SCHEMA, Record, parse_records, record
from remanence.metrics import MSE

DOCS = (Path(__file__).parents[2] / "docs" / "results-format.md").read_text(encoding="utf-8")


LIMIT = {
    **dict.fromkeys(("mu", "epsilon", "delta", "threshold", "prior", "bound"), 0.5),
    "metric": "mse",
    "success": {"value": 0.1, "low": 0.05, "high": 0.2},
}
ATTACK = {"release", "attack", "matching", "scores", "nulls", "limit", "point"}
STUDY = {"about", "verdict", "measures", "figures"}
REFUSED = {"refusal"}
COMMON = Record.__annotations__.keys() - ATTACK - STUDY - REFUSED


def plain(value: Any) -> dict[str, Any]:
    return json.loads(json.dumps(value))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    from remanence.experiments import Claim

    claims = (Claim.mean(MSE, printed=0.01, where="table 1"),)
    result = run_experiment(tiny_experiment(claims=claims, point=Point(axis="epsilon", value=1.0)))
    made = record(result, recipe="tiny", scale="smoke", seed=0, command="remanence run tiny")
    assert made["claims"]
    assert made["caveats"]
    labels = {"share": 0.5, "low": 0.4, "high": 0.6, "chance": 0.1}
    return plain({**made, "limit": LIMIT, "scores": made["scores"] | {"labels": labels}})


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return plain(
        record(run_experiment(tiny_measurement()), recipe="tiny", scale="smoke", seed=0, command="remanence run tiny")
    )


@pytest.fixture(scope="module")
def refused() -> dict[str, Any]:
    why, cpu = "the victim did not fit", torch.device("cpu")
    result = Completed(experiment=tiny_experiment(), refusal=why, seconds=1.0, device=cpu)
    return plain(record(result, recipe="tiny", scale="smoke", seed=0, command="remanence audit"))


def parsed(*records: Any) -> list[Record]:
    return parse_records(json.dumps(list(records)), where="some/results.json")


def changed(good: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of a record with one of its values replaced; `path` is like `scores.found.low` or `claims.0.where`."""
    copy = deepcopy(good)
    *parents, last = path.split(".") if "0.1" not in path else ["scores", "roc", "tpr_at_0.1_percent"]
    inside: Any = copy
    for parent in parents:
        inside = inside[int(parent) if isinstance(inside, list) else parent]
    if value is ...:
        del inside[last]
    else:
        inside[last] = value
    return copy


def test_a_record_that_was_written_is_read(
    good: dict[str, Any], study: dict[str, Any], refused: dict[str, Any]
) -> None:
    assert parsed(good, study, refused, good) == [good, study, refused, good]
    assert parsed() == []


def test_the_fields_are_those_of_the_documentation(
    good: dict[str, Any], study: dict[str, Any], refused: dict[str, Any]
) -> None:
    table = re.findall(r"^\| (`.+?) \|", DOCS, flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(table))) == Record.__annotations__.keys()
    assert good.keys() == COMMON | ATTACK
    assert study.keys() == COMMON | STUDY
    assert refused.keys() == COMMON | REFUSED
    assert f"schema {SCHEMA}" in DOCS


def named(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        for inside in value.values():
            yield from named(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from named(inside)


def test_every_name_inside_a_record_is_documented(good: dict[str, Any], study: dict[str, Any]) -> None:
    free = {*good["scores"]["metrics"], *good["release"]["shows"]}  # names of metrics, and of what a release shows
    assert {name for name in named([good, study]) if f"`{name}`" not in DOCS} <= free


@pytest.mark.parametrize("name", sorted(Record.__annotations__.keys() - {"verdict"}))
def test_a_missing_field_is_named(
    good: dict[str, Any], study: dict[str, Any], refused: dict[str, Any], name: str
) -> None:
    one = next(each for each in (good, study, refused) if name in each)
    with pytest.raises(BadInput, match=rf"record 1 of `some/results.json` .*`?{name}"):
        parsed(one, changed(one, name, ...))


@pytest.mark.parametrize("name", sorted(Record.__annotations__))
def test_a_field_of_the_wrong_type_is_named(
    good: dict[str, Any], study: dict[str, Any], refused: dict[str, Any], name: str
) -> None:
    one = next(each for each in (good, study, refused) if name in each)
    wrong = [1, 2] if not isinstance(one[name], list) else "text"
    with pytest.raises(BadInput, match=rf"record 0 of `some/results.json` .*`?{name}"):
        parsed(changed(one, name, wrong))


def test_records_from_before_there_were_verdicts_are_read(good: dict[str, Any], study: dict[str, Any]) -> None:
    before, told = changed(study, "verdict", ...), changed(study, "verdict", "Nothing.")
    assert parsed(before, told) == [before, told]
    with pytest.raises(BadInput, match="has the unknown field `verdict`"):
        parsed(changed(good, "verdict", None))


@pytest.mark.parametrize("kind", ["other", "page", None, ["attack"], 1])
def test_another_kind_is_refused(good: dict[str, Any], kind: Any) -> None:
    with pytest.raises(BadInput, match="for `kind`, expected attack or study or refused: make the run again"):
        parsed(changed(good, "kind", kind))


def test_a_record_has_the_fields_of_its_kind(good: dict[str, Any], study: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"`(about|attack)`"):
        parsed(changed(good, "kind", "study"))
    with pytest.raises(BadInput, match="has the unknown field `scores`"):
        parsed(changed(study, "scores", good["scores"]))


BAD_FIGURES = [
    ("figures.0.kind", "pie", "an unknown kind of figure `pie`"),
    ("figures.0.series.0.role", "theirs", "an unknown role of a series `theirs`"),
    ("figures.0.series.0.x", [1], "lists do not fit together"),
    ("figures.0.series.0.low", [1, 2], "lists do not fit together"),
    ("figures.0.series.0.x", ["a", "b"], "texts for `x`"),
    ("figures.0.series.0.x", [1, "b"], "texts for `x`"),
    ("figures.0.series.0.y", [1, "b"], r"has text for `figures\[0\].series\[0\].y\[1\]`"),
    ("figures.0.log_x", 1, r"for `figures\[0\].log_x`, expected true/false"),
    ("measures.0.value", "much", r"for `measures\[0\].value`, expected number or null"),
]


@pytest.mark.parametrize(("path", "value", "message"), BAD_FIGURES)
def test_a_study_that_could_not_be_drawn_is_refused(study: dict[str, Any], path: str, value: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parsed(changed(study, path, value))


def test_bars_may_stand_over_texts(study: dict[str, Any]) -> None:
    bars = changed(changed(study, "figures.0.kind", "bars"), "figures.0.series.0.x", ["a", "b"])
    assert parsed(bars) == [bars]


@pytest.mark.parametrize("number", [0, 1, 3, "2", None, 2.5])
def test_another_schema_is_refused(good: dict[str, Any], number: Any) -> None:
    with pytest.raises(BadInput, match=rf"has schema {number!r}, this version reads {SCHEMA}: make the run again"):
        parsed(changed(good, "schema", number))


@pytest.mark.parametrize("path", ["extra", "scores.extra", "scores.found.extra", "claims.0.extra", "caveats.0.extra"])
def test_an_unknown_field_is_named(good: dict[str, Any], path: str) -> None:
    shown = re.escape(path.replace(".0.", "[0]."))
    with pytest.raises(BadInput, match=f"record 0 of .* has the unknown field `{shown}`"):
        parsed(changed(good, path, 1))


INSIDE = [
    "hardware.torch",
    "release.kind",
    "release.withholds",
    "scores.primary",
    "scores.metrics.mse.higher_is_better",
    "scores.found.low",
    "scores.roc.tpr_at_0.1_percent",
    "scores.histogram.held_out",
    "nulls.noise",
    "nulls.noise.count",
    "nulls.noise.metrics.mse.at_1_percent",
    "claims.0.printed",
    "caveats.0.text",
    "limit.bound",
    "limit.success.low",
    "point.axis",
    "scores.closer.share",
    "scores.labels.chance",
]


@pytest.mark.parametrize("path", INSIDE)
@pytest.mark.parametrize("value", [..., [None]], ids=["missing", "wrong"])
def test_what_is_wrong_inside_is_named(good: dict[str, Any], path: str, value: Any) -> None:
    shown = re.escape(path.replace(".0.", "[0]."))
    how = "lacks" if value is ... else "has .* for"
    with pytest.raises(BadInput, match=f"record 0 of `some/results.json` {how} `{shown}"):
        parsed(changed(good, path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", True),  # a bool is an int to Python, not to a reader of the file
        ("seed", 1.0),
        ("scores.found.count", "3"),
        ("scores.found.share", None),
        ("scores.roc.fpr", [0.5, "x"]),
        ("scores.histogram.records", [1, 2.5]),
        ("claims.0.holds", "yes"),
        ("release.shows", {"model": 3}),
        ("scores.primary", "ssim"),  # not among the metrics of this cell
    ],
)
def test_values_that_a_page_could_not_show_are_refused(good: dict[str, Any], path: str, value: Any) -> None:
    with pytest.raises(BadInput, match=re.escape(f"`{path.replace('.0.', '[0].')}")):
        parsed(changed(good, path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("commit", None),
        ("seconds", 3),
        ("scores.metrics.mse.mean", None),
        ("scores.roc.tpr_at_0.1_percent", None),
        ("claims.0.holds", True),
        ("claims", []),
        ("claims.0.printed", None),
        ("limit", None),
        ("limit.epsilon", None),
        ("point", None),
        ("point.value", "ReLU"),
        ("scores.closer", None),
        ("scores.labels", None),
    ],
)
def test_values_that_may_be_are_read(good: dict[str, Any], path: str, value: Any) -> None:
    record = changed(good, path, value)
    assert parsed(record) == [record]


@pytest.mark.parametrize("text", ["", "{", "[1,]", "nonsense", "[NaN]", "[Infinity]", "[" * 100_000])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"`some/results.json` is not JSON \(.*\): make the run again"):
        parse_records(text, where="some/results.json")


@pytest.mark.parametrize(("text", "got"), [("{}", "an object"), ("3", "integer"), ("null", "null"), ('"x"', "text")])
def test_what_is_not_a_list_is_refused(text: str, got: str) -> None:
    with pytest.raises(BadInput, match=f"`f.json` must hold a list of records, got {got}"):
        parse_records(text, where="f.json")


def test_a_record_that_is_no_object_is_refused(good: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"record 1 of .* must be an object, got integer"):
        parsed(good, 3)
