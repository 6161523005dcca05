"""The check that something read is a list of records, field by field."""

import json
from collections.abc import Iterator
from math import isfinite
from types import NoneType
from typing import Any, Never, get_args

from remanence.errors import BadInput, unknown_name
from remanence.experiments.outcome import Kind, Role
from remanence.experiments.results.schema import SCHEMA, FigureRecord, Record


def parse_records(text: str, *, where: str) -> list[Record]:
    """The records in `text`, each checked against the schema."""
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"`{where}` is not JSON ({error}): make the run again") from None
    if not isinstance(found, list):
        raise BadInput(f"`{where}` must hold a list of records, got {_word(found)}: make the run again")
    for i, record in enumerate(found):
        _check_record(record, f"record {i} of `{where}`")
    return found


def _refuse(constant: str) -> Never:
    raise ValueError(f"{constant} is no number")


# A kind is words for a plain value, [kind] for a list, {name: kind} for an object of exactly these fields ("*": any),
# (kind,) for what may also be null.
_WORDS: dict[str, type] = {"text": str, "integer": int, "number": float, "true/false": bool, "null": NoneType}
_SHARE = {"share": "number", "low": "number", "high": "number"}
_METRIC = {
    **dict.fromkeys(("mean", "low", "high", "median", "p10", "p90", "good"), "number or null"),
    "higher_is_better": "true/false",
}
_NULL = {
    "meaning": "text",
    "count": "integer",
    "distinct": "integer",
    "metrics": {"*": {"mean": "number or null", "at_1_percent": "number or null"}},
}
_SCORES = {
    "records": "integer",
    "candidates": "integer",
    "unmatched": "integer",
    "primary": "text",
    "objective": "number or null",
    "metrics": {"*": _METRIC},
    "found": _SHARE | {"count": "integer", "fpr": "number"},
    "closer": (_SHARE | {"count": "integer"},),
    "labels": (_SHARE | {"chance": "number"},),
    "roc": {
        "fpr": ["number"],
        "tpr": ["number"],
        "tpr_at_1_percent": "number or null",
        "tpr_at_0.1_percent": "number or null",
    },
    "histogram": {"edges": ["number"], "records": ["integer"], "held_out": ["integer"], "unrelated": ["integer"]},
}
_LIMIT = {
    **dict.fromkeys(("mu", "epsilon", "delta"), "number or null"),
    **dict.fromkeys(("threshold", "prior", "bound"), "number"),
    "metric": "text",
    "success": {"value": "number", "low": "number", "high": "number"},
}
_CLAIM = {
    **dict.fromkeys(("printed", "target", "measured"), "number or null"),
    **dict.fromkeys(("quantity", "where"), "text"),
    **dict.fromkeys(("holds", "reached"), "true/false or null"),
}
_SERIES = {
    **dict.fromkeys(("name", "role"), "text"),
    "x": ["number or text"],
    "y": ["number or null"],
    **dict.fromkeys(("low", "high"), (["number or null"],)),
}
_COMMON: dict[str, Any] = {
    "schema": "integer",
    "kind": "text",
    "recipe": "text",
    "cell": "text",
    "scale": "text",
    "seed": "integer",
    "command": "text",
    "commit": "text or null",
    "hardware": {"threads": "integer"} | dict.fromkeys(("device", "platform", "python", "torch", "remanence"), "text"),
    "seconds": "number",
    "claims": [_CLAIM],
    "caveats": [{"code": "text", "text": "text"}],
}
_ATTACK: dict[str, Any] = {
    "release": {"shows": {"*": "text"}, "records": "integer"}
    | dict.fromkeys(("kind", "owned", "withholds", "data"), "text"),
    "attack": "text",
    "matching": "text",
    "scores": _SCORES,
    "nulls": dict.fromkeys(("held_out", "unrelated", "noise", "mean_image", "nearest_neighbour"), _NULL),
    "limit": (_LIMIT,),
    "point": ({"axis": "text", "value": "number or text", "series": "text", "log": "true/false"},),
}
_STUDY: dict[str, Any] = {
    "about": "text",
    "verdict": "text or null",
    "measures": [
        {"name": "text", "meaning": "text"} | dict.fromkeys(("value", "low", "high", "chance"), "number or null")
    ],
    "figures": [
        {"series": [_SERIES]}
        | dict.fromkeys(("title", "x_label", "y_label", "kind"), "text")
        | dict.fromkeys(("log_x", "log_y"), "true/false")
    ],
}
_ADDED = {"verdict": None}  # to schema 2 since, and what it is in records that lack it
_KINDS = {"attack": _COMMON | _ATTACK, "study": _COMMON | _STUDY, "refused": _COMMON | {"refusal": "text"}}


def _check_record(record: Any, where: str) -> None:
    if not isinstance(record, dict):
        raise BadInput(f"{where} must be an object, got {_word(record)}: make the run again")
    if record.get("schema") != SCHEMA:
        raise BadInput(f"{where} has schema {record.get('schema')!r}, this version reads {SCHEMA}: make the run again")
    if (kind := record.get("kind")) not in tuple(_KINDS):
        raise BadInput(f"{where} has {kind!r} for `kind`, expected {' or '.join(_KINDS)}: make the run again")
    added = {name: value for name, value in _ADDED.items() if name in _KINDS[kind]}
    for fault in _faults(added | record, _KINDS[kind], ""):
        raise BadInput(f"{where} {fault}: make the run again")
    for fault in _attack_faults(record["scores"]) if kind == "attack" else _figure_faults(record.get("figures", [])):
        raise BadInput(f"{where} {fault}: make the run again")


def _attack_faults(scores: dict[str, Any]) -> Iterator[str]:
    edges, *counts = (len(scores["histogram"][name]) for name in ("edges", "records", "held_out", "unrelated"))
    if set(counts) != {edges - 1} or len(scores["roc"]["fpr"]) != len(scores["roc"]["tpr"]):
        yield "has a curve whose lists do not fit together"
    if scores["primary"] not in scores["metrics"]:
        yield f"has no metric `{scores['primary']}`, which its `scores.primary` names"


def _figure_faults(figures: list[FigureRecord]) -> Iterator[str]:
    for i, figure in enumerate(figures):
        if figure["kind"] not in get_args(Kind):
            yield f"has an {unknown_name('kind of figure', figure['kind'], get_args(Kind))}, in `figures[{i}]`"
        for series in figure["series"]:
            if series["role"] not in get_args(Role):
                yield f"has an {unknown_name('role of a series', series['role'], get_args(Role))}, in `figures[{i}]`"
            lists = [
                values for values in (series["x"], series["y"], series["low"], series["high"]) if values is not None
            ]
            if len({len(values) for values in lists}) > 1 or len(lists) == 3:
                yield f"has a series in `figures[{i}]` whose lists do not fit together"
            texts = [x for x in series["x"] if isinstance(x, str)]
            if texts and (figure["kind"] != "bars" or len(texts) < len(series["x"])):
                yield f"has texts for `x` in `figures[{i}]`, where numbers are expected"


def _faults(value: Any, kind: Any, path: str) -> Iterator[str]:
    """What is wrong with `value`, as the rest of a sentence about the record."""
    if isinstance(kind, tuple):
        yield from () if value is None else _faults(value, kind[0], path)
    elif isinstance(kind, str):
        if not _is(value, kind):
            yield f"has {_word(value)} for `{path}`, expected {kind}"
    elif not isinstance(value, type(kind)):
        yield f"has {_word(value)} for `{path}`, expected {_word(kind)}"
    elif isinstance(kind, list):
        for i, item in enumerate(value):
            yield from _faults(item, kind[0], f"{path}[{i}]")
    else:
        yield from _object_faults(value, kind, f"{path}." if path else "")


def _object_faults(value: dict[str, Any], kind: dict[str, Any], prefix: str) -> Iterator[str]:
    kinds = dict.fromkeys(value, kind["*"]) if "*" in kind else kind
    for name in sorted(kinds.keys() ^ value.keys()):
        yield f"{'lacks' if name in kinds else 'has the unknown field'} `{prefix}{name}`"
    for name in kinds:
        yield from _faults(value[name], kinds[name], prefix + name)


def _is(value: Any, kind: str) -> bool:
    kinds = [_WORDS[word] for word in kind.split(" or ")]
    if type(value) is float and not isfinite(value):  # JSON has no infinity, but 1e999 is read as one
        return False
    return type(value) in kinds or (type(value) is int and float in kinds)  # by `type`, as True is an int


def _word(value: Any) -> str:
    names = {kind: word for word, kind in _WORDS.items()} | {dict: "an object", list: "a list"}
    return names[type(value)]
