"""The pickle inside a torch zip as a dict of tensors, or the dicts of tensors in a checkpoint."""

from typing import Any, TypeAlias

from remanence.errors import BadModelFile
from remanence.releases._pickle_machine import Unread, described
from remanence.releases._refusals import listed, shown, unsupported
from remanence.releases._views import View

Keys: TypeAlias = tuple[str, ...]  # that lead to a dict in a checkpoint
_MAX_DEPTH = 3  # of dicts in dicts that may hold the weights


def scan(stream: bytes) -> dict[str, View]:
    """The tensors that the pickle `stream` names, refused unless it is a flat dict of plain tensors."""
    root = described(stream, unread=False)
    if not isinstance(root, dict):
        raise unsupported(f"it holds a {_kind(root)}, expected a dict from names to tensors")
    others = {key: value for key, value in root.items() if not isinstance(value, View)}
    if any(isinstance(value, dict) for value in others.values()):
        raise BadModelFile(_nested(root), code="unsupported-format")
    for key, value in others.items():
        raise unsupported(f"its entry {shown(key)} is of type {_kind(value)}, expected a tensor")
    if wrong := [key for key in root if not isinstance(key, str)]:
        raise unsupported(f"its names must be strings, got {listed([shown(key) for key in wrong])}")
    return root


def _nested(root: dict[Any, Any]) -> str:
    """How to save the weights of a checkpoint by themselves: the dict in it with most tensors."""
    found = _dicts(root)
    keys = max(found, key=lambda each: len(found[each]), default=("state_dict",))
    path = "".join(f'["{key}"]' if key.isidentifier() else f"[{shown(key)}]" for key in keys)
    return (
        f"it is a checkpoint with the keys {listed([shown(key) for key in root], 8)}, expected the weights alone: "
        f"save the inner dict by itself, as in `torch.save(checkpoint{path}, path)`"
    )


def scan_checkpoint(stream: bytes) -> tuple[dict[str, dict[str, View]], list[str]]:
    """The dicts of tensors in the pickle `stream`, by the keys that lead to each, and the names of tensors in it that
    are of another kind; other entries stay unread."""
    root = described(stream, unread=True)
    if isinstance(root, Unread):
        raise unsupported(f"it holds {_object(root)}, not its weights; where its code is at hand, load it")
    if not isinstance(root, dict):
        raise unsupported(f"it holds a {_kind(root)}, expected a dict with the weights in it")
    found, others = _dicts(root), _other_tensors(root)
    if not found and others:
        raise not_plain(others)
    if not found:
        objects = [f"{shown(key)} is {_object(value)}" for key, value in root.items() if _is_object(value)]
        about = f"; {listed(objects)}: where its code is at hand, load it" if objects else ""
        names = listed([shown(key) for key in root], 8) or "(none)"
        raise unsupported(f"none of its keys {names} leads to a dict of tensors{about}")
    named: dict[str, dict[str, View]] = {}
    for keys, tensors in found.items():
        named.setdefault(".".join(map(_printable, keys)), tensors)
    return named, others


def not_plain(names: list[str]) -> BadModelFile:
    """The refusal of tensors that are not dense and real."""
    return unsupported(
        f"{listed(names)}: sparse, quantised or complex, or of a dtype that no audit uses; make it plain with "
        "`.to_dense()`, `.dequantize()` or `.float()`"
    )


def _dicts(root: dict[Any, Any]) -> dict[Keys, dict[str, View]]:
    found: dict[Keys, dict[str, View]] = {}
    _collect(root, (), found, set())
    return found


def _collect(part: dict[Any, Any], keys: Keys, found: dict[Keys, dict[str, View]], visited: set[int]) -> None:
    """Add the tensors of this dict and of those in it; a dict that a file names again is not looked at again."""
    visited.add(id(part))
    if tensors := {key: view for key, view in part.items() if isinstance(key, str) and isinstance(view, View)}:
        found[keys] = tensors
    for key, value in part.items():
        if isinstance(key, str) and isinstance(value, dict) and id(value) not in visited and len(keys) < _MAX_DEPTH:
            _collect(value, (*keys, key), found, visited)


def _other_tensors(root: dict[Any, Any]) -> list[str]:
    """The names, in the dict and in those right in it, of tensors that are sparse, quantised, complex or the like."""
    inner = [value for value in root.values() if isinstance(value, dict)]
    entries = (item for part in (root, *inner[:8]) for item in part.items())
    return [shown(key) for key, value in entries if isinstance(value, Unread) and "._rebuild_" in value.kind]


def _is_object(value: object) -> bool:
    return isinstance(value, Unread) and bool(value.kind) and "._rebuild_" not in value.kind


def _object(value: object) -> str:
    return f"a whole pickled object ({shown(value.kind)})" if isinstance(value, Unread) and value.kind else "an object"


def _printable(key: str) -> str:
    return key if key.isprintable() else shown(key)


def _kind(value: object) -> str:
    return "single tensor" if isinstance(value, View) else type(value).__name__.lstrip("_").lower()
