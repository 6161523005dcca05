"""The backend of a Ray cluster: one started here, or one that is running.

Every task uses as many threads as this process, because the bits of a product may depend on their number, and asks Ray
for as many CPUs. With `OMP_NUM_THREADS=1` there is one task for each core. Long work on a GPU asks for one CPU only: a
machine runs as much of it at once as it has GPUs.
"""

import io
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.execution._cluster import Watch, check_reachable, connect, leave_at_once, lost, unreachable
from remanence.execution._lines import Lines, heard
from remanence.progress import Mode, mode, set_mode

A = TypeVar("A")
B = TypeVar("B")


@final
@dataclass(frozen=True, kw_only=True)
class Ray:
    """Distributes items over the workers of a Ray cluster.

    `address` is that of a running cluster, such as `auto` or `HOST:6379`; without it, one is started on this machine
    and stays until the process ends. A process is in one cluster: if it is in one already, that one is used.
    """

    address: str | None = None
    workers: int | None = None  # of a cluster started here; None: as many as the cores can carry
    gpus: float = 1.0  # requested by each task whose function holds CUDA tensors; half a GPU is 0.5
    retries: int = 3  # how often a task is given to another worker after its worker died

    def __post_init__(self) -> None:
        if find_spec("ray") is None:
            message = 'the Ray backend needs ray, which is not installed: `pip install "remanence[ray]"`'
            raise BadInput(message, code="missing-dependency")
        if self.workers is not None and (self.workers < 1 or self.address):
            message = (
                f"`workers` must be 1 or more, and only for a cluster started here (without `address`), "
                f"got {self.workers} with `address` {self.address}"
            )
            raise BadInput(message, code="conflict" if self.address else "out-of-range", argument="workers")

    def map(self, fn: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        import ray
        from ray.exceptions import RayError

        threads = torch.get_num_threads()
        self.connect()
        function, on_cuda = _pack(fn)
        needs = {"CPU": float(threads), "GPU": self.gpus if on_cuda else 0.0}
        tasks: deque[Any] = deque()
        try:
            window = 2 * _slots(needs)  # while one result is used, the next task waits at its worker
            task = ray.remote(_call).options(num_cpus=threads, num_gpus=needs["GPU"], max_retries=self.retries)
            watch = Watch()
            shared = ray.put(function)  # once, however many tasks take it
            for item in items:
                watch.look()
                tasks.append(task.remote(shared, _pack(item)[0], threads))
                if len(tasks) == window:
                    yield self._result(tasks, watch)
            while tasks:
                yield self._result(tasks, watch)
        except RayError:
            raise lost() from None
        # Tasks that nobody waits for any more, two for each worker, are left to end: Ray aborts this process where one
        # ends while it is cancelled.

    def as_finished(
        self, fn: Callable[[A], B], items: Sequence[A], *, titles: Sequence[str], cuda: bool
    ) -> Iterator[tuple[int, B]]:
        """Yield the position of each item and `fn` of it, as soon as it is computed, in any order.

        It is for work that takes minutes or hours. With `cuda` each item has a GPU of its own. What is said on a worker
        is said here, after the title of the item.
        """
        import ray
        from ray.exceptions import RayError

        threads = torch.get_num_threads()
        self.connect()
        needs = {"CPU": 1.0, "GPU": self.gpus} if cuda else {"CPU": float(threads), "GPU": 0.0}
        try:
            window = 2 * _slots(needs)
            task = ray.remote(_call_heard).options(
                num_cpus=needs["CPU"], num_gpus=needs["GPU"], max_retries=self.retries
            )
            watch, shared, lines = Watch(), ray.put(_pack(fn)[0]), Lines(titles)
            waiting, running = deque(enumerate(items)), dict[Any, int]()
            while waiting or running:
                while waiting and len(running) < window:
                    position, item = waiting.popleft()
                    watch.look()
                    sent = task.remote(shared, _pack(item)[0], threads, mode(), lines.to_here, position)
                    running[sent] = position
                ready = self._first(list(running), watch, lines)
                yield running.pop(ready), self._value(ready, watch)
        except RayError:
            raise lost() from None

    def connect(self) -> None:
        """Join the cluster, unless this process is in one; an address without an answer is refused within seconds."""
        import ray

        if ray.is_initialized():
            return
        threads = torch.get_num_threads()
        cpus = threads * (self.workers or max(1, _cores() // threads))
        if self.address is not None:
            check_reachable(self.address)
        try:
            if self.address is None:
                connect(address="local", num_cpus=cpus, include_dashboard=False)
            else:
                connect(address=self.address)
        except Exception as error:  # Ray raises plain ones
            reason = str(error).strip().partition("\n")[0]
            if self.address is not None:
                raise unreachable(self.address, reason) from None
            raise ConnectionError(f"Ray could not be started here ({reason.rstrip('.')}): repeat the command") from None

    def leave_at_once(self, code: int) -> None:
        """End this process, which was interrupted, with `code`, if it was given to Ray already."""
        leave_at_once(code)

    def _result(self, tasks: deque[Any], watch: Watch) -> Any:
        """Remove the first task from the queue and return its value."""
        self._first([tasks[0]], watch)
        return self._value(tasks.popleft(), watch)

    def _first(self, tasks: list[Any], watch: Watch, lines: Lines | None = None) -> Any:
        """The task that ends first; meanwhile what workers say is said."""
        import ray
        from ray.exceptions import RayError

        try:
            watch.look()
            while not (ready := ray.wait(tasks, timeout=1)[0]):
                watch.look()
                if lines:
                    lines.say_new()
            if lines:
                lines.say_new()
            return ready[0]
        except (RayError, BrokenPipeError):  # the latter where the raylet died meanwhile
            raise lost() from None

    def _value(self, task: Any, watch: Watch) -> Any:
        """The value of a task that has ended; an exception of its function is raised here."""
        import ray
        from ray.exceptions import RayError, RayTaskError, WorkerCrashedError

        watch.look()
        try:
            packed = ray.get(task)
        except RayTaskError as error:
            raise error.cause from error
        except WorkerCrashedError:
            raise ConnectionError(
                f"{self.retries + 1} workers died on the same task: see whether they have enough memory, "
                "and repeat the command"
            ) from None
        except RayError:  # the raylet or another part of the cluster died
            raise lost() from None
        return pickle.loads(packed)


def _call(function: bytes, item: bytes, threads: int) -> bytes:
    """Run a task on a worker. The bytes come from the process that submitted it, never from a file."""
    torch.set_num_threads(threads)
    return _pack(pickle.loads(function)(pickle.loads(item)))[0]


def _call_heard(function: bytes, item: bytes, threads: int, said: Mode, lines: Any, position: int) -> bytes:
    """Run a task of which the lines are said where it was submitted."""
    set_mode(said)
    with heard(lines, position):
        return _call(function, item, threads)


def _pack(thing: object) -> tuple[bytes, bool]:
    """`thing` serialised for another process, and whether it holds CUDA tensors.

    Tensors are sent through the host and arrive on the device of their type that the worker was given. Of a view only
    the view is sent, where torch would send the storage behind it.
    """
    from ray import cloudpickle

    kinds = set()

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        def reducer_override(self, each: Any) -> Any:
            if type(each) is not Tensor or each.device.type not in ("cpu", "cuda"):
                return super().reducer_override(each)
            kinds.add(each.device.type)
            raw = each.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            return _unpack_tensor, (raw, each.dtype, each.shape, each.device.type)

    buffer = io.BytesIO()
    Pickler(buffer).dump(thing)
    return buffer.getvalue(), "cuda" in kinds


def _unpack_tensor(raw: Any, dtype: torch.dtype, shape: torch.Size, kind: str) -> Tensor:
    return torch.from_numpy(raw).view(dtype).reshape(shape).to(kind)


def _slots(needs: dict[str, float]) -> int:
    """How many tasks the cluster runs at once; a task that fits on no machine would wait for ever, so it is refused."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {name: need for name, need in needs.items() if need}
    slots = sum(min(int(node.get(name, 0) // need) for name, need in wanted.items()) for node in nodes)
    if not slots:
        raise BadInput(
            f"no machine of the Ray cluster has the {needs['CPU']:g} CPUs and {needs['GPU']:g} GPUs that a task asks "
            "for: lower the threads with OMP_NUM_THREADS, or work on the CPU",
            code="not-enough-resources",
        )
    return slots


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
