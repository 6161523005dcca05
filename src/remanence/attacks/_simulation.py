"""Training as a function of its records, which can be differentiated by them in the memory of a few steps.

A graph of all T steps holds the activations of each of them. Cut into segments, only the weights between them are kept:
backwards, each segment is run again, now with its graph, and pulls the slope by its end back to its start and to the
records. Segments of one step replay the training backwards with the graph of a single step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, sqrt
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, final

import torch
from torch import Tensor, nn

from remanence.engine import engine_for
from remanence.models import activations
from remanence.search.distances import Distance, RelativeNorm
from remanence.training import Optimizer, Training
from remanence.types import Params

State: TypeAlias = tuple[Tensor, ...]  # of `Coordinates` the weights, then what the optimiser keeps of each
Read: TypeAlias = tuple[Tensor, ...]  # what steps take from the records
_VALUES_OF_A_GRADIENT = 3  # that a graph of a gradient holds for each value of the forward pass
SHARE_OF_MEMORY = 0.6  # of what is free
_TOO_FAR = 1000.0  # times the victim's way
_WHERE_UNKNOWN = 4 << 30  # bytes taken to be free where the system does not tell


class Coordinates(Protocol):
    """In which the weights are moved: a frozen dataclass, whose `distance` compares their ways."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def prepare(self, done: float) -> None:
        """For a step of the search of which this share is done."""
        ...

    def start(self, records: Tensor) -> Params: ...
    def read(self, x: Tensor) -> Read: ...
    def within(self, x: Tensor) -> Tensor:
        """The records that are simulated in place of these."""
        ...

    @property
    def y(self) -> Tensor: ...
    def gradient(self, weights: Params, read: Read, y: Tensor, batch: Tensor | None) -> Params: ...
    def apart(self, weights: Params, read: Read) -> Tensor:
        """How far the way of these weights is from the victim's."""
        ...

    def told(self) -> str:
        """What to say of memory besides how many steps share a graph."""
        ...


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Whole:
    """The weights as they are, of any net."""

    model: nn.Module
    training: Training
    initial: Params
    final: Params
    y: Tensor
    distance: Distance

    def prepare(self, done: float) -> None:
        pass

    def start(self, records: Tensor) -> Params:
        return {name: self.initial[name] for name, _ in self.model.named_parameters()}

    def read(self, x: Tensor) -> Read:
        return (x,)

    def within(self, x: Tensor) -> Tensor:
        return x

    def gradient(self, weights: Params, read: Read, y: Tensor, batch: Tensor | None) -> Params:
        (x,) = read
        x, y = (x, y) if batch is None else (x[batch], y[batch])
        return engine_for(self.model, self.training, x.shape[1:]).gradient(self.initial | weights, x, y)

    def apart(self, weights: Params, read: Read) -> Tensor:
        return self.distance(self._way({name: self.final[name] for name in weights}), self._way(weights))

    def told(self) -> str:
        return ""

    def _way(self, weights: Params) -> Tensor:
        return torch.cat([(end - self.initial[name]).flatten() for name, end in weights.items()])


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Simulation:
    """The steps of `training` in some coordinates; `segment` is how many of them share a graph."""

    training: Training
    coordinates: Coordinates
    batches: tuple[Tensor | None, ...]
    segment: int

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """How far training on `x` ends from the victim's; `y` may be of each record the shares of the classes."""
        read, moves = self.coordinates.read(x), self.moves(len(x))
        y = self.coordinates.y if y is None else y
        names, state = self._begun(x)
        for first in range(0, len(moves), self.segment):
            part = moves[first : first + self.segment]
            run = partial(self._after, names, part, len(read))
            whole = len(part) == len(moves)
            state = run(*read, y, *state) if whole else _Recomputed.apply(run, *read, y, *state)  # type: ignore[no-untyped-call]
        return self.coordinates.apart(dict(zip(names, state, strict=False)), read)

    def told(self) -> str:
        """In words, for who watches."""
        steps, count = len(self.batches), ceil(len(self.batches) / self.segment)
        graphs = "one graph" if count == 1 else f"{count} segments, one graph for {self.segment} of {steps} steps"
        return graphs + self.coordinates.told()

    def moves(self, records: int) -> list["Move"]:
        optimizers = self.training.optimizers(records)
        return [
            Move(step=step, batch=batch, optimizer=optimizer)
            for step, (batch, optimizer) in enumerate(zip(self.batches, optimizers, strict=False))
        ]

    @torch.no_grad()
    def diverges_at(self, x: Tensor, y: Tensor | None = None) -> int | None:
        """The first step, counted from one, after which a weight is not finite, or all are a thousand times as far from
        the start as the victim's."""
        read, by_length = self.coordinates.read(x), replace(self.coordinates, distance=RelativeNorm())
        y = self.coordinates.y if y is None else y
        names, state = self._begun(x)
        for move in self.moves(len(x)):
            state = self._after(names, [move], len(read), *read, y, *state)
            far = by_length.apart(dict(zip(names, state, strict=False)), read)
            if not (far < _TOO_FAR**2 and all(bool(p.isfinite().all()) for p in state)):
                return move.step + 1
        return None

    def _begun(self, x: Tensor) -> tuple[list[str], State]:
        weights = self.coordinates.start(x)
        kept = self.training.optimizer.init(weights)
        return list(weights), (*weights.values(), *(p for params in kept for p in params.values()))

    def _after(self, names: Sequence[str], moves: Sequence["Move"], reads: int, *tensors: Tensor) -> State:
        """The state behind these moves, from what they read, the labels and the state before."""
        read, y, state = tensors[:reads], tensors[reads], tensors[reads + 1 :]
        weights, *kept = (
            dict(zip(names, state[i : i + len(names)], strict=True)) for i in range(0, len(state), len(names))
        )
        of_optimizer = tuple(kept)
        for move in moves:
            grads = self.coordinates.gradient(weights, read, y, move.batch)
            weights, of_optimizer = self.training.step(move.optimizer, weights, grads, of_optimizer, move.step)
        return tuple(each[name] for each in (weights, *of_optimizer) for name in names)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Move:
    step: int
    batch: Tensor | None
    optimizer: Optimizer


class _Recomputed(torch.autograd.Function):
    """Runs without a graph, and with one when the slope is asked for."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., State], *tensors: Tensor) -> State:
        ctx.run = run
        ctx.save_for_backward(*tensors)
        return run(*tensors)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        again = [t.detach().requires_grad_(want) for t, want in zip(ctx.saved_tensors, wanted, strict=True)]
        with torch.enable_grad():
            pairs = [(end, slope) for end, slope in zip(ctx.run(*again), slopes, strict=True) if end.requires_grad]
        ends, pulls = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(ends, [t for t in again if t.requires_grad], pulls, allow_unused=True))
        return None, *(next(found) if want else None for want in wanted)


def segment_of(model: nn.Module, shape: Sequence[int], *, steps: int, batch: int, copies: int, like: Tensor) -> int:
    """How many steps to a graph: all of them where they fit into free memory, otherwise those that hold least.

    A step's graph holds its activations and the weights, a cut the weights and what the optimiser keeps: `copies` of
    them. All cuts cost the same, one gradient without a graph for each step.
    """
    weights = like.element_size() * sum(p.numel() for p in model.parameters())
    graph = graph_of(model, shape, batch=batch, like=like)
    if steps * graph <= SHARE_OF_MEMORY * free_memory(like.device):
        return steps
    return min(steps, max(1, round(sqrt(steps * copies * weights / graph))))


def graph_of(model: nn.Module, shape: Sequence[int], *, batch: int, like: Tensor) -> int:
    """Bytes that autograd's graph of a step holds, by estimate."""
    numbers = _VALUES_OF_A_GRADIENT * batch * activations(model, shape) + 2 * sum(p.numel() for p in model.parameters())
    return like.element_size() * numbers


def free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    table = Path("/proc/meminfo")
    if not table.exists():
        return _WHERE_UNKNOWN
    found = dict(line.split(":") for line in table.read_text(encoding="ascii").splitlines())
    return 1024 * int(found["MemAvailable"].split()[0])
