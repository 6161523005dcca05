"""Training as a differentiable function of its records, in the memory of a few steps (gradient checkpointing).

A graph of all T steps holds the activations of each of them. Split into segments, only the weights between segments are
stored: in the backward pass each segment is run again, now with its graph, and propagates the gradient by its last
weights to its first ones and to the records. Segments of one step hold the graph of a single step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, sqrt
from pathlib import Path
from typing import Any, Protocol, TypeAlias, final

import torch
from torch import Tensor, nn

from remanence.engine.base import GenericEngine
from remanence.engine.chooser import engine_for
from remanence.models import activations
from remanence.training import Optimizer, Training
from remanence.types import Data, Params

State: TypeAlias = tuple[Tensor, ...]  # weights in the coordinates of `Dynamics`, then the optimizer's moments of each
Inputs: TypeAlias = tuple[Tensor, ...]  # what steps need of the records
_MAX_RATIO = 1000.0  # of the norms of a simulated update and the victim's
USABLE_FRACTION = 0.6  # of the free memory, that graphs may fill
_VALUES_PER_ACTIVATION = 3  # that a graph of a gradient holds for each value of the forward pass
_ASSUMED_FREE = 4 << 30  # bytes, where the system does not say


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Products:
    """Inner products (scalars) of the victim's update `target` and the simulated `update`, neither of them formed."""

    target: Tensor  # <target, target>
    product: Tensor  # <target, update>
    update: Tensor  # <update, update>


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Vectors:
    """The victim's update `target` and the simulated `update`, flat."""

    target: Tensor
    update: Tensor


Comparison: TypeAlias = Products | Vectors


class Dynamics(Protocol):
    """Gradients of a network in coordinates of its weights that suit it."""

    def set_progress(self, progress: float) -> None:
        """Prepare for a step of the search of which this fraction is done."""

    def initial_weights(self, records: Tensor) -> Params: ...

    def inputs(self, x: Tensor) -> Inputs: ...

    def project(self, x: Tensor) -> Tensor:
        """The records that are simulated in place of these."""

    def gradient(self, weights: Params, inputs: Inputs, y: Tensor, batch: Tensor | None) -> Params: ...

    def compare(self, weights: Params, inputs: Inputs) -> Comparison:
        """The victim's update with that to these weights."""

    def describe(self) -> str:
        """What to say of memory besides how many steps form a graph."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class GenericDynamics:
    """The weights as they are, of any network, by autograd; those that the victim's training left alone are frozen."""

    model: nn.Module
    training: Training
    initial: Params
    final: Params
    trained: tuple[str, ...]  # the names that `updated_names` gives
    fixed: Data | None = None  # records that come before those that are given: nothing is propagated to them

    @classmethod
    def from_release(
        cls, model: nn.Module, training: Training, initial: Params, final: Params, *, fixed: Data | None = None
    ) -> "GenericDynamics":
        """Of the parameters that the victim's training changed."""
        trained = updated_names(model, initial, final)
        return cls(model=model, training=training, initial=initial, final=final, trained=trained, fixed=fixed)

    def set_progress(self, progress: float) -> None:
        pass

    def initial_weights(self, records: Tensor) -> Params:
        return {name: self.initial[name] for name in self.trained}

    def inputs(self, x: Tensor) -> Inputs:
        return (x,)

    def project(self, x: Tensor) -> Tensor:
        return x

    def gradient(self, weights: Params, inputs: Inputs, y: Tensor, batch: Tensor | None) -> Params:
        (x,), params = inputs, self.initial | weights
        engine = engine_for(self.model, self.training, x.shape[1:])
        if isinstance(engine, GenericEngine):
            engine = replace(engine, names=self.trained)
        parts = [part for part in self._parts(x, y, batch) if len(part[0])]
        grads, total = [engine.gradient(params, *part) for part in parts], sum(len(part[0]) for part in parts)
        if len(parts) == 1:
            return {name: grads[0][name] for name in weights}
        fractions = [len(part[0]) / total for part in parts]
        return {
            name: sum((f * g[name] for f, g in zip(fractions, grads, strict=True)), torch.zeros_like(p))
            for name, p in weights.items()
        }

    def _parts(self, x: Tensor, y: Tensor, batch: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """The records of a batch: the fixed ones, and those that are given."""
        if self.fixed is None:
            return [(x, y) if batch is None else (x[batch], y[batch])]
        if batch is None:
            return [(self.fixed.x, self.fixed.y), (x, y)]
        count = len(self.fixed)
        known, given = batch[batch < count], batch[batch >= count] - count
        return [(self.fixed.x[known], self.fixed.y[known]), (x[given], y[given])]

    def compare(self, weights: Params, inputs: Inputs) -> Vectors:
        target = self._update({name: self.final[name] for name in weights})
        return Vectors(target=target, update=self._update(weights))

    def describe(self) -> str:
        return ""

    def _update(self, weights: Params) -> Tensor:
        return torch.cat([(p - self.initial[name]).flatten() for name, p in weights.items()])


def updated_names(model: nn.Module, initial: Params, final: Params) -> tuple[str, ...]:
    """The parameters of `model` that a training changed: it kept the others frozen."""
    return tuple(name for name, _ in model.named_parameters() if not torch.equal(initial[name], final[name]))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Unrolled:
    """The steps of `training` on `batches` in the coordinates of `dynamics`; `segment` steps form a graph."""

    training: Training
    dynamics: Dynamics
    batches: tuple[Tensor | None, ...]
    segment: int
    known: int = 0  # records that the dynamics hold besides those that are given

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Params, Inputs]:
        """The final weights of a training on records `x` with labels `y`, which may be probabilities (n, classes)."""
        inputs, steps = self.dynamics.inputs(x), self._steps(len(x))
        names, state = self._initial(x)
        for first in range(0, len(steps), self.segment):
            part = steps[first : first + self.segment]
            run = partial(self._run, names, part, len(inputs))
            in_one_graph = len(part) == len(steps)
            state = run(*inputs, y, *state) if in_one_graph else _Recomputed.apply(run, *inputs, y, *state)  # type: ignore[no-untyped-call]
        return dict(zip(names, state, strict=False)), inputs

    def describe(self) -> str:
        """How memory is used, in words for a progress bar."""
        steps, count = len(self.batches), ceil(len(self.batches) / self.segment)
        graphs = "one graph" if count == 1 else f"{count} segments, one graph for {self.segment} of {steps} steps"
        return graphs + self.dynamics.describe()

    @torch.no_grad()
    def diverges_at(self, x: Tensor, y: Tensor) -> int | None:
        """The first step, counted from one, after which weights are not finite, or a thousand times as far from the
        initial ones as the victim's; None where there is none."""
        inputs = self.dynamics.inputs(x)
        names, state = self._initial(x)
        for step in self._steps(len(x)):
            state = self._run(names, [step], len(inputs), *inputs, y, *state)
            ratio = _relative_norm(self.dynamics.compare(dict(zip(names, state, strict=False)), inputs))
            if not (ratio < _MAX_RATIO**2 and all(bool(p.isfinite().all()) for p in state)):
                return step.index + 1
        return None

    def _steps(self, given: int) -> list["_Step"]:
        pairs = zip(self.batches, self.training.optimizers(self.known + given), strict=False)
        return [_Step(index=i, batch=batch, optimizer=optimizer) for i, (batch, optimizer) in enumerate(pairs)]

    def _initial(self, x: Tensor) -> tuple[list[str], State]:
        weights = self.dynamics.initial_weights(x)
        moments = self.training.optimizer.init(weights)
        return list(weights), (*weights.values(), *(p for params in moments for p in params.values()))

    def _run(self, names: Sequence[str], steps: Sequence["_Step"], n_inputs: int, *tensors: Tensor) -> State:
        """The state after these steps, from inputs, labels and the state before them."""
        inputs, y, state = tensors[:n_inputs], tensors[n_inputs], tensors[n_inputs + 1 :]
        weights, *rows = (
            dict(zip(names, state[i : i + len(names)], strict=True)) for i in range(0, len(state), len(names))
        )
        moments = tuple(rows)
        for step in steps:
            grads = self.dynamics.gradient(weights, inputs, y, step.batch)
            weights, moments = self.training.step(step.optimizer, weights, grads, moments, step.index)
        return tuple(each[name] for each in (weights, *moments) for name in names)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Step:
    index: int
    batch: Tensor | None
    optimizer: Optimizer


def _relative_norm(compared: Comparison) -> Tensor:
    """The squared norm of the simulated update over that of the victim's."""
    match compared:
        case Products():
            return compared.update / compared.target
        case Vectors():
            return compared.update.square().sum() / compared.target.square().sum()


class _Recomputed(torch.autograd.Function):
    """Runs without a graph, and again with one when the gradient is needed."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., State], *tensors: Tensor) -> State:
        ctx.run = run
        ctx.save_for_backward(*tensors)
        return run(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        again = [t.detach().requires_grad_(want) for t, want in zip(ctx.saved_tensors, wanted, strict=True)]
        with torch.enable_grad():
            pairs = [(out, grad) for out, grad in zip(ctx.run(*again), grads, strict=True) if out.requires_grad]
        if not pairs:  # the first steps, on batches of fixed records alone
            return (None, *(None for _ in wanted))
        outputs, grad_outputs = zip(*pairs, strict=True)
        inputs = [t for t in again if t.requires_grad]
        grad_inputs = iter(torch.autograd.grad(outputs, inputs, grad_outputs, allow_unused=True))
        return None, *(next(grad_inputs) if want else None for want in wanted)


def segment_length(model: nn.Module, shape: Sequence[int], *, steps: int, batch: int, copies: int, like: Tensor) -> int:
    """How many steps form a graph: all of them where they fit into free memory, otherwise those that hold least.

    A step's graph holds its activations and the weights; between segments the weights and the optimizer's moments are
    stored, `copies` of the weights. Any number of segments costs the same: one gradient without a graph for each step.
    """
    weights = like.element_size() * sum(p.numel() for p in model.parameters())
    graph = graph_bytes(model, shape, batch=batch, like=like)
    if steps * graph <= USABLE_FRACTION * free_memory(like.device):
        return max(1, steps)
    return max(1, min(steps, round(sqrt(steps * copies * weights / graph))))


def graph_bytes(model: nn.Module, shape: Sequence[int], *, batch: int, like: Tensor) -> int:
    """Bytes that autograd's graph of one training step on `batch` records of this shape holds, by estimate."""
    parameters = sum(p.numel() for p in model.parameters())
    values = _VALUES_PER_ACTIVATION * batch * activations(model, shape) + 2 * parameters
    return like.element_size() * values


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    table = Path("/proc/meminfo")
    if not table.exists():
        return _ASSUMED_FREE
    entries = dict(line.split(":") for line in table.read_text(encoding="ascii").splitlines())
    return 1024 * int(entries["MemAvailable"].split()[0])
