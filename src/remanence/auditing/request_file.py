"""A request for an audit in a file, `audit.toml`, and what becomes of its report."""

import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

from remanence.auditing.request import Request
from remanence.disk import read_text
from remanence.errors import BadInput, unknown_name

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?")
_UNITS = {None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@final
@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What becomes of a report: where it is written, and what fails the command."""

    out: str | None = None
    fail_if: tuple[str, ...] = ()
    compare: str | None = None
    junit: str | None = None
    sarif: str | None = None
    summary: str | None = None
    redact: bool = False


_MAX_TOML = 2**20  # bytes


def read_toml(path: Path) -> tuple[Request, Wanted]:
    """The request in an `audit.toml`; paths in it are relative to its folder."""
    try:
        given = tomllib.loads(read_text(path, max_bytes=_MAX_TOML))
    except OSError as error:
        message = f"cannot read `{path}` ({error.strerror}): `remanence audit init` writes such a file"
        raise BadInput(message, code="missing-file", argument=str(path)) from None
    except BadInput:
        raise
    except (ValueError, RecursionError) as error:
        raise BadInput(f"`{path}` is not TOML ({error})", code="damaged-file", argument=str(path)) from None
    known = {field.name for field in fields(Request)}, {field.name for field in fields(Wanted)}
    for name in given:
        if name not in known[0] | known[1]:
            raise unknown_name("setting", name, known[0] | known[1], argument=name)
    values = {name: _value(name, value, path.parent) for name, value in given.items()}
    for name in ("kind", "model", "data", "held_out"):
        if name not in values:
            raise BadInput(f"`{path}` lacks `{name}`: `remanence audit init` writes one that has all", argument=name)
    if values["kind"] not in ("model", "update"):
        raise unknown_name("kind", str(values["kind"]), ("model", "update"), argument="kind")
    request = Request(**{name: value for name, value in values.items() if name in known[0]})
    return request, Wanted(**{name: value for name, value in values.items() if name in known[1]})


_PATHS = (
    "weights",
    "base",
    "before",
    "after",
    "gradient",
    "vocabulary",
    "recipe",
    "out",
    "compare",
    "junit",
    "sarif",
    "summary",
)
_SOURCES = ("data", "held_out", "fixed")
_LISTS = ("attacks", "fail_if", "normalize")
_TYPES: dict[str, tuple[type, str]] = {
    "seed": (int, "a whole number"),
    "defenses": (bool, "true or false"),
    "redact": (bool, "true or false"),
}


def _value(name: str, value: Any, folder: Path) -> Any:
    if name == "budget":
        return seconds(str(value))
    kind, words = (float, "numbers") if name == "normalize" else _TYPES.get(name, (str, "a text in quotes"))
    values = value if name in _LISTS and isinstance(value, list) else [value]
    if any(type(each) is not kind and not (kind is float and type(each) is int) for each in values):
        raise BadInput(f"`{name}` must be {words}, got {value!r}", code="wrong-type", argument=name)
    if name in _LISTS:
        return tuple(float(each) if name == "normalize" else str(each) for each in values)
    if name in _PATHS or (name in _SOURCES and (folder / str(value)).exists()):
        return str(folder / str(value))
    return value


TEMPLATE = """\
# What is audited: remanence audit audit.toml
# Lines that begin with # are optional. Paths are relative to this file.

kind = "model"                  # or "update", of a federated client
model = "mymodel:MyNet"         # package.module:callable that makes the network, imported from the working directory
weights = "model.safetensors"   # what is about to be published: safetensors or a torch state dict
data = "private.npz"            # the records it was trained on: x and y in an .npz, a .csv, a folder of images
held_out = "others.npz"         # records of the same kind that it never saw; some hundred of each class are best
# label = "diagnosis"           # the label column of a .csv
# normalize = [0.1307, 0.3081]  # means, then standard deviations, by which the model's inputs are normalised
# base = "base.safetensors"     # the weights that training started from, where an attacker can have them
# recipe = "train.toml"         # optimizer, lr, momentum, epochs, batch_size, weight_decay, loss: what is known
# fixed = "known.npz"           # all training records but those in `data`, for an attacker who has them

# of an update, in place of weights, base, recipe and fixed:
# before = "round7.pt"
# after = "client3.pt"
# local = "sgd lr=0.1 epochs=1 batch=full"
# sweep = "clients=1,2,5,10 noise=0,0.1,1"   # what would hide the records: also epsilon, topk, bits, clip
# gradient = "gradient.pt"      # of a transformer, in place of after; data and held_out are then token ids
# vocabulary = "vocab.json"     # of a transformer: the words of the page

budget = "15m"
# attacks = ["Stationarity"]    # only these
# defenses = true               # what would help: stand-ins made with DP, weight decay, ...; updates with noise, ...
# seed = 0
# device = "cpu"

out = "audit"                   # the folder of the page and the record
# redact = true                 # keep counts and curves, write no picture and no row of a record
# fail_if = ["found>0", "membership.tpr@1%>0.05"]   # exit code 3
# compare = "audit-of-the-last-release"             # exit code 3 where this one is worse
# junit = "audit.xml"
# sarif = "audit.sarif"
# summary = "audit.md"
"""


def write_template(path: Path, *, force: bool) -> None:
    """Write a commented `audit.toml`."""
    if path.exists() and not force:
        raise BadInput(f"`{path}` exists: give another name, or `--force`", code="conflict", argument=str(path))
    path.write_text(TEMPLATE, encoding="utf-8")


def seconds(text: str, *, argument: str = "budget") -> float:
    """A duration such as 90, 90s, 15m or 1h, in seconds."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or float(match[1]) <= 0:
        message = f"`{argument}` must be a duration such as 90s, 15m or 1h, got `{text}`"
        raise BadInput(message, code="out-of-range", argument=argument)
    return float(match[1]) * _UNITS[match[2]]


def numbers(text: str, *, argument: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(float(part) for part in text.replace("/", ",").split(","))
    except ValueError:
        message = f"`{argument}` must be numbers separated by commas, such as 0.1307,0.3081, got `{text}`"
        raise BadInput(message, code="wrong-type", argument=argument) from None
