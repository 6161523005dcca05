"""What a record is, and the check that something read is one. The fields are described in docs/records.md."""

import json
from collections.abc import Sequence
from typing import Any, TypedDict

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
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"`{where}` is not JSON ({error}): make the run again") from None
    if not isinstance(found, list):
        raise BadInput(f"`{where}` must hold a list of records, got {type(found).__name__}")
    for i, record in enumerate(found):
        _check_record(record, f"record {i} of `{where}`")
    return found


_FIELDS: dict[str, tuple[type, ...]] = {
    "schema": (int,),
    "recipe": (str,),
    "cell": (str,),
    "scale": (str,),
    "seed": (int,),
    "command": (str,),
    "commit": (str, type(None)),
    "hardware": (dict,),
    "seconds": (int, float),
    "release": (dict,),
    "attack": (str,),
    "matching": (str,),
    "scores": (dict,),
    "nulls": (dict,),
    "claims": (list,),
    "caveats": (list,),
}
_INSIDE: dict[str, tuple[str, ...]] = {
    "release": ("kind", "shows", "withholds", "records"),
    "scores": ("records", "candidates", "unmatched", "primary", "metrics", "found", "roc", "histogram"),
    "nulls": ("held_out", "unrelated", "noise", "mean_image", "nearest_neighbour"),
}
_LISTED: dict[str, tuple[str, ...]] = {
    "claims": ("quantity", "printed", "where", "measured", "holds"),
    "caveats": ("code", "text"),
}


def _check_record(record: Any, where: str) -> None:
    if not isinstance(record, dict):
        raise BadInput(f"{where} must be an object, got {type(record).__name__}")
    if record.get("schema") != SCHEMA:
        raise BadInput(f"{where} has schema {record.get('schema')!r}, this version reads {SCHEMA}: make the run again")
    for name, types in _FIELDS.items():
        if not isinstance(record.get(name, _FIELDS), types):
            got = type(record[name]).__name__ if name in record else "nothing"
            raise BadInput(f"{where}: `{name}` must be {' or '.join(t.__name__ for t in types)}, got {got}")
    for name, keys in _INSIDE.items():
        _check_keys(record[name], keys, f"{where}: `{name}`")
    for name, keys in _LISTED.items():
        for entry in record[name]:
            _check_keys(entry, keys, f"{where}: an entry of `{name}`")
    if unknown := sorted(set(record) - set(_FIELDS)):
        raise BadInput(f"{where} has unknown fields: {', '.join(unknown)}")


def _check_keys(value: Any, keys: Sequence[str], where: str) -> None:
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    if missing:
        raise BadInput(f"{where} lacks {', '.join(missing)}")
