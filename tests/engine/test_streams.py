"""The order that side streams keep, by streams that only write down what they are told."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pytest
import torch

from remanence.engine import streams
from remanence.engine.streams import SideStreams


@dataclass(eq=False)
class Stream:
    name: str
    log: list[str]

    def wait_stream(self, other: "Stream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        return f"an event of {self.name}"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    log = list[str]()

    def entered(stream: Stream) -> AbstractContextManager[None]:
        log.append(f"on {stream.name}")
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream("current", log))
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(streams, "_streams", lambda _: tuple(Stream(name, log) for name in "abc"))
    return log


def test_work_waits_for_the_current_stream_and_join_for_the_streams_that_had_any(log: list[str]) -> None:
    side = SideStreams(torch.device("cuda", 0))
    assert side.run(lambda: log.append("kernel") or 1) == 1
    assert log == ["a waits for current", "on a", "kernel"]
    ahead = side.run_ahead(lambda: log.append("convolution") or 2)
    assert log[3:] == ["b waits for current", "on b", "convolution"]
    assert ahead() == 2
    side.join()
    assert log[6:] == ["current waits for an event of b", "current waits for a", "current waits for b"]


def test_streams_take_turns_and_what_work_reads_is_held_until_join(log: list[str]) -> None:
    side = SideStreams(torch.device("cuda", 0))
    for _ in range(4):
        side.run(lambda: None)
    assert [line for line in log if line.startswith("on")] == ["on a", "on b", "on c", "on a"]
    assert len(side.held) == 4
    side.join()
    assert not side.held
    assert [line for line in log if line.startswith("current")] == [f"current waits for {name}" for name in "abc"]


def test_without_a_cuda_device_work_is_done_in_turn(log: list[str]) -> None:
    side, done = SideStreams(torch.device("cpu")), list[str]()
    ahead = side.run_ahead(lambda: done.append("ahead") or 1)
    assert side.run(lambda: done.append("now") or 2) == 2
    assert (ahead(), done) == (1, ["now", "ahead"])
    side.join()
    assert log == []
