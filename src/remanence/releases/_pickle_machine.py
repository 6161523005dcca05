"""A machine for pickles that knows names and numbers only: it builds descriptions, and nothing is ever called.

No unpickler is used: `torch.load(weights_only=True)` has had holes through which code could be executed, and a pickle
of 300 bytes still makes it hang (docs/decisions/0001). An opcode outside `_STEPS`, or a global outside `_FUNCTIONS`,
`_STORAGES` and `_BYTE_DTYPES`, is refused by name; the others build strings, numbers, tuples, dicts, `Storage` and
`View`. In a checkpoint, whose weights stand beside other things, what would be another object is `Unread`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pickletools import opcodes
from typing import Any, TypeAlias, final

import torch

from remanence.errors import BadModelFile
from remanence.releases._refusals import damaged, shown, unsafe
from remanence.releases._views import Storage, View

_MAX_OPCODES = 600_000  # some 13,000 tensors; more would take a hostile file over a second
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
# Of one byte, so that offsets in bytes and in numbers agree: torch writes these tensors over a storage without a type.
_BYTE_DTYPES = {"torch.float8_e4m3fn": torch.float8_e4m3fn, "torch.float8_e5m2": torch.float8_e5m2}
_UNTYPED = "torch.storage.UntypedStorage"
_FUNCTIONS = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
}
_NAMES = {*_STORAGES, *_BYTE_DTYPES, *_FUNCTIONS, _UNTYPED}
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
class Unread:
    """An object that is neither made nor looked into: its parts are dropped."""

    kind: str = ""  # the name of its class, or of the function that makes it


@final
@dataclass(frozen=True, kw_only=True)
class _Global:
    """The name of a function or a storage kind: the thing itself is never looked up."""

    name: str


@final
@dataclass(frozen=True, kw_only=True)
class _Untyped:
    """A storage of `numel` bytes whose dtype stands with its tensors."""

    key: str
    numel: int


@final
@dataclass(kw_only=True)
class _Machine:
    unread: bool  # whether objects other than tensors are dropped, not refused
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    globals: dict[tuple[str, str], _Global] = field(default_factory=dict)  # those that passed

    def since_mark(self) -> list[Any]:
        return self.top(len(self.stack) - self.marks.pop())

    def top(self, count: int) -> list[Any]:
        start = len(self.stack) - count
        if count < 0 or start < 0:
            raise IndexError("the stack is too short")
        items = self.stack[start:]
        del self.stack[start:]
        return items


def described(stream: bytes, *, unread: bool) -> object:
    """What the pickle `stream` describes; with `unread`, objects that are no tensors are `Unread`, not refused."""
    try:
        return _run(stream, unread=unread)
    except (IndexError, KeyError, ValueError) as error:  # an empty stack, an unset memo, a cut argument
        if isinstance(error, BadModelFile):
            raise
        raise damaged(f"its pickle is malformed or truncated ({type(error).__name__})") from None


def _run(stream: bytes, *, unread: bool) -> object:
    # `genops` would read the argument before the opcode is judged, and warns on odd escapes in it: so opcode by opcode.
    source, machine, table = BytesIO(stream), _Machine(unread=unread), _TABLES[unread]
    read = source.read
    for _ in range(_MAX_OPCODES):
        code = read(1)
        known = table.get(code)
        if known is None:
            if code == b".":
                return machine.stack.pop()
            raise _unknown(code)
        step, argument = known
        step(machine, argument(source) if argument else None)
    message = (
        f"its pickle has more than {_MAX_OPCODES} opcodes, and a tensor needs 45: save the weights alone, with "
        "`safetensors.torch.save_file`"
    )
    raise BadModelFile(message, code="too-large")


def _unknown(code: bytes) -> Exception:
    if not code:
        return ValueError("no STOP")
    name = _KNOWN[code].name if code in _KNOWN else code.hex()
    return unsafe(f"its pickle uses the opcode {name}, which a plain state dict never needs")


def _read_words(source: BytesIO) -> tuple[str, str]:
    module, name = (source.readline().removesuffix(b"\n").decode("utf-8", "backslashreplace") for _ in range(2))
    return module, name


def _global(machine: _Machine, words: tuple[str, str]) -> None:
    if words not in machine.globals:
        name = ".".join(words)
        if name not in _NAMES and not (machine.unread and _is_data(*words)):
            raise unsafe(
                f"its pickle asks for {shown(name)}, which a dict of plain dense real tensors never needs (nothing was "
                "run)"
            )
        machine.globals[words] = _Global(name=name)
    machine.stack.append(machine.globals[words])


def _stack_global(machine: _Machine, _: object) -> None:
    module, name = machine.top(2)
    if not (type(module) is str and type(name) is str):
        raise unsafe("its pickle asks for something whose name is not a string")
    _global(machine, (module, name))


def _is_data(module: str, name: str) -> bool:
    """Whether the name may be that of an object's class, or of a function that makes one, rather than of a program."""
    if module in ("builtins", "__builtin__"):
        return name in _HARMLESS_BUILTINS
    parts = {*module.split("."), *name.split(".")[:-1]}
    return bool(module) and not any(part.lstrip("_") in _RUNS_CODE for part in parts)


def _reduce(machine: _Machine, _: object) -> None:
    arguments, function = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(_describe(function, arguments, unread=machine.unread))


def _describe(function: object, arguments: object, *, unread: bool) -> object:
    match function, arguments:
        case _Global(name="collections.OrderedDict"), ():
            return {}
        case (
            _Global(name="torch._utils._rebuild_tensor_v2"),
            (Storage() as storage, int(offset), tuple(shape), tuple(stride), bool(), dict(hooks)),
        ) if not hooks:
            return View(storage=storage, offset=offset, shape=shape, stride=stride)
        case (
            _Global(name="torch._utils._rebuild_tensor_v3"),
            (
                _Untyped() as untyped,
                int(offset),
                tuple(shape),
                tuple(stride),
                bool(),
                dict(hooks),
                _Global(name=dtype),
                *rest,
            ),
        ) if not hooks and dtype in _BYTE_DTYPES and rest in ([], [None]):
            storage = Storage(key=untyped.key, dtype=_BYTE_DTYPES[dtype], numel=untyped.numel)
            return View(storage=storage, offset=offset, shape=shape, stride=stride)
        case _Global(name="torch._utils._rebuild_parameter"), (View() as view, bool(), dict(hooks)) if not hooks:
            return view
    if unread and isinstance(function, _Global | Unread):
        return Unread(kind=function.name if isinstance(function, _Global) else function.kind)
    name = function.name if isinstance(function, _Global) else f"a {type(function).__name__}"
    raise unsafe(f"its pickle calls {name} in a way that plain weights never need")


def _persistent_id(machine: _Machine, _: object) -> None:
    match machine.stack.pop():
        case ("storage", _Global(name=kind), str(key), str(), int(numel)) if kind in _STORAGES:
            machine.stack.append(Storage(key=key, dtype=_STORAGES[kind], numel=numel))
        case ("storage", _Global(name="torch.storage.UntypedStorage"), str(key), str(), int(numel)):
            machine.stack.append(_Untyped(key=key, numel=numel))
        case ("storage", _Global(), str(), str(), int()) if machine.unread:
            machine.stack.append(Unread())
        case _:
            raise unsafe("its pickle has a persistent id that is not a plain storage")


def _new_object(machine: _Machine, count: int) -> None:
    kind = machine.top(count)[0]
    machine.stack.append(Unread(kind=kind.name if isinstance(kind, _Global) else ""))


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
_Read: TypeAlias = Callable[[BytesIO], Any]


def _push(machine: _Machine, argument: object) -> None:
    machine.stack.append(argument)


def _pushes(make: Callable[[], object]) -> _Step:
    return lambda machine, _: machine.stack.append(make())


def _remember(machine: _Machine, index: int) -> None:
    machine.memo[index] = machine.stack[-1]


def _frozen_set(machine: _Machine, _: object) -> None:
    machine.since_mark()
    machine.stack.append(_UNREAD)


_UNREAD = Unread()
_NUMBERS_AND_WORDS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE")
_STEPS: dict[str, _Step] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, _: None),
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "NONE": _pushes(lambda: None),
    "NEWTRUE": _pushes(lambda: True),
    "NEWFALSE": _pushes(lambda: False),
    "EMPTY_TUPLE": _pushes(tuple),
    "EMPTY_LIST": _pushes(list),
    "EMPTY_DICT": _pushes(dict),
    **dict.fromkeys(_NUMBERS_AND_WORDS, _push),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, _: machine.stack.append(tuple(machine.top(1))),
    "TUPLE2": lambda machine, _: machine.stack.append(tuple(machine.top(2))),
    "TUPLE3": lambda machine, _: machine.stack.append(tuple(machine.top(3))),
    "APPEND": lambda machine, _: _append(machine, machine.top(1)),
    "APPENDS": lambda machine, _: _append(machine, machine.since_mark()),
    "SETITEM": lambda machine, _: _set_items(machine, machine.top(2)),
    "SETITEMS": lambda machine, _: _set_items(machine, machine.since_mark()),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _remember),
    "MEMOIZE": lambda machine, _: _remember(machine, len(machine.memo)),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda machine, index: machine.stack.append(machine.memo[index])),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "BINPERSID": _persistent_id,
    "REDUCE": _reduce,
    "BUILD": _build,
}
_STEPS_OF_OBJECTS: dict[str, _Step] = {
    "NEWOBJ": lambda machine, _: _new_object(machine, 2),
    "NEWOBJ_EX": lambda machine, _: _new_object(machine, 3),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"), _pushes(lambda: _UNREAD)),
    "EMPTY_SET": _pushes(lambda: _UNREAD),
    "ADDITEMS": lambda machine, _: _append(machine, machine.since_mark()),
    "FROZENSET": _frozen_set,
}
_KNOWN = {opcode.code.encode("latin-1"): opcode for opcode in opcodes}


def _table(steps: dict[str, _Step]) -> dict[bytes, tuple[_Step, _Read | None]]:
    """By the byte of an opcode what it does, and how its argument is read."""
    return {
        code: (steps[known.name], _read_words if known.name == "GLOBAL" else known.arg.reader if known.arg else None)
        for code, known in _KNOWN.items()
        if known.name in steps
    }


_TABLES = {False: _table(_STEPS), True: _table(_STEPS | _STEPS_OF_OBJECTS)}
