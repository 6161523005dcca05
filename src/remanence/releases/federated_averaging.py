"""What a client of federated averaging sends: the change of the weights by its own training, after its defenses.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017). The order of
mini-batches is not sent (Dimitrov et al., "Data Leakage in Federated Averaging", TMLR 2022). Candidates have no order
of their own: those of the first epoch are taken as they come, and orders of later epochs are drawn.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from remanence.bounds import UNIT, Bounds
from remanence.engine import batch_gradient, engine_for, on_batches, only
from remanence.errors import BadInput, check_min
from remanence.models import running_statistics
from remanence.releases.defenses import Defense
from remanence.releases.releases import BatchNormMode, FineTuned, check_statistics
from remanence.training.losses import Loss
from remanence.training.optimizers import SGD, QuasiNewton
from remanence.training.training import Training
from remanence.types import Params

_ORDERS = 0  # seed of the orders of mini-batches that are drawn for the epochs after the first


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class LocalUpdate:
    """Federated averaging: the update of the weights by a client's training on its records, or the mean over several
    clients, as secure aggregation shows it."""

    withholds: ClassVar[str] = "the records of the batch"
    model: nn.Module
    at: Params
    update: Params  # the weights after the client's training minus those before; without those it kept frozen
    labels: Tensor | None
    batch_size: int | None  # records of all clients together
    shape: tuple[int, ...]
    bounds: Bounds = UNIT
    training: Training
    clients: int = 1  # with equal numbers of records, whose updates are averaged
    defenses: tuple[Defense, ...] = ()  # that each client applied to its update, in this order
    batch_norm: BatchNormMode = "frozen"  # of the client's network; in training mode batches have their own statistics
    statistics: Params | None = None  # running means and variances after the training; None: not sent, or frozen

    def __post_init__(self) -> None:
        check_min(self, clients=1, batch_size=1)
        check_statistics(self.model, self.at, self.batch_norm, self.statistics)
        optimizer, privacy = self.training.optimizer, self.training.privacy
        if isinstance(optimizer, QuasiNewton):
            raise _unsupported("optimizer", f"SGD, Adam, AdamW or RMSProp, got {optimizer}")
        if self.training.epochs < 1:
            raise _unsupported("epochs", f"1 or more, got {self.training.epochs}")
        if not isinstance(self.training.lr_schedule, tuple):
            raise _unsupported("lr_schedule", f"(epochs, factor) pairs, got {self.training.lr_schedule}")
        if privacy and (privacy.noise or privacy.sample_rate < 1):
            expected = "without noise and `sample_rate`: what the client samples is not released"
            raise _unsupported("privacy", f"{expected}; leave it out")
        if privacy and self.batch_norm == "training":
            raise _unsupported("privacy", "None where BatchNorm is in training mode: records have no gradients alone")
        if self.batch_size is not None:
            check_clients(self.clients, records=self.batch_size)

    @property
    def loss(self) -> Loss:
        return self.training.loss

    @property
    def sent(self) -> Params:
        """The update over that of a weight whose gradient is minus one at every step: the mean gradient, for SGD."""
        return self._as_gradient(self.update)

    @property
    def steps(self) -> int:
        """Local steps of a client; those of full batches where the number of records is not known."""
        return self.training.epochs * self.training.steps_per_epoch((self.batch_size or self.clients) // self.clients)

    def simulate(self, x: Tensor, labels: Tensor) -> Params:
        return self.simulate_with_statistics(x, labels)[0]

    def simulate_with_statistics(self, x: Tensor, labels: Tensor) -> tuple[Params, Params]:
        """What clients with the records `x` would send, as a gradient, and the mean of their running statistics. Where
        there are several times as many as `batch_size`, each stands for several, so that the number of steps stays."""
        records = self.batch_size if self.batch_size and len(x) % self.batch_size == 0 else len(x)
        copies = torch.arange(len(x), device=x.device).view(-1, records).T
        parts = copies.split(-(-records // self.clients))
        sent = [self._client(x[rows.flatten()], labels[rows.flatten()], len(rows)) for rows in parts]
        update = mean_of([self._defended(update) for update, _ in sent])
        return self._as_gradient(update), mean_of([statistics for _, statistics in sent])

    def fine_tuned(self, num_classes: int) -> FineTuned:
        """The client's model as one that was fine-tuned from the server's."""
        if self.clients > 1:
            message = "`clients` must be 1: the mean of several updates is not the end of one training"
            raise BadInput(message, code="conflict", argument="clients")
        final = self.at | {name: self.at[name] + update for name, update in self.update.items()}
        return FineTuned(
            model=self.model,
            initial=self.at,
            final=final | (self.statistics or {}),
            shape=self.shape,
            bounds=self.bounds,
            num_classes=num_classes,
            training=self.training,
        )

    def _client(self, x: Tensor, labels: Tensor, records: int) -> tuple[Params, Params]:
        batches = _assumed_batches(self.training, records, copies=len(x) // records, device=x.device)
        return local_delta(
            *(self.training, self.model, self.at, x, labels),
            names=list(self.update),
            batches=batches,
            records=records,
            batch_norm=self.batch_norm,
        )

    def _defended(self, update: Params) -> Params:
        for defense in self.defenses:
            update = defense.imitate(update, self.update)
        return update

    def _as_gradient(self, update: Params) -> Params:
        unit = update_scale(self.training, (self.batch_size or self.clients) // self.clients)
        return {name: u / -unit for name, u in update.items()}


def check_clients(clients: int, *, records: int) -> None:
    """Refuse a number of clients that cannot have equal parts of the records."""
    if clients < 1 or records % clients:
        message = f"`clients` must divide the {records} records of the batch, got {clients}"
        raise BadInput(message, code="conflict", argument="clients")


def update_scale(training: Training, records: int) -> float:
    """The update of a weight whose gradient is minus one at every step of a training on so many records: with SGD what
    an update is divided by to be a mean gradient; with optimizers that normalise steps, the sum of learning rates."""
    momentum = training.optimizer.momentum if isinstance(training.optimizer, SGD) else 0.0
    velocity, total = 0.0, 0.0
    steps = training.epochs * training.steps_per_epoch(records)
    for _, optimizer in zip(range(steps), training.optimizers(records), strict=False):
        velocity = momentum * velocity + 1.0
        total += optimizer.lr * velocity
    return total


def local_delta(
    training: Training,
    model: nn.Module,
    at: Params,
    x: Tensor,
    labels: Tensor,
    *,
    names: Sequence[str],
    batches: Iterable[Tensor | None],
    records: int | None = None,
    batch_norm: BatchNormMode = "frozen",
) -> tuple[Params, Params]:
    """The weights of these `names` after a step on each of the batches minus those before; others are frozen. An epoch
    takes as many steps as one of so many `records`; None: of all. With BatchNorm in training mode its running
    statistics then come with it, none otherwise."""
    buffers: Params = {}

    def by_batch(params: Params, x: Tensor, labels: Tensor) -> Params:
        found, after = batch_gradient(model, params | buffers, x, labels, loss=training.loss, names=names)
        buffers.update(after)
        return found

    gradient = by_batch if batch_norm == "training" else engine_for(model, training, x.shape[1:]).gradient
    of_batches = only(on_batches(gradient, x, labels), names)
    end = training.descend(of_batches, at, batches, records=records or len(x), noise_seed=0)
    statistics = {name: buffers[name] for name in running_statistics(model) if name in buffers}
    return {name: end[name] - at[name] for name in names}, statistics


def mean_of(params: Sequence[Params]) -> Params:
    """The mean of what several clients sent."""
    return {name: torch.stack([each[name] for each in params]).mean(0) for name in params[0]}


def _assumed_batches(training: Training, records: int, *, copies: int, device: torch.device) -> Iterator[Tensor | None]:
    """The indices of each step: in the order of the records in the first epoch, in drawn orders in the others. Of each
    record there are so many `copies`, one after the other."""
    generator = Random(_ORDERS)  # not torch's, which cannot be called under vmap
    for epoch in range(training.epochs):
        if training.batch_size is None or training.batch_size >= records:
            yield None
            continue
        in_order = epoch == 0 or not training.shuffled
        order = torch.tensor(range(records) if in_order else generator.sample(range(records), records))
        for batch in order.split(training.batch_size):
            yield (batch[:, None] * copies + torch.arange(copies)).flatten().to(device)


def _unsupported(argument: str, expected: str) -> BadInput:
    return BadInput(
        f"`{argument}` of a client's training must be {expected}", code="unsupported-training", argument=argument
    )
