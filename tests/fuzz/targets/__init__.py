"""The targets of the fuzzing: each parser of files from outside, with valid files to damage and crafted ones.

One file for each target, which has a `TARGET`; a new file is found by its name, here and by `python tests/fuzz`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from os import getpid
from pathlib import Path
from random import Random
from tempfile import gettempdir
from typing import final

HERE = Path(__file__).parent
CANARY = Path(gettempdir()) / f"remanence-fuzz-canary-{getpid()}"  # crafted files make it, where they are executed


def no_files() -> Iterable[tuple[str, bytes]]:
    """No crafted files."""
    return ()


@final
@dataclass(frozen=True, kw_only=True)
class Target:
    """A parser and what it is tried with.

    `parse` takes the path of one file, alone in a folder of its own, and gives anything or raises `BadInput`; what else
    it raises is a failure. What a parser needs besides, such as files around that one, it makes itself. `seeds` gives
    valid files by name, which are damaged; `crafted` files made by hand, which are taken as they are: past failures
    first of all, as code that makes them; `made` gives a hostile file that fits the format further than damage does;
    `words` are pieces of bytes that the format knows, put into damaged files; `sound` checks what was parsed by
    assertions.
    """

    parse: Callable[[Path], object]
    seeds: Callable[[], Mapping[str, bytes]]
    crafted: Callable[[], Iterable[tuple[str, bytes]]] = no_files
    made: Callable[[Random], tuple[str, bytes]] | None = None
    words: tuple[bytes, ...] = ()
    sound: Callable[[object], None] = lambda parsed: None
    max_seconds: float = 5.0
    max_memory: int = 1 << 30  # bytes above what the process had before


def target_names() -> list[str]:
    """The names of all targets."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem != "__init__")


def target_named(name: str) -> Target:
    """The target of the file `name`.py beside this one."""
    target: Target = import_module(f"targets.{name}").TARGET
    return target


def past_failures(name: str) -> dict[str, bytes]:
    """The committed files that a target once failed on, by name."""
    folder = HERE.parent / "corpus" / name
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*"))}
