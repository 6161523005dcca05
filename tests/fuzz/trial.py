"""One file given to one parser: what came of it."""

import sys
import time
import traceback
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, final

from targets import Target

from remanence.errors import BadInput

Verdict: TypeAlias = Literal["parsed", "refused", "message", "traceback", "executed", "slow", "memory", "died"]
FAILURES: tuple[Verdict, ...] = ("message", "traceback", "executed", "slow", "memory", "died")
MAX_MESSAGE = 1000  # characters
_PROGRAMS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "subprocess.Popen", "pty.spawn")
_RUNS = {*_PROGRAMS, "pickle.find_class", "socket.connect"}
_watched: list[set[str]] = []  # of the trial that runs now


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a file: the verdict, words on it, the seconds, and the bytes of memory where they were measured."""

    verdict: Verdict
    said: str = ""
    seconds: float = 0.0
    memory: int = 0

    @property
    def failed(self) -> bool:
        return self.verdict in FAILURES


def try_file(target: Target, path: Path) -> Outcome:
    """Parse `path`; nothing may be unpickled, started or connected to meanwhile, as Python's audit events tell."""
    events = set[str]()
    _watched.append(events)
    start = time.process_time()
    try:
        verdict, said = _parsed(target, path)
    finally:
        _watched.pop()
    seconds = time.process_time() - start
    if events:
        return Outcome(verdict="executed", said=", ".join(sorted(events)), seconds=seconds)
    return Outcome(verdict=verdict, said=said, seconds=seconds)


def _parsed(target: Target, path: Path) -> tuple[Verdict, str]:
    try:
        target.sound(target.parse(path))
    except BadInput as error:
        said = str(error)
        fault = f"{len(said)} characters" if len(said) > MAX_MESSAGE else _unprintable(said)
        return ("message", f"{fault} in: {said[:300]!r}") if fault else ("refused", f"[{error.code}] {said}")
    except Exception:  # what a parser lets through is what we look for
        return "traceback", traceback.format_exc(limit=-3)
    return "parsed", ""


def _unprintable(text: str) -> str:
    """The control characters of a text that would reach a terminal, by their names; empty where there are none."""
    odd = {
        each for each in text if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") or "\u202a" <= each <= "\u202e"
    }
    return ", ".join(sorted(f"U+{ord(each):04X}" for each in odd))


def _watch(event: str, _: object) -> None:
    if event in _RUNS and _watched:
        _watched[-1].add(event)


sys.addaudithook(_watch)
