"""Results are read strictly, and their JSON schema follows from the dataclasses."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from refusals import refused
from tiny_experiments import tiny_experiment, tiny_measurement

from remanence.experiments import Claim, Completed, Point, run_experiment
from remanence.experiments.results import SCHEMA, Result, dump_results, parse_results, schema
from remanence.experiments.summary import result_of
from remanence.metrics import MSE

DOCS = Path(__file__).parents[2] / "docs"
INTERVAL = {"value": 0.1, "low": 0.05, "high": 0.2}
LIMIT = dict.fromkeys(("mu", "epsilon", "delta", "threshold", "prior", "bound"), 0.5)


def as_json(completed: Completed) -> dict[str, Any]:
    result = result_of(completed, recipe="tiny", scale="smoke", seed=0, command="remanence run tiny")
    (value,) = json.loads(dump_results([result]))
    return value


@pytest.fixture(scope="module")
def attack() -> dict[str, Any]:
    claims = (Claim.mean(MSE, printed=0.01, where="table 1"),)
    value = as_json(run_experiment(tiny_experiment(claims=claims, point=Point(axis="epsilon", value=1.0))))
    value["attack"]["limit"] = LIMIT | {"metric": "mse", "success": INTERVAL}
    value["attack"]["scores"]["labels"] = {"accuracy": INTERVAL, "chance": 0.1}
    assert value["claims"]
    assert value["caveats"]
    return value


@pytest.fixture(scope="module")
def measurement() -> dict[str, Any]:
    return as_json(run_experiment(tiny_measurement()))


@pytest.fixture(scope="module")
def refusal() -> dict[str, Any]:
    why, cpu = "the victim did not fit", torch.device("cpu")
    return as_json(Completed(experiment=tiny_experiment(), refusal=why, seconds=1.0, device=cpu))


def changed(value: dict[str, Any], path: str, new: Any) -> dict[str, Any]:
    """With the field at `path` set to `new`, or taken out where that is `...`."""
    value = deepcopy(value)
    *outer, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    inside: Any = value
    for part in outer:
        inside = inside[part]
    if new is ...:
        del inside[last]
    else:
        inside[last] = new
    return value


def parsed(*values: Any) -> list[Result]:
    return parse_results(json.dumps(values), where="some/results.json")


def test_results_of_all_kinds_are_read_as_written(
    attack: dict[str, Any], measurement: dict[str, Any], refusal: dict[str, Any]
) -> None:
    values = [attack, measurement, refusal]
    results = parsed(*values)
    assert [result.kind for result in results] == ["attack", "measurement", "refused"]
    assert json.loads(dump_results(results)) == values
    jsonschema.validate(values, schema())


def test_the_committed_schema_is_current() -> None:
    """`remanence schema > docs/results.schema.json` writes it."""
    committed = json.loads((DOCS / "results.schema.json").read_text(encoding="utf-8"))
    assert committed == schema()
    jsonschema.Draft202012Validator.check_schema(committed)


def test_every_field_is_documented() -> None:
    text = (DOCS / "results-format.md").read_text(encoding="utf-8")
    names = {name for each in schema()["$defs"].values() for name in each["properties"]}
    assert {name for name in names if f"`{name}`" not in text} == set()
    assert f"schema {SCHEMA}" in text


PATHS = [
    "seed",
    "hardware.torch",
    "attack.release.withholds",
    "attack.scores.primary",
    "attack.scores.metrics.mse.higher_is_better",
    "attack.scores.found.fraction.low",
    "attack.scores.test.p",
    "attack.scores.test.untested",
    "attack.scores.test.subjects",
    "attack.scores.identification.top1.low",
    "attack.scores.closer.chance",
    "attack.scores.roc.tpr_at_01_percent",
    "attack.scores.histogram.held_out",
    "attack.nulls.noise.metrics.mse.at_1_percent",
    "attack.limit.success",
    "claims.0.printed",
    "caveats.0.text",
    "point.axis",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("new", [..., [None]], ids=["missing", "wrong"])
def test_what_is_wrong_is_named(attack: dict[str, Any], path: str, new: Any) -> None:
    wrong = changed(attack, path, new)
    with refused("damaged-file") as caught:
        parsed(attack, wrong)
    shown = re.sub(r"\.(\d+)", r"[\1]", path)
    assert (caught.value.argument or "").startswith(shown)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([wrong], schema())


@pytest.mark.parametrize("path", ["extra", "attack.scores.extra", "claims.0.extra", "attack.nulls.extra"])
def test_an_unknown_field_is_refused(attack: dict[str, Any], path: str) -> None:
    with refused("damaged-file", re.sub(r"\.(\d+)", r"[\1]", path)):
        parsed(changed(attack, path, 1))


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("seed", True),  # a bool is an int to Python, not to a reader of the file
        ("seed", 1.0),
        ("schema", SCHEMA - 1),
        ("schema", None),
        ("attack.scores.found.count", "3"),
        ("attack.scores.found.fraction.value", None),
        ("attack.scores.fpr", 0.01),  # of schema 3
        ("attack.scores.test.p", None),
        ("attack.scores.test.by", {"ssim": 1.5}),
        ("attack.scores.test.untested", ["3"]),
        ("attack.scores.roc.tpr_at_1_percent", 0.5),  # without its interval
        ("attack.scores.roc.fpr", [0.5, "x"]),
        ("attack.scores.roc.fpr", [0.5]),
        ("attack.scores.histogram.records", [1, 2]),
        ("attack.scores.primary", "ssim"),  # not among its metrics
        ("attack.nulls.held_out.metrics", {}),
        ("attack.release.shows", {"model": 3}),
        ("claims.0.holds", "yes"),
        ("attack", 3),
    ],
)
def test_values_that_a_page_could_not_show_are_refused(attack: dict[str, Any], path: str, new: Any) -> None:
    with refused("damaged-file"):
        parsed(changed(attack, path, new))


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("figures.0.kind", "pie"),
        ("figures.0.series.0.role", "theirs"),
        ("figures.0.series.0.x", [1]),
        ("figures.0.series.0.low", [1, 2]),
        ("figures.0.series.0.x", ["a", "b"]),
        ("figures.0.series.0.x", [1, "b"]),
        ("figures.0.series.0.y", [1, "b"]),
        ("figures.0.log_x", 1),
        ("measures.0.value", "much"),
    ],
)
def test_figures_that_could_not_be_rendered_are_refused(measurement: dict[str, Any], path: str, new: Any) -> None:
    with refused("damaged-file"):
        parsed(changed(measurement, path, new))
    bars = changed(changed(measurement, "figures.0.kind", "bars"), "figures.0.series.0.x", ["a", "b"])
    assert parsed(bars)[0].figures[0].series[0].x == ("a", "b")


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("commit", None),
        ("seconds", 3),
        ("attack.scores.metrics.mse.mean", None),
        ("attack.scores.test", None),
        ("attack.scores.test.untested", [3, 7]),
        ("attack.scores.test.by", {"ssim": 2}),
        ("attack.scores.test.subjects", 5),
        ("attack.scores.identification", None),
        ("attack.scores.identification.chance_top1", None),
        ("attack.scores.closer", None),
        ("attack.scores.closer.chance", None),
        ("attack.scores.roc.tpr_at_1_percent", None),
        ("attack.limit", None),
        ("claims.0.holds", True),
        ("claims", []),
        ("point", None),
        ("point.value", "ReLU"),
    ],
)
def test_values_that_may_be_are_read(attack: dict[str, Any], path: str, new: Any) -> None:
    value = changed(attack, path, new)
    assert json.loads(dump_results(parsed(value))) == [value]


@pytest.mark.parametrize("text", ["", "{", "[1,]", "nonsense", "[NaN]", "[1e999]", "[" * 100_000, "{}", "3", "[3]"])
def test_what_holds_no_results_is_refused(text: str) -> None:
    with refused("damaged-file"):
        parse_results(text, where="some/results.json")
