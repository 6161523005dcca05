"""A backend is one ordered, lazy map."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Backend(Protocol):
    def map(self, fn: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """`fn` of each item, in the order of the items, computed no earlier than needed."""
        ...
