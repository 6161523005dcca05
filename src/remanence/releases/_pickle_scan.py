"""The pickle inside a torch zip, parsed as a description of tensors by a machine that knows names and numbers only.

No unpickler is called: `torch.load(weights_only=True)` has had holes through which code could be executed, and a pickle
of 300 bytes still makes it hang (docs/decisions/0001). An opcode outside `_STEPS`, or a global outside `_FUNCTIONS` and
`_STORAGES`, is refused by name; the others build strings, numbers, tuples, dicts, `Storage` and `View`, and nothing is
ever called. In a checkpoint, whose weights stand beside other things, what would be another object is `Unread`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from math import prod
from pickletools import opcodes
from typing import Any, TypeAlias, final

import torch

from remanence.errors import BadModelFile
from remanence.releases._refusals import damaged, listed, shown, unsafe, unsupported

_MAX_SIZE = 2**48  # of a shape or a stride: torch's own arithmetic stays far from overflow


@final
@dataclass(frozen=True, kw_only=True)
class Storage:
    """A contiguous storage of `numel` values that the file claims to hold under `key`."""

    key: str
    dtype: torch.dtype
    numel: int


@final
@dataclass(frozen=True, kw_only=True)
class View:
    """A tensor as a file describes it: nothing is allocated for it, and nothing is true before `check`."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def check(self, name: str) -> None:
        check_shape(name, self.shape)
        steps = (self.offset, *self.stride)
        if len(steps) != len(self.shape) + 1 or not all(type(s) is int and 0 <= s <= _MAX_SIZE for s in steps):
            raise unsafe(f"{shown(name)} has a negative or absurd offset or stride")
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        # With stride 0 a view may claim any size over a single value; a weight has no more values than its storage.
        count = prod(self.shape)
        if count and max(count, last + 1) > self.storage.numel:
            raise unsafe(
                f"{shown(name)} of shape {shown(self.shape)} does not fit its storage of {shown(self.storage.numel)} "
                "values"
            )


def check_shape(name: str, shape: tuple[int, ...]) -> None:
    if not name.isprintable():
        raise unsafe(f"the name {shown(name)} is not printable")
    if len(shape) > 32 or not all(type(n) is int for n in shape):  # not printed: nested tuples can be endless to print
        raise unsafe(f"{shown(name)} has a shape of {len(shape)} entries, expected up to 32 integers")
    # Zeros are left out of the product: torch multiplies the other sizes even where a tensor is empty.
    if min(shape, default=0) < 0 or prod(n for n in shape if n) > _MAX_SIZE:
        raise unsafe(f"{shown(name)} has the negative or absurd shape {shown(shape)}")


@final
@dataclass(frozen=True, kw_only=True)
class Unread:
    """An object that is neither made nor looked into: its parts are dropped."""


def scan(stream: bytes) -> dict[str, View]:
    """The tensors that the pickle `stream` names, refused unless it is a flat dict of plain tensors."""
    return _flat(_root(stream, unread=False))


def scan_checkpoint(stream: bytes) -> dict[str, dict[str, View]]:
    """The dicts of tensors in the pickle `stream`, by the keys that lead to each; other entries stay unread."""
    root = _root(stream, unread=True)
    if not isinstance(root, dict):
        raise unsupported(f"it holds a {_kind(root)}, expected a dict with the weights in it")
    found, visited = dict[str, dict[str, View]](), set[int]()
    _collect(root, (), found, visited)
    if not found:
        raise unsupported(f"none of its keys {listed([shown(key) for key in root], 8)} leads to a dict of tensors")
    return found


def _root(stream: bytes, *, unread: bool) -> object:
    try:
        return _run(stream, unread=unread)
    except (IndexError, KeyError, ValueError) as error:  # an empty stack, an unset memo, a cut argument
        if isinstance(error, BadModelFile):
            raise
        raise damaged(f"its pickle is malformed or truncated ({type(error).__name__})") from None


_MAX_DEPTH = 3  # of dicts in dicts that may hold the weights


def _collect(part: dict[Any, Any], keys: tuple[str, ...], found: dict[str, dict[str, View]], visited: set[int]) -> None:
    """Add the tensors of this dict and of those in it; a dict that a file names again is not looked at again."""
    visited.add(id(part))
    if tensors := {key: view for key, view in part.items() if isinstance(key, str) and isinstance(view, View)}:
        found[".".join(keys)] = tensors
    for key, value in part.items():
        if isinstance(key, str) and isinstance(value, dict) and id(value) not in visited and len(keys) < _MAX_DEPTH:
            _collect(value, (*keys, key), found, visited)


_MAX_OPCODES = 250_000  # some 5500 tensors; more would take a hostile file over a second
_STORAGES = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}
_FUNCTIONS = {"collections.OrderedDict", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"}
# Modules that no checkpoint names for the sake of its numbers: their functions are there to be run by another program.
_RUNS_CODE = {
    *(
        "os",
        "posix",
        "nt",
        "subprocess",
        "pty",
        "sys",
        "runpy",
        "importlib",
        "shutil",
        "socket",
        "webbrowser",
        "ctypes",
    ),
    *("code", "codeop", "pdb", "bdb", "timeit", "cProfile", "profile", "asyncio", "multiprocessing", "pip", "marshal"),
    *("operator", "inspect", "urllib", "http", "ftplib", "smtplib", "requests", "pickle", "zipimport", "atexit"),
}
_HARMLESS_BUILTINS = {"set", "frozenset", "complex", "slice", "range", "bytearray", "object", "list", "dict", "tuple"}


@final
@dataclass(frozen=True, kw_only=True)
class _Global:
    """The name of a function or a storage kind: the thing itself is never looked up."""

    name: str


@final
@dataclass(kw_only=True)
class _Machine:
    unread: bool  # whether objects other than tensors are dropped, not refused
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def since_mark(self) -> list[Any]:
        return self.top(len(self.stack) - self.marks.pop())

    def top(self, count: int) -> list[Any]:
        start = len(self.stack) - count
        if count < 0 or start < 0:
            raise IndexError("the stack is too short")
        items = self.stack[start:]
        del self.stack[start:]
        return items


def _run(stream: bytes, *, unread: bool) -> object:
    source, machine = BytesIO(stream), _Machine(unread=unread)
    steps = _STEPS | _STEPS_OF_OBJECTS if unread else _STEPS
    for _ in range(_MAX_OPCODES):
        name, argument = _next(source, steps, unread=unread)
        if name == "STOP":
            return machine.stack.pop()
        steps[name](machine, argument)
    message = f"its pickle has more than {_MAX_OPCODES} opcodes, and a tensor needs 45: save it as safetensors"
    raise BadModelFile(message, code="too-large")


_KNOWN = {opcode.code.encode("latin-1"): opcode for opcode in opcodes}


def _next(source: BytesIO, steps: "dict[str, _Step]", *, unread: bool) -> tuple[str, Any]:
    # `genops` would read the argument before the opcode is judged, and warns on odd escapes in it: so opcode by opcode.
    code = source.read(1)
    known = _KNOWN.get(code)
    if not code:
        raise ValueError("no STOP")
    if known is None or known.name not in steps:
        name = known.name if known else code.hex()
        raise unsafe(f"its pickle uses the opcode {name}, which a plain state dict never needs")
    if known.name == "GLOBAL":
        return known.name, _read_global(source, unread=unread)
    return known.name, known.arg.reader(source) if known.arg else None


def _read_global(source: BytesIO, *, unread: bool) -> _Global:
    words = [source.readline().removesuffix(b"\n").decode("utf-8", "backslashreplace") for _ in range(2)]
    name = ".".join(words)
    if name not in _FUNCTIONS and name not in _STORAGES and not (unread and _is_data(*words)):
        raise unsafe(
            f"its pickle asks for {shown(name)}, which a dict of plain dense real tensors never needs (nothing was run)"
        )
    return _Global(name=name)


def _is_data(module: str, name: str) -> bool:
    """Whether the name may be that of an object's class, or of a function that makes one, rather than of a program."""
    if module in ("builtins", "__builtin__"):
        return name in _HARMLESS_BUILTINS
    parts = {*module.split("."), *name.split(".")[:-1]}
    return bool(module) and not any(part.lstrip("_") in _RUNS_CODE for part in parts)


def _reduce(machine: _Machine, _: object) -> None:
    arguments, function = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(_describe(function, arguments, unread=machine.unread))


def _new_object(machine: _Machine, _: object) -> None:
    machine.top(2)
    machine.stack.append(Unread())


def _describe(function: object, arguments: object, *, unread: bool) -> object:
    match function, arguments:
        case _Global(name="collections.OrderedDict"), ():
            return {}
        case (
            _Global(name="torch._utils._rebuild_tensor_v2"),
            (Storage() as storage, int(offset), tuple(shape), tuple(stride), bool(), dict(hooks)),
        ) if not hooks:
            return View(storage=storage, offset=offset, shape=shape, stride=stride)
        case _Global(name="torch._utils._rebuild_parameter"), (View() as view, bool(), dict(hooks)) if not hooks:
            return view
    if unread and isinstance(function, _Global | Unread):
        return Unread()
    name = function.name if isinstance(function, _Global) else f"a {type(function).__name__}"
    raise unsafe(f"its pickle calls {name} in a way that plain weights never need")


def _persistent_id(machine: _Machine, _: object) -> None:
    match machine.stack.pop():
        case ("storage", _Global(name=kind), str(key), str(), int(numel)) if kind in _STORAGES:
            machine.stack.append(Storage(key=key, dtype=_STORAGES[kind], numel=numel))
        case ("storage", _Global(), str(), str(), int()) if machine.unread:
            machine.stack.append(Unread())
        case _:
            raise unsafe("its pickle has a persistent id that is not a plain storage")


def _build(machine: _Machine, _: object) -> None:
    # Torch hangs `_metadata`, the layers' version numbers, on the dict; it is dropped, no attribute is ever set.
    state, target = machine.stack.pop(), machine.stack[-1]
    if isinstance(target, Unread):
        return
    if not (isinstance(state, dict) and isinstance(target, dict)):
        raise unsafe(f"its pickle uses BUILD on a {type(target).__name__}, which torch never does")


def _set_items(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if isinstance(target, Unread):
        return
    if not isinstance(target, dict) or len(items) % 2:
        raise unsafe(f"its pickle sets items of a {type(target).__name__}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        # Big integers could be chosen to collide, and a nested tuple takes exponential time to hash.
        if not (type(key) is str or (type(key) is int and abs(key) < 2**31)):
            raise unsafe(f"its pickle has a dict key of type {type(key).__name__}, expected str")
        if key in target:
            raise unsafe(f"its pickle names {shown(key)} twice")
        target[key] = value


def _append(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if isinstance(target, Unread):
        return
    if not isinstance(target, list):
        raise unsafe(f"its pickle appends to a {type(target).__name__}")
    target.extend(items)


_Step: TypeAlias = Callable[[_Machine, Any], None]


def _push(machine: _Machine, argument: object) -> None:
    machine.stack.append(argument)


def _pushes(make: Callable[[], object]) -> _Step:
    return lambda machine, _: machine.stack.append(make())


def _remember(machine: _Machine, index: int) -> None:
    machine.memo[index] = machine.stack[-1]


_STEPS: dict[str, _Step] = {
    "PROTO": lambda machine, version: None,
    "STOP": lambda machine, _: None,
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "NONE": _pushes(lambda: None),
    "NEWTRUE": _pushes(lambda: True),
    "NEWFALSE": _pushes(lambda: False),
    "EMPTY_TUPLE": _pushes(tuple),
    "EMPTY_LIST": _pushes(list),
    "EMPTY_DICT": _pushes(dict),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "GLOBAL"), _push),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, _: machine.stack.append(tuple(machine.top(1))),
    "TUPLE2": lambda machine, _: machine.stack.append(tuple(machine.top(2))),
    "TUPLE3": lambda machine, _: machine.stack.append(tuple(machine.top(3))),
    "APPEND": lambda machine, _: _append(machine, machine.top(1)),
    "APPENDS": lambda machine, _: _append(machine, machine.since_mark()),
    "SETITEM": lambda machine, _: _set_items(machine, machine.top(2)),
    "SETITEMS": lambda machine, _: _set_items(machine, machine.since_mark()),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _remember),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda machine, index: machine.stack.append(machine.memo[index])),
    "BINPERSID": _persistent_id,
    "REDUCE": _reduce,
    "BUILD": _build,
}
_STEPS_OF_OBJECTS: dict[str, _Step] = {"NEWOBJ": _new_object}


def _flat(root: object) -> dict[str, View]:
    if not isinstance(root, dict):
        raise unsupported(f"it holds a {_kind(root)}, expected a dict from names to tensors")
    others = {key: value for key, value in root.items() if not isinstance(value, View)}
    if any(isinstance(value, dict) for value in others.values()):
        raise BadModelFile(
            f"it is a checkpoint with the keys {listed([shown(key) for key in root], 8)}, expected the weights alone: "
            'save the inner dict by itself, as in `torch.save(checkpoint["state_dict"], path)`',
            code="unsupported-format",
        )
    for key, value in others.items():
        raise unsupported(f"its entry {shown(key)} is of type {_kind(value)}, expected a tensor")
    if wrong := [key for key in root if not isinstance(key, str)]:
        raise unsupported(f"its names must be strings, got {listed([shown(key) for key in wrong])}")
    return root


def _kind(value: object) -> str:
    return "single tensor" if isinstance(value, View) else type(value).__name__.lstrip("_").lower()
