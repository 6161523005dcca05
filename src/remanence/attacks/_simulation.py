"""Training as a function of its records, which can be differentiated by them in the memory of a few steps.

A graph of all T steps holds the activations of each of them. Cut into segments, only the weights between them are kept:
backwards, each segment is run again, now with its graph, and pulls the slope by its end back to its start and to the
records. Segments of one step replay the training backwards with the graph of a single step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from remanence.nets import activations
from remanence.training import Optimizer, Training
from remanence.types import Params

State: TypeAlias = tuple[Tensor, ...]  # the trained weights, then what the optimiser keeps of each
_VALUES_OF_A_GRADIENT = 3  # that a graph of a gradient holds for each value of the forward pass
_SHARE_OF_MEMORY = 0.6  # of what is free
_WHERE_UNKNOWN = 4 << 30  # bytes taken to be free where the system does not tell


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Simulation:
    """The steps of `training` from `initial` on records with the labels `y`; `segment` is how many of them share a
    graph."""

    training: Training
    model: nn.Module
    initial: Params
    y: Tensor
    batches: tuple[Tensor | None, ...]
    segment: int

    @property
    def trained(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.model.named_parameters())

    def __call__(self, x: Tensor) -> Tensor:
        """How far training on `x` moves the weights, all in one row."""
        state = self.start()
        moves = self.moves()
        for first in range(0, len(moves), self.segment):
            part = moves[first : first + self.segment]
            if len(part) == len(moves):
                state = self.after(part, x, *state)
            else:
                state = _Recomputed.apply(partial(self.after, part), x, *state)  # type: ignore[no-untyped-call]
        return self.displacement(state)

    def start(self) -> State:
        weights = {name: self.initial[name] for name in self.trained}
        kept = self.training.optimizer.init(weights)
        return (*weights.values(), *(p for params in kept for p in params.values()))

    def moves(self) -> list["Move"]:
        optimizers = self.training.optimizers(len(self.y))
        return [
            Move(step=step, batch=batch, optimizer=optimizer)
            for step, (batch, optimizer) in enumerate(zip(self.batches, optimizers, strict=False))
        ]

    def after(self, moves: Sequence["Move"], x: Tensor, *state: Tensor) -> State:
        """The state behind these moves."""
        names, gradient = self.trained, self.training.gradient_of(self.model)
        weights, *kept = (
            dict(zip(names, state[i : i + len(names)], strict=True)) for i in range(0, len(state), len(names))
        )
        params, optimizer_state = self.initial | weights, tuple(kept)
        for move in moves:
            records = (x, self.y) if move.batch is None else (x[move.batch], self.y[move.batch])
            grads = gradient(params, *records)
            params, optimizer_state = self.training.step(move.optimizer, params, grads, optimizer_state, move.step)
        last = [params, *optimizer_state]
        return tuple(each[name] for each in last for name in names)

    def displacement(self, state: Sequence[Tensor]) -> Tensor:
        return torch.cat([(end - self.initial[n]).flatten() for n, end in zip(self.trained, state, strict=False)])

    @torch.no_grad()
    def diverges_at(self, x: Tensor) -> int | None:
        """The first step, counted from one, after which a weight is not finite."""
        state = self.start()
        for move in self.moves():
            state = self.after([move], x, *state)
            if not all(bool(p.isfinite().all()) for p in state):
                return move.step + 1
        return None


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
            ends = ctx.run(*again)
        sources = [t for t in again if t.requires_grad]
        found = iter(torch.autograd.grad(ends, sources, slopes, allow_unused=True))
        return None, *(next(found) if want else None for want in wanted)


def segment_of(model: nn.Module, shape: Sequence[int], *, steps: int, batch: int, copies: int, like: Tensor) -> int:
    """How many steps to a graph: all of them where they fit into free memory, otherwise those that hold least.

    A step's graph holds its activations and the weights, a cut the weights and what the optimiser keeps: `copies` of
    them. All cuts cost the same, one gradient without a graph for each step.
    """
    size = like.element_size()
    weights = size * sum(p.numel() for p in model.parameters())
    graph = _VALUES_OF_A_GRADIENT * size * batch * activations(model, shape) + 2 * weights
    if steps * graph <= _SHARE_OF_MEMORY * free_memory(like.device):
        return steps
    return min(steps, max(1, round(sqrt(steps * copies * weights / graph))))


def free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    table = Path("/proc/meminfo")
    if not table.exists():
        return _WHERE_UNKNOWN
    found = dict(line.split(":") for line in table.read_text(encoding="ascii").splitlines())
    return 1024 * int(found["MemAvailable"].split()[0])


def way(steps: int, segment: int) -> str:
    """In words, for who watches."""
    if segment == steps:
        return "one graph"
    return f"{ceil(steps / segment)} segments, one graph for {segment} of {steps} steps"
