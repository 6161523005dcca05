"""A progress bar on stderr for anything over a few seconds, and none when stderr is not a terminal."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], *, total: int, label: str) -> Iterator[T]:
    """Yield `items`, showing how far along `total` they are and the time left."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track as bar

    yield from bar(items, total=total, description=label, console=Console(stderr=True), transient=True)
