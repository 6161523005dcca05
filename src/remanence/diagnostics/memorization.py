"""Which rows of the first fully connected layer store a record.

Shahin Shamsabadi, Hayes, Balle, Weller, "Mnemonist: Locating Model Parameters that Memorize Training Examples" (UAI
2023), equations 1 to 4: a step moves row l along the record by dL/db_l, the record's own gradient of the row's bias.
Where that is zero, as it is where a ReLU is off, the row holds nothing about the record at that step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from remanence.engine.ensembles.chunked import chunks
from remanence.errors import BadInput
from remanence.models import apply
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence.shadow.bank import TrainShadows
from remanence.training import CrossEntropy, Loss, Optimizer, Training
from remanence.training.optimizers import State
from remanence.types import Data, Params

_BLOCK = 1024  # records at a time

Look: TypeAlias = Callable[[Params, Tensor, Tensor], Tensor]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Storage:
    """The B-scale: `stored` (targets, steps, rows) tells whether a target's own gradient moved a row at a step."""

    steps: tuple[int, ...]
    stored: Tensor

    @property
    def rows_storing(self) -> Tensor:
        """(targets, steps): how many rows store the target."""
        return self.stored.sum(2)

    @property
    def share(self) -> Tensor:
        """(steps, rows): the share of the targets that the row stores."""
        return self.stored.double().mean(0)

    def histogram(self) -> Tensor:
        """(steps, rows + 1): how many targets are stored by no row, by one, by two and so on (figure 5)."""
        rows = self.stored.shape[2]
        return torch.stack([counts.bincount(minlength=rows + 1) for counts in self.rows_storing.T])


def stored_rows(model: nn.Module, params: Params, records: Data, *, loss: Loss | None = None) -> Tensor:
    """(records, rows): which rows of `model` a step on each of the records would move, at the weights `params`."""
    records = records.to(*_place(params))
    look = vmap(_own_gradient(model, loss or CrossEntropy()), in_dims=(None, 0, 0), chunk_size=_BLOCK)
    stored: Tensor = look(params, records.x, records.y) != 0
    return stored


def audit_storage(
    training: Training,
    model: nn.Module,
    initial: Params | None,
    fixed: Data,
    targets: Data,
    *,
    steps: Sequence[int],
    seed: int,
) -> Storage:
    """For each target, trained on beside `fixed` just as the shadows of a bank are, the rows that store it at `steps`.

    Steps count from 1, and each is judged at the weights that it starts from. With the seed of `build_bank` the models
    are those of the bank. A step of mini-batches that leaves the target out stores nothing.
    """
    batches = training.batches(len(fixed) + 1, derive_seed(seed, "batches of shadows"))
    taking = [batch is None or bool((batch == len(fixed)).any()) for batch in batches]
    _check_steps(steps, len(taking))
    targets = targets.to(fixed.x.device, fixed.x.dtype)
    per_epoch = len(taking) // training.epochs
    short = replace(training, epochs=-(-max(steps) // per_epoch))  # nothing is asked of later epochs
    look, cut, found = vmap(_own_gradient(model, training.loss)), chunks(model, fixed, targets), []
    places = zip(accumulate(map(len, cut[:-1]), initial=0), cut, strict=True)
    for first, chunk in track(places, total=len(cut), label="what is stored"):
        watch = _Watched(optimizer=training.optimizer, look=look, targets=chunk, steps=tuple(sorted(set(steps))))
        watched = replace(short, optimizer=watch)
        TrainShadows(training=watched, model=model, initial=initial, fixed=fixed, seed=seed)((first, chunk))
        found.append(watch.seen(steps))
    takes_part = torch.tensor([taking[step - 1] for step in steps], device=fixed.x.device)
    return Storage(steps=tuple(steps), stored=torch.cat(found) & takes_part[:, None])


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Watched:
    """An optimiser that looks at the weights of a stack before it moves them."""

    optimizer: Optimizer
    look: Look
    targets: Data
    steps: tuple[int, ...]
    runs: list[list[Tensor]] = field(default_factory=list)

    @property
    def lr(self) -> float:
        return self.optimizer.lr

    def init(self, params: Params) -> State:
        self.runs.append([])
        return self.optimizer.init(params)

    def update(self, params: Params, grads: Params, state: State, step: int) -> tuple[Params, State]:
        if step + 1 in self.steps:
            self.runs[-1].append(self.look(params, *self._own(params)) != 0)
        return self.optimizer.update(params, grads, state, step)

    def seen(self, steps: Sequence[int]) -> Tensor:
        """(targets, steps, rows) of those that are no padding."""
        stacked = torch.cat([torch.stack(run, 1) for run in self._whole()])[: len(self.targets)]
        return stacked[:, [self.steps.index(step) for step in steps]]

    def _own(self, params: Params) -> tuple[Tensor, Tensor]:
        """The target of each model: a stack comes padded with the first, and in halves where memory is short."""
        before = sum(len(run[0]) for run in self._whole())
        count = len(next(iter(params.values())))
        places = torch.arange(before, before + count, device=self.targets.x.device)
        own = self.targets.take(places.where(places < len(self.targets), 0))
        return own.x, own.y

    def _whole(self) -> list[list[Tensor]]:
        """Runs that were not broken off for want of memory."""
        return [run for run in self.runs if len(run) == len(self.steps)]


def _own_gradient(model: nn.Module, loss: Loss) -> Look:
    """For one record the gradient of its own loss with respect to the bias of the first fully connected layer."""
    name = _first_bias(model)

    def objective(bias: Tensor, params: Params, x: Tensor, y: Tensor) -> Tensor:
        return loss(apply(model, {**params, name: bias}, x[None]), y[None])

    def gradient(params: Params, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = grad(objective)(params[name], params, x, y)
        return found

    return gradient


def _first_bias(model: nn.Module) -> str:
    layers = list(model.named_children()) if isinstance(model, nn.Sequential) else []
    first = next(((name, layer) for name, layer in layers if isinstance(layer, nn.Linear)), None)
    if first is None or first[1].bias is None:
        got = "one without a bias" if first else f"a {type(model).__name__} without any"
        raise BadInput(
            f"`model` must be a sequence with a fully connected layer that has a bias, got {got}: the rows of that "
            "layer are what stores a record; use a model such as `mlp(shape, num_classes)`"
        )
    return f"{first[0]}.bias"


def _check_steps(steps: Sequence[int], count: int) -> None:
    if not steps or not all(1 <= step <= count for step in steps):
        raise BadInput(f"`steps` must name steps of 1..{count}, those of the training, got {list(steps)}")


def _place(params: Params) -> tuple[torch.device, torch.dtype]:
    one = next(iter(params.values()))
    return one.device, one.dtype
