"""The backend of one process."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar, final

A = TypeVar("A")
B = TypeVar("B")


@final
@dataclass(frozen=True, kw_only=True)
class Local:
    """Computes one item after the other in this process."""

    def map(self, fn: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        return map(fn, items)
