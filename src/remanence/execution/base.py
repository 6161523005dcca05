"""The protocol of backends, one ordered, lazy map; and the backend of one process."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar, final

A = TypeVar("A")
B = TypeVar("B")


class Backend(Protocol):
    """Where independent items of work are computed."""

    def map(self, fn: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """Yield `fn(item)` for each item, in the order of the items, computed no earlier than needed."""


@final
@dataclass(frozen=True, kw_only=True)
class Local:
    """Computes one item after the other in this process."""

    def map(self, fn: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        return map(fn, items)
