"""The map over the workers of a cluster on this machine."""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from refusals import refused

import remanence.engine.ensembles.chunked
from remanence import DPGD, SGD, Training, train_victim
from remanence.data import Split
from remanence.errors import BadInput
from remanence.execution import Ray
from remanence.execution.ray import _pack
from remanence.models import initial_params, mlp
from remanence.releases import AllButOne, all_but_one
from remanence.shadow import Store, build_bank

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]  # one cluster, on one worker


def test_results_come_in_order_and_tasks_only_as_they_are_needed(cluster: Ray) -> None:
    asked = []

    def items() -> Iterator[int]:
        for item in range(20):
            asked.append(item)
            yield item

    def later_first(item: int) -> int:
        time.sleep(0.05 / (item + 1))
        return item * 10

    mapped = cluster.map(later_first, items())
    assert asked == []
    assert next(mapped) == 0
    assert asked == [0, 1, 2, 3]  # two for each worker
    assert list(mapped) == [10 * item for item in range(1, 20)]


def test_two_items_are_at_work_at_once(cluster: Ray, tmp_path: Path) -> None:
    def meet(item: int) -> int:
        (tmp_path / str(item)).touch()
        for _ in range(2000):
            if (tmp_path / str(1 - item)).exists():
                return os.getpid()
            time.sleep(0.01)
        raise TimeoutError("the other one did not come")

    assert len(set(cluster.map(meet, [0, 1]))) == 2


def test_what_a_task_raises_is_raised_here_and_not_tried_again(cluster: Ray, tmp_path: Path) -> None:
    def refusing(item: int) -> None:
        with (tmp_path / "calls").open("a") as calls:
            calls.write("x")
        raise BadInput("`item` is wrong: give another", code="out-of-range", argument="item")

    with refused("out-of-range", "item"):
        list(cluster.map(refusing, [0]))
    assert (tmp_path / "calls").read_text() == "x"


def test_workers_use_as_many_threads_as_this_process(cluster: Ray) -> None:
    assert list(cluster.map(lambda item: torch.get_num_threads(), [0])) == [torch.get_num_threads()]


TRAININGS = {
    "full batch": Training(epochs=5),
    "batches": Training(optimizer=SGD(lr=0.1), epochs=1, batch_size=20),
    "noise": Training(optimizer=SGD(lr=0.1), epochs=2, privacy=DPGD(clip=1.0, noise=0.1)),
}


@pytest.mark.parametrize("training", TRAININGS)
def test_the_bank_is_that_of_the_local_backend_to_the_bit(
    cluster: Ray, parts: Split, tmp_path: Path, training: str
) -> None:
    release = released(parts, TRAININGS[training])
    local = build_bank(release, parts.public, seed=3, store=Store(folder=tmp_path / "local"))
    spread = build_bank(release, parts.public, seed=3, store=Store(folder=tmp_path / "ray"), backend=cluster)
    assert torch.equal(spread.weights, local.weights)
    shards = {path.name: path.read_bytes() for path in (tmp_path / "local").iterdir()}
    assert len(shards) == 4
    assert {path.name: path.read_bytes() for path in (tmp_path / "ray").iterdir()} == shards


def released(parts: Split, training: Training) -> AllButOne:
    model = mlp(parts.fixed.shape, 10, hidden=(4,))
    private = parts.private.take(slice(0, 1))
    made = train_victim(model, Training(epochs=0), initial_params(model, seed=0), parts.fixed, private, seed=0)
    release = all_but_one(made).release
    return AllButOne(**(vars(release) | {"training": training}))


def test_a_machine_with_another_memory_is_refused(cluster: Ray, parts: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remanence.engine.ensembles.chunked, "CPU_CHUNK", 200)  # here; the workers cut at 128
    with refused("conflict", "backend"):
        build_bank(released(parts, Training(epochs=1)), parts.public, seed=0, backend=cluster)


def test_a_task_that_fits_nowhere_is_refused(cluster: Ray) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with refused("not-enough-resources"):
            list(cluster.map(abs, [1]))
    finally:
        torch.set_num_threads(before)


def test_of_a_slice_only_the_slice_travels() -> None:
    large = torch.zeros(1000, 1000)
    assert len(_pack(large[:2])[0]) < 20_000
    assert len(_pack(large)[0]) > 4_000_000


def test_tensors_arrive_as_they_left(cluster: Ray) -> None:
    sent = [
        each.to(dtype)
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)
        for each in (torch.arange(6).reshape(2, 3).T, torch.tensor(1), torch.zeros(0, 4))
    ]
    for there, back in zip(sent, cluster.map(lambda x: x, sent), strict=True):
        assert back.dtype == there.dtype
        assert torch.equal(back, there)
        back += back.clone()  # it may be written to


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with refused("missing-dependency"):
        Ray()


@pytest.mark.parametrize(
    ("fields", "code"), [({"workers": 0}, "out-of-range"), ({"workers": 2, "address": "auto"}, "conflict")]
)
def test_workers_are_those_of_a_cluster_started_here(fields: dict[str, Any], code: str) -> None:
    with refused(code, "workers"):
        Ray(**fields)


MALFORMED = [
    "",
    "127.0.0.1",
    "127.0.0.1:abc",
    "127.0.0.1:0",
    "127.0.0.1:99999",
    "ray://",
    "http://127.0.0.1:1",
    "a b:1",
]


@pytest.mark.parametrize(
    "address", ["auto", "no such place", "127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1", *MALFORMED]
)
def test_a_cluster_that_does_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    start = time.monotonic()
    with refused("unreachable", "address") as caught:
        next(Ray(address=address).map(abs, [1]))
    assert time.monotonic() - start < 10
    assert "\n" not in str(caught.value)


def test_what_listens_but_is_no_cluster_is_refused_within_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        with refused("unreachable", "address"):
            Ray(address=f"127.0.0.1:{silent.getsockname()[1]}").connect()
        assert time.monotonic() - start < 10
    assert capfd.readouterr() == ("", "")


def test_joining_a_cluster_leaves_the_handler_of_sigterm(cluster: Ray) -> None:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_sigterm_while_ray_starts_comes_to_our_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []

    def init(**_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray does
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        Ray(workers=1).connect()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


# last, since whoever comes after a death waits for another worker


def test_a_bank_survives_the_death_of_a_worker(cluster: Ray, parts: Split, tmp_path: Path) -> None:
    class Mortal:
        """Takes one worker with it, in the middle of its work."""

        def map(self, fn: Any, items: Any) -> Iterator[Any]:
            return cluster.map(partial(die_once, fn, tmp_path / "died"), items)

    def die_once(fn: Any, mark: Path, item: Any) -> Any:
        made = fn(item)
        if item[0] and not mark.exists():
            mark.touch()
            os._exit(1)
        return made

    release = released(parts, TRAININGS["noise"])
    bank = build_bank(release, parts.public, seed=3, backend=Mortal())
    assert (tmp_path / "died").exists()
    assert torch.equal(bank.weights, build_bank(release, parts.public, seed=3).weights)


def test_a_task_that_kills_every_worker_is_given_up(cluster: Ray, tmp_path: Path) -> None:
    def deadly(item: int) -> None:
        with (tmp_path / "deaths").open("a") as deaths:
            deaths.write("x")
        os._exit(1)

    with pytest.raises(ConnectionError):
        list(Ray(retries=1).map(deadly, [0]))
    assert (tmp_path / "deaths").read_text() == "xx"
