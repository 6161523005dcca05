"""Streams beside the current one of a CUDA device. A kernel of a small network leaves most of the device idle, so what
a pass does not wait for runs next to it; a captured graph keeps that order. Measured: docs/decisions/0026."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, final

import torch

_COUNT = 4  # 1 and 2 are slower
T = TypeVar("T")


@final
class SideStreams:
    """The side streams of one pass; on another device than CUDA, work is done at once or when it is asked for.

    Work waits for all that was launched before it on the current stream. What it reads is held until `join`: the
    current stream may overwrite memory as soon as that is freed.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.streams = device, _streams(device) if device.type == "cuda" else ()
        self.held = list[Callable[[], Any]]()

    def run(self, work: Callable[[], T]) -> T:
        """What `work` returns; on a CUDA device nothing may read it before `join`."""
        return self._launched(work)[0] if self.streams else work()

    def run_ahead(self, work: Callable[[], T]) -> Callable[[], T]:
        """A function that waits for `work`, which is launched now, and returns what it found."""
        if not self.streams:
            return work
        found, done = self._launched(work)

        def awaited() -> T:
            torch.cuda.current_stream(self.device).wait_event(done)
            return found

        return awaited

    def _launched(self, work: Callable[[], T]) -> tuple[T, torch.cuda.Event]:
        stream = self.streams[len(self.held) % len(self.streams)]
        self.held.append(work)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            return work(), stream.record_event()

    def join(self) -> None:
        """Let the current stream wait for all work, whose results may then be read."""
        for stream in self.streams[: len(self.held)]:  # a capture must not wait for one that takes no part in it
            torch.cuda.current_stream(self.device).wait_stream(stream)
        self.held.clear()


@cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(_COUNT))
