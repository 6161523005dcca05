"""Progress on stderr for anything that takes more than a few seconds, and a limit of time that every such loop keeps.

On a terminal and in a notebook it is a bar; elsewhere, as in the log of a CI job, a line now and then.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from remanence.errors import MAX_MESSAGE, printable

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

Mode: TypeAlias = Literal["quiet", "normal", "verbose"]
LINES = 30.0  # seconds between two lines where there is no terminal
SOON = 1.0  # seconds: work of many short steps that is done by then needs no bar

_limit: "ContextVar[Limit | None]" = ContextVar("limit", default=None)
_listener: "ContextVar[Callable[[str], None] | None]" = ContextVar("listener", default=None)
_mode: Mode = "normal"
_shown: "list[Progress]" = []  # at most one: a loop inside another adds its bar below


class OutOfTime(Exception):
    """Work did not end within its `time_limit`."""


class Limit:
    """A limit of time, and whether a loop was ended by it."""

    def __init__(self, deadline: float) -> None:
        self.deadline, self.reached = deadline, False


@contextmanager
def time_limit(seconds: float) -> Iterator[Limit]:
    """Within it, loops that are tracked end after `seconds`: a search with what it has, others with `OutOfTime`."""
    outer, deadline = _limit.get(), monotonic() + seconds
    limit = Limit(deadline if outer is None else min(outer.deadline, deadline))
    token = _limit.set(limit)
    try:
        yield limit
    finally:
        _limit.reset(token)
        if outer is not None and limit.reached and monotonic() > outer.deadline:
            outer.reached = True


def track(items: Iterable[T], *, total: int, label: str, after: float = 0.0, may_stop: bool = False) -> Iterator[T]:
    """Yield `items`, showing how far along `total` they are and the time left, from `after` seconds on.

    Once a `time_limit` is over, no more items come where the loop `may_stop` after any of them but before the first.
    """
    yield from _limited(_shown_along(items, total=total, label=label, after=after), label, may_stop=may_stop)


def _limited(items: Iterator[T], label: str, *, may_stop: bool) -> Iterator[T]:
    limit = _limit.get()
    if limit is None:
        yield from items
        return
    for done, item in enumerate(items):
        if monotonic() > limit.deadline and (done or not may_stop):
            limit.reached = True
            if may_stop:
                return
            raise OutOfTime(label)
        yield item


def _shown_along(items: Iterable[T], *, total: int, label: str, after: float) -> Iterator[T]:
    if _mode == "quiet":
        yield from items
        return
    if not _interactive():
        yield from _logged(items, total, label)
        return
    left, done, start = iter(items), 0, monotonic()
    if after:
        for item in left:
            yield item
            done += 1
            if monotonic() - start >= after:
                break
        else:
            return
    outermost = not _shown
    bars = _start_bars() if outermost else _shown[0]
    task = bars.add_task(label, total=total, completed=done)
    try:
        for item in left:
            yield item
            bars.advance(task)
    finally:
        bars.remove_task(task)
        if outermost:
            _shown.pop().stop()


def _logged(items: Iterable[T], total: int, label: str) -> Iterator[T]:
    """Yield `items` with a line every half minute."""
    start = last = monotonic()
    for done, item in enumerate(items):
        now = monotonic()
        if done and now - last >= (LINES if _mode == "normal" else LINES / 6):
            last, remaining = now, (now - start) / done * (total - done)
            say(f"  {label}: {done} of {total}, about {remaining:.0f} s left")
        yield item


def say(text: str) -> None:
    """Print a line on stderr, above any bar, unless the program is quiet; a stranger's words in it are escaped."""
    if _mode == "quiet":
        return
    text = printable(text, MAX_MESSAGE)
    if listener := _listener.get():
        listener(text)
    elif _shown:
        _shown[0].console.print(text, markup=False, highlight=False)
    else:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def heard_by(listener: Callable[[str], None]) -> Iterator[None]:
    """Within it lines go to `listener`, which carries them to another process, and not to stderr."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def mode() -> Mode:
    """How much is said on stderr."""
    return _mode


def set_mode(mode: Mode) -> None:
    """How much is said on stderr: nothing, lines and bars, or more lines."""
    global _mode
    _mode = mode


def _interactive() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _start_bars() -> "Progress":
    from rich.console import Console
    from rich.progress import Progress

    _shown.append(Progress(console=Console(stderr=True), transient=True))
    _shown[0].start()
    return _shown[0]
