"""Trials in a process of their own: one that hangs is ended, one that dies is noticed, its memory is measured."""

import multiprocessing
import resource
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from targets import Target, target_named
from trial import Outcome, try_file

_ADDRESSES = 8 << 30  # bytes: a bomb ends in a MemoryError there, before the machine suffers
_GRACE = 1.0  # seconds beyond the limit before a process is ended


class Worker:
    """A process that tries files with the target `name`; it is started again after one that hangs or dies."""

    def __init__(self, name: str) -> None:
        self.name, self.target = name, target_named(name)
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(self.name, other), daemon=True)
        self._process.start()
        other.close()
        self._connection.recv()  # what it imports is not counted

    def try_file(self, path: Path) -> Outcome:
        """As `trial.try_file`, with the verdicts `slow`, `memory` and `died`."""
        limit = self.target.max_seconds
        self._connection.send(path)
        if not self._connection.poll(limit + _GRACE):
            self._restart()
            return Outcome(verdict="slow", said="it was ended", seconds=limit + _GRACE)
        try:
            outcome: Outcome = self._connection.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            self._restart()
            return Outcome(verdict="died", said=f"exit code {code}")
        if outcome.failed:
            return outcome
        if outcome.seconds > limit:
            return replace(outcome, verdict="slow")
        return replace(outcome, verdict="memory") if outcome.memory > self.target.max_memory else outcome

    def _restart(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, where: TracebackType | None) -> None:
        self.close()


def _serve(name: str, connection: Connection) -> None:
    target = target_named(name)
    _warm_up(target)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + _ADDRESSES,) * 2)
    connection.send("ready")
    while True:
        path = connection.recv()
        before = _reset_peak()
        outcome = try_file(target, path)
        connection.send(replace(outcome, memory=max(_memory("VmHWM") - before, 0)))


def _warm_up(target: Target) -> None:
    """Parse the valid files once: what that imports is not counted."""
    with TemporaryDirectory() as folder:
        for file, content in target.seeds().items():
            (Path(folder) / file).write_bytes(content)
            try_file(target, Path(folder) / file)


def _reset_peak() -> int:
    """Forget the peak of memory so far, where the system can; the bytes in use now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(field: str) -> int:
    """A line of the process's status, in bytes; elsewhere than on Linux the peak of all its life."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _address_space() -> int:
    try:
        return _memory("VmSize")
    except StopIteration:
        return 0
