"""Frozen dataclasses to JSON and back, strictly, and their JSON schema: all from the type hints of their fields.

Hints may be `str`, `int`, `float`, `bool`, `None`, literals, unions, `tuple[T, ...]`, tuples of fixed length,
`dict[str, T]` and dataclasses of these. A field that is missing or unknown is an error, whatever its default.

A file may come from a stranger: what is parsed has a bounded size, numbers that a float holds, and texts that can be
written.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, Never, TypeVar, Union, get_args, get_origin, get_type_hints

from remanence.errors import BadInput, printable

T = TypeVar("T")
_NAMES: dict[type, str] = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true/false",
    NoneType: "null",
    dict: "an object",
    list: "a list",
}
MAX_BYTES = 2**25  # of a file
_MAX_VALUES = 500_000  # in a file: thirty times what our largest has, and what a page of a few seconds shows
_MAX_TEXT = 100_000  # characters
_MAX_INT = 2**63
_MAX_OBJECTS = 10_000  # in one list
_SCHEMAS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def parse_json(text: str) -> Any:
    """The JSON in `text`; what is none, or more than a result holds, raises `ValueError`."""
    if len(text) > MAX_BYTES or text.count(",") > _MAX_VALUES:
        raise ValueError(f"it holds more than {_MAX_VALUES:,} values or {MAX_BYTES:,} characters")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(constant: str) -> Never:
    raise ValueError(f"{constant} is no number")


def encode(value: Any) -> Any:
    """`value` as what the `json` module writes; numbers must be finite."""
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: encode(each) for key, each in value.items()}
    return [encode(each) for each in value] if isinstance(value, tuple | list) else value


def decode(kind: type[T], value: Any, path: str = "") -> T:
    """The instance of the dataclass `kind` that `value` (parsed JSON) describes.

    What does not fit raises `BadInput` with the code `damaged-file`; its message continues "the result ...".
    """
    made: T = _decode(kind, value, path)
    return made


def _decode(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _decode(_matching(arguments, value, path), value, path)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool):
            raise _fault(path, value, " or ".join(map(str, arguments)))
        return value
    if origin is tuple:
        return _tuple(arguments, value, path)
    if origin is dict:
        if not isinstance(value, dict):
            raise _fault(path, value, "an object")
        return {
            _decode(str, key, _under(path, key)): _decode(arguments[1], each, _under(path, key))
            for key, each in value.items()
        }
    if is_dataclass(hint):
        return _object(hint, value, path)
    if not _is(hint, value):
        raise _fault(path, value, _NAMES[hint])
    return value


def _matching(options: tuple[Any, ...], value: Any, path: str) -> Any:
    """The option of a union that JSON of this type belongs to; of several tuples the first that fits."""
    fitting = [each for each in options if _fits(each, value)]
    if not fitting:
        raise _fault(path, value, " or ".join(_NAMES.get(each, "a list or an object") for each in options))
    for each in fitting[:-1]:
        try:
            _decode(each, value, path)
        except BadInput:
            continue
        return each
    return fitting[-1]


def _fits(hint: Any, value: Any) -> bool:
    if is_dataclass(hint) or get_origin(hint) is dict:
        return isinstance(value, dict)
    return isinstance(value, list) if get_origin(hint) is tuple else _is(hint, value)


def _is(hint: Any, value: Any) -> bool:
    """By `type`, as True is an int to Python; JSON has no infinity, but 1e999 is parsed as one."""
    if type(value) is int:
        return hint in (int, float) and -_MAX_INT <= value <= _MAX_INT
    if hint is float:
        return type(value) is float and isfinite(value)
    return type(value) is hint and (hint is not str or _is_text(value))


def _is_text(text: str) -> bool:
    """Whether a text has a usual length and no half of a character."""
    if len(text) > _MAX_TEXT:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _tuple(items: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _fault(path, value, "a list")
    hints = (items[0],) * len(value) if items[-1] is Ellipsis else items
    if len(hints) != len(value):
        raise _fault(path, value, f"a list of {len(hints)}")
    if len(value) > _MAX_OBJECTS and is_dataclass(items[0]):
        raise _fault(path, value, f"a list of at most {_MAX_OBJECTS:,}")
    if items[-1] is Ellipsis and float in (items[0], *get_args(items[0])) and all(_is(float, each) for each in value):
        return tuple(value)  # the commonest by far, and the longest
    return tuple(_decode(hint, each, f"{path}[{i}]") for i, (hint, each) in enumerate(zip(hints, value, strict=True)))


def _object(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise _fault(path, value, "an object")
    hints = field_hints(kind)
    for name in sorted(hints.keys() ^ value.keys()):
        how = "lacks" if name in hints else "has the unknown field"
        raise BadInput(f"{how} `{_under(path, name)}`", code="damaged-file", argument=_under(path, name))
    made = {name: _decode(hint, value[name], _under(path, name)) for name, hint in hints.items()}
    try:
        return kind(**made)
    except BadInput as error:
        raise BadInput(f"has a wrong `{path}`: {error}", code="damaged-file", argument=path) from None


@cache
def field_hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _under(path: str, name: str) -> str:
    name = printable(name, 80)
    return f"{path}.{name}" if path else name


def _fault(path: str, value: Any, expected: str) -> BadInput:
    got = _NAMES.get(type(value), type(value).__name__)
    if got == expected:
        got = "a text that is too long or no Unicode" if type(value) is str else "a number that is too large"
    return BadInput(f"has {got} for `{path}`, expected {expected}", code="damaged-file", argument=path)


def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a dataclass, each dataclass inside it a definition of its own."""
    definitions: dict[str, Any] = {}
    reference = _schema(kind, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **reference, "$defs": definitions}


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    inside: Callable[[Any], dict[str, Any]] = lambda each: _schema(each, definitions)  # noqa: E731
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return {"anyOf": [inside(each) for each in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is dict:
        return {"type": "object", "additionalProperties": inside(arguments[1])}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": inside(arguments[0])}
    if origin is tuple:
        items = [inside(each) for each in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
    if not is_dataclass(hint):
        return {"type": _SCHEMAS[hint]}
    name = hint.__name__  # type: ignore[union-attr]
    if name not in definitions:
        definitions[name] = {}  # a dataclass may hold itself
        properties = {field: inside(each) for field, each in field_hints(hint).items()}  # type: ignore[arg-type]
        definitions[name] = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{name}"}
