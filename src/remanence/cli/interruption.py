"""SIGTERM ends a command as Ctrl-C does: what is finished stays, nothing is half-written, and the exit code says which
signal it was."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_received: list[int] = []  # SIGTERM, once it came


def exit_code() -> int:
    """The exit code of a command that was interrupted: 128 and the number of the signal, as shells say it."""
    return 128 + (signal.SIGTERM if _received else signal.SIGINT)


@contextmanager
def terminable() -> Iterator[None]:
    """Within it SIGTERM raises `KeyboardInterrupt`, once: a second one does not disturb the end."""
    _received.clear()
    if threading.current_thread() is not threading.main_thread():  # where no signal arrives
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _received.append(number)
    raise KeyboardInterrupt
