"""The victim's algorithm, written once and pure.

A plain call trains the victim; a stack of shadows takes the same steps on another gradient; autograd runs through it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import ceil
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from remanence.engine import mlp as plain_mlp
from remanence.errors import BadInput, check_above, check_min
from remanence.models import apply
from remanence.progress import SOON, track
from remanence.seeds import derive_seed
from remanence.training.clipping import clip_factors, squared_norms, times
from remanence.training.dp import DPGD
from remanence.training.in_full import ByLoss, Stages, train_in_full
from remanence.training.losses import CrossEntropy, LogOf, Loss, SquaredError
from remanence.training.optimizers import SGD, Optimizer, State
from remanence.types import Data, Params

Gradient: TypeAlias = Callable[[Params, Tensor | None], Params]


@final
@dataclass(frozen=True, kw_only=True)
class Training:
    """A(model, initial, data) -> final. The defaults are Balle et al.'s for MNIST (table IV)."""

    optimizer: Optimizer = SGD(lr=0.2, momentum=0.9)
    epochs: int = 100
    batch_size: int | None = None  # None: full batch
    shuffled: bool = True  # False: every epoch takes its mini-batches in the order of the records
    weight_decay: float = 0.0
    clip: float | None = None  # the norm that the gradient of a step is cut to, before weight decay
    stages: Stages = ()  # (epochs, factor): after so many epochs, the first rate times this; or a rule
    privacy: DPGD | None = None
    loss: Loss = CrossEntropy()
    tf32: bool = False  # a stack's matrix products on a CUDA device round their factors to ten bits
    centred: bool = True  # with TF32, of MLPs: the factors less their mean over the stack (docs/decisions/0009)

    def __post_init__(self) -> None:
        check_min(self, epochs=0, batch_size=1, weight_decay=0)
        check_above(self, clip=0)

    def __call__(self, model: nn.Module, initial: Params, data: Data, *, seed: int = 0) -> Params:
        """`seed` shuffles mini-batches and draws the noise of DP-GD."""
        by_hand = None if self.privacy or self.clip is not None else plain_mlp.of(model, self.loss)
        in_full = self.batch_size is None or self.batch_size >= len(data)
        # elsewhere a pure step is as fast, or faster where the net is small
        if by_hand and in_full and (not isinstance(self.stages, tuple) or data.x.device.type == "cuda"):
            of_loss = partial(self.in_logs(by_hand).gradient, x=data.x, y=data.y)

            def gradient(params: Params) -> Params:
                slopes = of_loss(params)
                if isinstance(self.stages, ByLoss):
                    return self.stages.bounded(slopes, self.optimizer.lr)
                return {name: g.add(params[name], alpha=self.weight_decay) for name, g in slopes.items()}

            return train_in_full(gradient, initial, self.optimizer, epochs=self.epochs, stages=self.stages)
        noise_seed = derive_seed(seed, "noise")
        return self.run(model, initial, data.x, data.y, self._shown(len(data), seed), noise_seed=noise_seed)

    def in_logs(self, by_hand: plain_mlp.PlainMlp) -> plain_mlp.PlainMlp:
        """With the log of the loss where the rate follows the loss."""
        if not isinstance(self.stages, ByLoss):
            return by_hand
        loss = by_hand.loss
        if self.weight_decay or isinstance(loss, SquaredError | LogOf) or not isinstance(self.optimizer, SGD):
            raise BadInput(
                f"`stages` {self.stages} take SGD on CrossEntropy or Logistic without weight decay, where the loss "
                "falls for ever, got another training: give (epochs, factor) pairs"
            )
        return replace(by_hand, loss=LogOf(loss=loss))

    def run(
        self,
        model: nn.Module,
        initial: Params,
        x: Tensor,
        y: Tensor,
        batches: Iterable[Tensor | None],
        *,
        noise_seed: int,
    ) -> Params:
        """The same on bare tensors and drawn batches."""
        of_loss = self.gradient_of(model)

        def gradient(params: Params, batch: Tensor | None) -> Params:
            return of_loss(params, *((x, y) if batch is None else (x[batch], y[batch])))

        return self.descend(gradient, initial, batches, records=len(x), noise_seed=noise_seed)

    def descend(
        self,
        gradient: Gradient,
        params: Params,
        batches: Iterable[Tensor | None],
        *,
        records: int,
        noise_seed: int,
        stacked: bool = False,
    ) -> Params:
        """One step for each batch along `gradient`; a stack of models takes it as one, as optimisers work on each
        element alone, and each is clipped by its own norm. Nothing random happens in here but the noise of DP-GD, which
        is each model's own. What has no gradient, such as the statistics of a frozen BatchNorm, stays as it is."""
        state, noise = self.optimizer.init(params), self._noise(params, noise_seed)
        for step, (batch, optimizer) in enumerate(zip(batches, self.optimizers(records), strict=False)):
            grads = gradient(params, batch)
            if noise:
                scale = noise.std / (records if batch is None else len(batch))
                grads = {name: g + scale * noise.draw(g) for name, g in grads.items()}
            params, state = self.step(optimizer, params, grads, state, step, stacked=stacked)
        return params

    def trajectory(self, model: nn.Module, initial: Params, data: Data, *, seed: int = 0) -> list[Params]:
        """The weights in front of each step, without the noise of DP-GD."""
        passed, gradient = [], self.gradient_of(model)

        def remembered(params: Params, batch: Tensor | None) -> Params:
            passed.append(params)
            return gradient(params, *((data.x, data.y) if batch is None else (data.x[batch], data.y[batch])))

        quiet = replace(self, privacy=self.privacy and replace(self.privacy, noise=0.0))
        quiet.descend(remembered, initial, self._shown(len(data), seed), records=len(data), noise_seed=0)
        return passed

    def step(
        self, optimizer: Optimizer, params: Params, grads: Params, state: State, step: int, *, stacked: bool = False
    ) -> tuple[Params, State]:
        """Down these gradients, with weight decay."""
        if self.clip is not None:
            grads = times(grads, clip_factors(squared_norms(grads, stacked=stacked), self.clip))
        if self.weight_decay:
            grads = {name: g + self.weight_decay * params[name] for name, g in grads.items()}
        trained, state = optimizer.update({name: params[name] for name in grads}, grads, state, step)
        return params | trained, state

    def gradient_of(self, model: nn.Module) -> Callable[[Params, Tensor, Tensor], Params]:
        """`gradient` of this model, written out where it can be."""
        by_hand = None if self.privacy else plain_mlp.of(model, self.loss)
        return by_hand.gradient if by_hand else partial(self.gradient, model)

    def gradient(self, model: nn.Module, params: Params, x: Tensor, y: Tensor) -> Params:
        """The gradient of the loss, without weight decay and noise: what a federated client would send."""

        def objective(p: Params, x: Tensor, y: Tensor) -> Tensor:
            return self.loss(apply(model, params | p, x), y)

        gradient: Params
        trained = {name: params[name] for name, _ in model.named_parameters()}
        if self.privacy is None:
            gradient = grad(objective)(trained, x, y)
            return gradient
        each: Params = vmap(grad(objective), in_dims=(None, 0, 0))(trained, x[:, None], y[:, None])
        kept = clip_factors(squared_norms(each, stacked=True), self.privacy.clip) / len(x)
        return {name: torch.einsum("n,n...->...", kept, g) for name, g in each.items()}

    def batches(self, records: int, seed: int) -> Iterator[Tensor | None]:
        """The records of each step in turn; None stands for all of them."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(self.epochs):
            if self.batch_size is None or self.batch_size >= records:
                yield None
            else:
                order = torch.randperm(records, generator=generator) if self.shuffled else torch.arange(records)
                yield from order.split(self.batch_size)

    def _shown(self, records: int, seed: int) -> Iterator[Tensor | None]:
        """The same with their progress."""
        total = self.epochs * self._steps(records)
        return track(self.batches(records, seed), total=total, label="training", after=SOON)

    def _steps(self, records: int) -> int:
        """Of one epoch."""
        return ceil(records / (self.batch_size or records))

    def optimizers(self, records: int) -> Iterator[Optimizer]:
        """That of each step in turn, without end."""
        if not isinstance(self.stages, tuple):
            raise BadInput(
                f"`stages` {self.stages} take a single MLP with ReLU that is trained, not simulated, on full batches "
                "by a loss of ours without DP-GD and `clip`, got another training: give (epochs, factor) pairs"
            )
        steps = self._steps(records)
        lowered = {epochs * steps: replace(self.optimizer, lr=f * self.optimizer.lr) for epochs, f in self.stages}
        optimizer = self.optimizer
        for step in count():
            optimizer = lowered.get(step, optimizer)
            yield optimizer

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

    def draw(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator, device=like.device, dtype=like.dtype)
