"""What workers say on its way to the process that waits for them: they have no terminal."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from remanence.progress import heard_by, mode, say

_PATIENCE = 0.5  # seconds


@final
class Lines:
    """Lines of the workers, said here one by one, each after the title of the work that it is about.

    They pass through a process of the cluster; where that dies they are lost, and nothing else is.
    """

    def __init__(self, titles: Sequence[str]) -> None:
        import ray

        self._titles, self._asked = titles, None  # the question that is not answered yet
        self.to_here = ray.remote(num_cpus=0)(Mailbox).remote() if mode() != "quiet" else None

    def say_new(self) -> None:
        """Say what came since the last call; a cluster that does not answer is not waited for."""
        import ray
        from ray.exceptions import RayError

        if self.to_here is None:
            return
        asked = self._asked or self.to_here.take.remote()
        answered = ray.wait([asked], timeout=_PATIENCE)[0]
        self._asked = None if answered else asked
        try:
            found = ray.get(asked) if answered else []
        except RayError:
            self.to_here = None
            return
        for position, text in found:
            say(f"{self._titles[position]}: {text.lstrip()}")


@final
class Mailbox:
    """Lines that nobody has taken yet, with the position of the work in its list."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, str]] = []

    def put(self, position: int, text: str) -> None:
        self._lines.append((position, text))

    def take(self) -> list[tuple[int, str]]:
        taken, self._lines = self._lines, []
        return taken


@contextmanager
def heard(mailbox: Any, position: int) -> Iterator[None]:
    """On a worker: within it every line goes to the mailbox, if there is one."""
    if mailbox is None:
        yield
        return
    with heard_by(lambda text: mailbox.put.remote(position, text)):
        yield
