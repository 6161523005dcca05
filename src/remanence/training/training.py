"""The victim's algorithm as a frozen record with pure steps, which autograd and `torch.func` can run through.

It knows nothing of how a gradient is computed: `remanence.engine` computes gradients and drives the steps.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from math import ceil
from typing import TypeAlias, final

import torch
from torch import Tensor

from remanence.errors import BadInput, check_above, check_min
from remanence.training.clipping import clip_factors, scaled, squared_norms
from remanence.training.dp import DPGD
from remanence.training.losses import CrossEntropy, Loss
from remanence.training.optimizers import SGD, Optimizer, State
from remanence.training.schedules import Schedule
from remanence.types import Params

BatchGradient: TypeAlias = Callable[[Params, Tensor | None], Params]  # from weights and indices of records; None: all


@final
@dataclass(frozen=True, kw_only=True)
class Training:
    """The algorithm that turns initial weights and data into final weights; `remanence.engine.train` runs it. The
    defaults are those of Balle et al. for MNIST (table IV)."""

    optimizer: Optimizer = SGD(lr=0.2, momentum=0.9)
    epochs: int = 100
    batch_size: int | None = None  # None: full batch
    shuffled: bool = True  # False: every epoch takes its mini-batches in the order of the records
    weight_decay: float = 0.0
    decay_biases: bool = True  # as torch does; scikit-learn's intercepts are not decayed
    clip: float | None = None  # maximal norm of the gradient of a step, before weight decay
    lr_schedule: Schedule = ()  # (epochs, factor) pairs: from that epoch on, the initial rate times this; or a rule
    privacy: DPGD | None = None  # its `sample_rate` takes the place of `batch_size`
    loss: Loss = CrossEntropy()
    tf32: bool = False  # ensembles on a CUDA device multiply matrices in TF32
    centred: bool = True  # with TF32, for MLPs: factors minus their mean over the ensemble (docs/decisions/0009)

    def __post_init__(self) -> None:
        check_min(self, epochs=0, batch_size=1, weight_decay=0)
        check_above(self, clip=0)
        if not self.decay_biases and getattr(self.optimizer, "weight_decay", 0.0) != 0.0:
            message = (
                f"`decay_biases` must be True with an optimizer that decays all weights itself, got {self.optimizer}: "
                "use the `weight_decay` of Training"
            )
            raise BadInput(message, code="unsupported-training", argument="decay_biases")
        if self.sample_rate < 1 and self.batch_size is not None:
            message = (
                f"`batch_size` must be None with Poisson sampling, where a step takes each record with the probability "
                f"`sample_rate`, here {self.sample_rate:g}, got {self.batch_size}: leave it out"
            )
            raise BadInput(message, code="conflict", argument="batch_size")

    @property
    def sample_rate(self) -> float:
        """The probability with which a step of DP-SGD takes a record; 1 for all other trainings."""
        return 1.0 if self.privacy is None else self.privacy.sample_rate

    @property
    def expected(self) -> "Training":
        """The training without randomness: without the noise of DP-GD, and with all records in each step in place of a
        Poisson sample, whose sum they are on average."""
        if self.privacy is None:
            return self
        steps, schedule = self.privacy.steps_per_epoch, self.lr_schedule
        if isinstance(schedule, tuple):
            schedule = tuple((steps * epoch, factor) for epoch, factor in schedule)
        privacy = replace(self.privacy, noise=0.0, sample_rate=1.0)
        return replace(self, epochs=steps * self.epochs, lr_schedule=schedule, privacy=privacy)

    def batches(self, records: int, seed: int) -> Iterator[Tensor | None]:
        """The indices of the records of each step in turn; None stands for all of them, a Poisson sample may be
        empty."""
        generator = torch.Generator().manual_seed(seed)
        if self.sample_rate < 1:
            for _ in range(self.epochs * self.steps_per_epoch(records)):
                yield (torch.rand(records, generator=generator, dtype=torch.float64) < self.sample_rate).nonzero()[:, 0]
            return
        for _ in range(self.epochs):
            if self.batch_size is None or self.batch_size >= records:
                yield None
            else:
                order = torch.randperm(records, generator=generator) if self.shuffled else torch.arange(records)
                yield from order.split(self.batch_size)

    def steps_per_epoch(self, records: int) -> int:
        if self.privacy is not None and self.sample_rate < 1:
            return self.privacy.steps_per_epoch
        return ceil(records / (self.batch_size or records))

    def optimizers(self, records: int) -> Iterator[Optimizer]:
        """The optimizer of each step in turn, with the learning rate of the schedule, without end."""
        if not isinstance(self.lr_schedule, tuple):
            message = (
                f"`lr_schedule` {self.lr_schedule} is for a single MLP with ReLU that is trained, not simulated, on "
                "full batches by one of our losses without DP-GD and `clip`, got another training: give (epochs, "
                "factor) pairs"
            )
            raise BadInput(message, code="unsupported-training", argument="lr_schedule")
        steps = self.steps_per_epoch(records)
        changes = {epochs * steps: replace(self.optimizer, lr=f * self.optimizer.lr) for epochs, f in self.lr_schedule}
        optimizer = self.optimizer
        for step in count():
            optimizer = changes.get(step, optimizer)
            yield optimizer

    def step(
        self, optimizer: Optimizer, params: Params, grads: Params, state: State, step: int, *, stacked: bool = False
    ) -> tuple[Params, State]:
        """One step of the optimizer along these gradients, clipped and with weight decay. Parameters without a
        gradient, such as the statistics of a frozen BatchNorm, stay as they are."""
        if self.clip is not None:
            grads = scaled(grads, clip_factors(squared_norms(grads, stacked=stacked), self.clip))
        if self.weight_decay:
            grads = {n: g + self.weight_decay * params[n] if self.decays(n) else g for n, g in grads.items()}
        trained, state = optimizer.update({name: params[name] for name in grads}, grads, state, step)
        return params | trained, state

    def decays(self, name: str) -> bool:
        """Whether weight decay acts on the parameter of this name."""
        return self.decay_biases or name.rpartition(".")[2] != "bias"

    def descend(
        self,
        gradient: BatchGradient,
        params: Params,
        batches: Iterable[Tensor | None],
        *,
        records: int,
        noise_seed: int,
        stacked: bool = False,
    ) -> Params:
        """The weights after one step for each batch along `gradient`.

        A stack of models is stepped as one, since optimizers work elementwise; each model is clipped by its own norm.
        The noise of DP-GD, independent for each model, is the only randomness in here. The sum over a Poisson sample is
        divided by its expected size: its size would tell whether a record was in it.
        """
        state, noise = self.optimizer.init(params), self._noise(params, noise_seed)
        for step, (batch, optimizer) in enumerate(zip(batches, self.optimizers(records), strict=False)):
            grads, size = gradient(params, batch), float(records if batch is None else len(batch))
            if self.sample_rate < 1:
                ratio, size = size / (self.sample_rate * records), self.sample_rate * records
                grads = {name: ratio * g for name, g in grads.items()}
            if noise:
                scale = noise.std / size
                grads = {name: g + scale * noise.sample(g) for name, g in grads.items()}
            params, state = self.step(optimizer, params, grads, state, step, stacked=stacked)
        return params

    def _noise(self, params: Params, seed: int) -> "_Noise | None":
        if self.privacy is None or not self.privacy.noise:
            return None
        device = next(iter(params.values())).device
        generator = torch.Generator(device).manual_seed(seed)
        return _Noise(std=self.privacy.noise * self.privacy.clip, generator=generator)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Noise:
    std: float  # on the sum of the gradients
    generator: torch.Generator

    def sample(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator, device=like.device, dtype=like.dtype)


def remaining_fraction(training: Training, steps: int, *, records: int = 1) -> float:
    """The fraction of the initial weights that is left after `steps` steps of SGD, by weight decay alone; `records`
    determines the number of steps per epoch, for the learning-rate schedule."""
    if not isinstance(training.optimizer, SGD):
        message = f"`optimizer` must be SGD, for which the effect of weight decay is known, got {training.optimizer}"
        raise BadInput(message, code="unsupported-training", argument="optimizer")

    def zero_gradient(params: Params, _batch: Tensor | None) -> Params:
        return {name: torch.zeros_like(p) for name, p in params.items()}

    plain, one = replace(training, privacy=None), {"fraction": torch.ones((), dtype=torch.float64)}
    return float(plain.descend(zero_gradient, one, [None] * steps, records=records, noise_seed=0)["fraction"])
