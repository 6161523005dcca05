"""The victim's algorithm, written once and pure.

A plain call trains the victim; `torch.func.vmap` over it trains a stack of shadows; autograd runs through it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.functional import cross_entropy

from remanence.nets import apply
from remanence.training.optim import SGD, Optimizer
from remanence.types import Data, Params


class Loss(Protocol):
    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor: ...


@final
@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """Mean over the batch."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels)


@final
@dataclass(frozen=True, kw_only=True)
class Training:
    """A(model, initial, data) -> final. The defaults are Balle et al.'s for MNIST (table IV)."""

    optimizer: Optimizer = SGD(lr=0.2, momentum=0.9)
    epochs: int = 100
    batch_size: int | None = None  # None: full batch
    weight_decay: float = 0.0
    loss: Loss = CrossEntropy()

    def __call__(self, model: nn.Module, initial: Params, data: Data, *, seed: int = 0) -> Params:
        return self.run(model, initial, data.x, data.y, self.batches(len(data), seed))

    def run(self, model: nn.Module, initial: Params, x: Tensor, y: Tensor, batches: Iterable[Tensor | None]) -> Params:
        """The same on bare tensors and drawn batches, so that it can be stacked: nothing random happens in here."""
        params, state = initial, self.optimizer.init(initial)
        for step, batch in enumerate(batches):
            grads = self.gradient(model, params, *((x, y) if batch is None else (x[batch], y[batch])))
            if self.weight_decay:
                grads = {name: g + self.weight_decay * params[name] for name, g in grads.items()}
            params, state = self.optimizer.update(params, grads, state, step)
        return params

    def gradient(self, model: nn.Module, params: Params, x: Tensor, y: Tensor) -> Params:
        """The gradient of the loss, without weight decay: what a federated client would send."""

        def objective(p: Params) -> Tensor:
            return self.loss(apply(model, p, x), y)

        gradient: Params = grad(objective)(params)
        return gradient

    def batches(self, records: int, seed: int) -> Iterator[Tensor | None]:
        """The records of each step in turn; None stands for all of them."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(self.epochs):
            if self.batch_size is None or self.batch_size >= records:
                yield None
            else:
                yield from torch.randperm(records, generator=generator).split(self.batch_size)
