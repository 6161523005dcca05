"""Which rows of the first fully connected layer store a record.

Shahin Shamsabadi, Hayes, Balle, Weller, "Mnemonist: Locating Model Parameters that Memorize Training Examples" (UAI
2023), equations 1 to 4: a step moves row l along the record by dL/db_l, the record's gradient of the row's bias. Where
that is zero, as it is where a ReLU is off, the row stores nothing of the record at that step.
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
from remanence.models.structure import Unsupported, first_linear
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence.shadow.bank import TrainShadows
from remanence.training import Loss, Optimizer, Training
from remanence.training.optimizers import State
from remanence.types import Data, Params

BiasGradient: TypeAlias = Callable[[Params, Tensor, Tensor], Tensor]  # parameters, record, label -> (rows,)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Storage:
    """Which rows store which targets (the paper's B-scale)."""

    steps: tuple[int, ...]
    stored: Tensor  # (targets, steps, rows): whether the gradient of a target moved a row at a step

    @property
    def rows_storing(self) -> Tensor:
        """(targets, steps): how many rows store the target."""
        return self.stored.sum(2)

    @property
    def fraction(self) -> Tensor:
        """(steps, rows): the fraction of the targets that a row stores."""
        return self.stored.double().mean(0)

    def histogram(self) -> Tensor:
        """(steps, rows + 1): how many targets are stored by no row, by one, by two and so on (figure 5)."""
        rows = self.stored.shape[2]
        return torch.stack([counts.bincount(minlength=rows + 1) for counts in self.rows_storing.T])


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
    """Which rows store each target at `steps` of a training on `fixed` and the target, as for the shadows of a bank.

    Steps count from 1, and gradients are those at the weights before the step. With the seed of `build_bank` the models
    are those of the bank. A step whose mini-batch leaves the target out stores nothing.
    """
    if training.sample_rate < 1:
        message = (
            f"`sample_rate` of DP-SGD must be 1 here, got {training.sample_rate:g}: each model samples records of its "
            "own in a step, and does not show which"
        )
        raise BadInput(message, code="unsupported-training", argument="training")
    batches = training.batches(len(fixed) + 1, derive_seed(seed, "batches of shadows"))
    with_target = [batch is None or bool((batch == len(fixed)).any()) for batch in batches]
    _check_steps(steps, len(with_target))
    targets = targets.to(fixed.x.device, fixed.x.dtype)
    per_epoch = len(with_target) // training.epochs
    shortened = replace(training, epochs=-(-max(steps) // per_epoch))
    gradient = vmap(_bias_gradient(model, targets.shape, training.loss))
    parts, stored = chunks(model, fixed, targets), []
    work = zip(accumulate(map(len, parts[:-1]), initial=0), parts, strict=True)
    for first, chunk in track(work, total=len(parts), label="what is stored"):
        observer = _Observer(
            optimizer=training.optimizer, gradient=gradient, targets=chunk, steps=tuple(sorted(set(steps)))
        )
        observed = replace(shortened, optimizer=observer)
        TrainShadows(training=observed, model=model, initial=initial, fixed=fixed, seed=seed)((first, chunk))
        stored.append(observer.stored(steps))
    takes_part = torch.tensor([with_target[step - 1] for step in steps], device=fixed.x.device)
    return Storage(steps=tuple(steps), stored=torch.cat(stored) & takes_part[:, None])


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Observer:
    """An optimiser that records the gradients of the targets before it updates a stack of models."""

    optimizer: Optimizer
    gradient: BiasGradient
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
            self.runs[-1].append(self.gradient(params, *self._targets_of(params)) != 0)
        return self.optimizer.update(params, grads, state, step)

    def stored(self, steps: Sequence[int]) -> Tensor:
        """(targets, steps, rows), without padding."""
        stacked = torch.cat([torch.stack(run, 1) for run in self._finished()])[: len(self.targets)]
        return stacked[:, [self.steps.index(step) for step in steps]]

    def _targets_of(self, params: Params) -> tuple[Tensor, Tensor]:
        """The target of each model: a stack is padded with the first, and comes in halves where memory is short."""
        before = sum(len(run[0]) for run in self._finished())
        count = len(next(iter(params.values())))
        indices = torch.arange(before, before + count, device=self.targets.x.device)
        targets = self.targets.take(indices.where(indices < len(self.targets), 0))
        return targets.x, targets.y

    def _finished(self) -> list[list[Tensor]]:
        """The runs that did not end for want of memory."""
        return [run for run in self.runs if len(run) == len(self.steps)]


def _bias_gradient(model: nn.Module, shape: Sequence[int], loss: Loss) -> BiasGradient:
    """The gradient of the loss of one record with respect to the bias of the first fully connected layer."""
    name = _first_bias(model, shape)

    def objective(bias: Tensor, params: Params, x: Tensor, y: Tensor) -> Tensor:
        return loss(apply(model, {**params, name: bias}, x[None]), y[None])

    def gradient(params: Params, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = grad(objective)(params[name], params, x, y)
        return found

    return gradient


def _first_bias(model: nn.Module, shape: Sequence[int]) -> str:
    first = first_linear(model, shape)
    if isinstance(first, Unsupported) or not first.layer.has_bias:
        why = first.reason if isinstance(first, Unsupported) else f"`{first.layer.path}` has none"
        message = (
            "`model` must have a fully connected layer with a bias, as the rows of that layer store records, "
            f"and {why}: use a model such as `mlp(shape, num_classes)`"
        )
        raise BadInput(message, code="unsupported-model", argument="model")
    return first.layer.bias


def _check_steps(steps: Sequence[int], count: int) -> None:
    if not steps or not all(1 <= step <= count for step in steps):
        message = f"`steps` must name steps of 1..{count}, those of the training, got {list(steps)}"
        raise BadInput(message, code="out-of-range" if steps else "empty", argument="steps")
