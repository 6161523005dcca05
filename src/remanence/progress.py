"""A progress bar on stderr for anything that takes more than a few seconds; none if stderr is no terminal."""

import sys
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

SOON = 1.0  # seconds: work of many short steps that is done by then needs no bar

_shown: "list[Progress]" = []  # at most one: a loop inside another adds its bar below


def track(items: Iterable[T], *, total: int, label: str, after: float = 0.0) -> Iterator[T]:
    """Yield `items`, showing how far along `total` they are and the time left, from `after` seconds on."""
    if not sys.stderr.isatty():
        yield from items
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


def _start_bars() -> "Progress":
    from rich.console import Console
    from rich.progress import Progress

    _shown.append(Progress(console=Console(stderr=True), transient=True))
    _shown[0].start()
    return _shown[0]
