"""The protocol of backends: one ordered, lazy map."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Backend(Protocol):
    """Where independent items of work are computed."""

    def map(self, fn: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """Yield `fn(item)` for each item, in the order of the items, computed no earlier than needed."""
