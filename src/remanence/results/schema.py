"""What a record is, and the check that something read is one. The fields are described in docs/records.md."""

import json
from collections.abc import Iterator
from math import isfinite
from types import NoneType
from typing import Any, Never, TypedDict

from remanence.errors import BadInput

SCHEMA = 1


class ClaimRecord(TypedDict):
    quantity: str
    printed: float
    where: str
    measured: float | None
    holds: bool | None  # None: the claim belongs to another scale


class CaveatRecord(TypedDict):
    code: str
    text: str


class Record(TypedDict):
    """One cell of a recipe, as it stands in `results.json`."""

    schema: int
    recipe: str
    cell: str
    scale: str
    seed: int
    command: str
    commit: str | None
    hardware: dict[str, Any]
    seconds: float
    release: dict[str, Any]
    attack: str
    matching: str
    scores: dict[str, Any]
    nulls: dict[str, Any]
    claims: list[ClaimRecord]
    caveats: list[CaveatRecord]


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


# A kind is words for a plain value, [kind] for a list, {name: kind} for an object of exactly these fields ("*": any).
_WORDS: dict[str, type] = {"text": str, "integer": int, "number": float, "true/false": bool, "null": NoneType}
_METRIC = {
    **dict.fromkeys(("mean", "low", "high", "median", "p10", "p90"), "number or null"),
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
    "metrics": {"*": _METRIC},
    "found": {"count": "integer", "share": "number", "low": "number", "high": "number", "fpr": "number"},
    "roc": {
        "fpr": ["number"],
        "tpr": ["number"],
        "tpr_at_1_percent": "number or null",
        "tpr_at_0.1_percent": "number or null",
    },
    "histogram": {"edges": ["number"], "records": ["integer"], "held_out": ["integer"], "unrelated": ["integer"]},
}
_RECORD: dict[str, Any] = {
    "schema": "integer",
    "recipe": "text",
    "cell": "text",
    "scale": "text",
    "seed": "integer",
    "command": "text",
    "commit": "text or null",
    "hardware": {"threads": "integer"} | dict.fromkeys(("device", "platform", "python", "torch", "remanence"), "text"),
    "seconds": "number",
    "release": {"shows": {"*": "text"}, "records": "integer"}
    | dict.fromkeys(("kind", "owned", "withholds", "data"), "text"),
    "attack": "text",
    "matching": "text",
    "scores": _SCORES,
    "nulls": dict.fromkeys(("held_out", "unrelated", "noise", "mean_image", "nearest_neighbour"), _NULL),
    "claims": [
        {
            "quantity": "text",
            "printed": "number",
            "where": "text",
            "measured": "number or null",
            "holds": "true/false or null",
        }
    ],
    "caveats": [{"code": "text", "text": "text"}],
}


def _check_record(record: Any, where: str) -> None:
    if not isinstance(record, dict):
        raise BadInput(f"{where} must be an object, got {_word(record)}: make the run again")
    if record.get("schema") != SCHEMA:
        raise BadInput(f"{where} has schema {record.get('schema')!r}, this version reads {SCHEMA}: make the run again")
    for fault in _faults(record, _RECORD, ""):
        raise BadInput(f"{where} {fault}: make the run again")
    _check_lengths(record["scores"], where)
    if (primary := record["scores"]["primary"]) not in record["scores"]["metrics"]:
        raise BadInput(f"{where} has no metric `{primary}`, which its `scores.primary` names: make the run again")


def _check_lengths(scores: dict[str, Any], where: str) -> None:
    edges, *counts = (len(scores["histogram"][name]) for name in ("edges", "records", "held_out", "unrelated"))
    if set(counts) != {edges - 1} or len(scores["roc"]["fpr"]) != len(scores["roc"]["tpr"]):
        raise BadInput(f"{where} has a curve whose lists do not fit together: make the run again")


def _faults(value: Any, kind: Any, path: str) -> Iterator[str]:
    """What is wrong with `value`, as the rest of a sentence about the record."""
    if isinstance(kind, str):
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
