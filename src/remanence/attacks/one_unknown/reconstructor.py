"""The parts of a reconstructor's training: its batches, its errors, its judge and the step that joins them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil
from typing import final

import torch
from torch import Tensor, nn

from remanence.engine.cuda import changed_by, replayed, torch_optimizer, update
from remanence.models import initial_params, patchgan
from remanence.models.lpips import Lpips
from remanence.training import Adam
from remanence.types import Params


@final
class Reader(nn.Module):
    """From standardised weights to records in [0, 1].

    With `rows`, the inputs that the trunk does not take are so many rows of a layer; the trunk's last outputs are the
    factors with which they are added to its others. A decoder goes from the layer's inputs to the record.
    """

    def __init__(
        self, trunk: nn.Sequential, shape: Sequence[int], *, rows: int = 0, decoder: nn.Sequential | None = None
    ) -> None:
        super().__init__()
        self.trunk, self.decoder = trunk, decoder
        self.shape, self.rows = tuple(shape), rows

    def forward(self, inputs: Tensor, masks: Iterable[Tensor] = ()) -> Tensor:
        """Each hidden linear layer is multiplied by its mask where there are any."""
        taken = next((layer.in_features for layer in self.trunk if isinstance(layer, nn.Linear)), inputs.shape[1])
        x, left = inputs[:, :taken], iter(masks)
        for layer in self.trunk:
            x = layer(x)
            if isinstance(layer, nn.ReLU) and x.ndim == 2:
                mask = next(left, None)
                x = x if mask is None else x * mask
        if self.rows:
            rows = inputs[:, taken:].unflatten(1, (self.rows, -1))
            x = torch.baddbmm(x[:, None, : -self.rows], x[:, None, -self.rows :], rows).squeeze(1)
        return self.decode(x)

    def decode(self, features: Tensor) -> Tensor:
        x: Tensor = features if self.decoder is None else self.decoder(features)
        return x.sigmoid().reshape(-1, *self.shape)


def materialised(net: nn.Module, params: Params, like: Tensor) -> nn.Module:
    """The architecture `net` with the numbers `params`, to be trained in place."""
    net.load_state_dict({name: p.to(like) for name, p in params.items()}, assign=True)
    return net.requires_grad_()


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """One batch in buffers that stay where they are: a captured step finds the next batch in the same place."""

    inputs: Tensor
    targets: Tensor
    features: Tensor | None  # what the decoder should start from, for each target
    rows: Tensor
    noise: Tensor | None  # added to the inputs
    scale: Tensor  # of the noise, for each input
    masks: list[Tensor]  # of the hidden layers
    dropout: float
    generator: torch.Generator  # on the device of the inputs

    @classmethod
    def of(
        cls,
        net: Reader,
        inputs: Tensor,
        targets: Tensor,
        size: int,
        *,
        scale: Tensor,
        dropout: float,
        seed: int,
        features: Tensor | None = None,
    ) -> "Batch":
        pairs = pairwise(net.trunk)
        hidden = [a.out_features for a, b in pairs if isinstance(a, nn.Linear) and isinstance(b, nn.ReLU)]
        return cls(
            inputs=inputs,
            targets=targets,
            features=features,
            rows=torch.zeros(size, dtype=torch.int64, device=inputs.device),
            noise=inputs.new_zeros(size, inputs.shape[1]) if scale.any() else None,
            scale=scale,
            masks=[inputs.new_ones(size, width) for width in hidden] if dropout else [],
            dropout=dropout,
            generator=torch.Generator(inputs.device).manual_seed(seed),
        )

    def fill(self, rows: Tensor) -> None:
        self.rows.copy_(rows)
        if self.noise is not None:
            self.noise.normal_(generator=self.generator)
        for mask in self.masks:
            mask.bernoulli_(1 - self.dropout, generator=self.generator).div_(1 - self.dropout)

    def read(self, net: Reader) -> tuple[Tensor, Tensor]:
        """What `net` makes of the batch, and what it should; behind them the same of its decoder alone."""
        inputs, target = self.inputs.index_select(0, self.rows), self.targets.index_select(0, self.rows)
        if self.noise is not None:
            inputs = torch.addcmul(inputs, self.noise, self.scale)
        found: Tensor = net(inputs, self.masks)
        if self.features is not None:
            found = torch.cat([found, net.decode(self.features.index_select(0, self.rows))])
            target = torch.cat([target, target])
        return found, target


def shuffled(rows: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """All rows in random order as batches (steps, size); the last one is filled up from the front of the order."""
    order = rows[torch.randperm(len(rows), generator=generator).to(rows.device)]
    steps = ceil(len(rows) / size)
    return torch.cat([order, order[: steps * size - len(rows)]]).view(steps, size)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Error:
    """The weighted sum of the mean squared, mean absolute and perceptual errors."""

    mse: float
    mae: float
    lpips: float
    network: Lpips | None

    def __call__(self, found: Tensor, target: Tensor) -> Tensor:
        difference = found - target
        error = self.mse * difference.square().mean() + self.mae * difference.abs().mean()
        return error if self.network is None else error + self.lpips * self.network(found, target).mean()

    @torch.no_grad()
    def over(self, net: Reader, inputs: Tensor, targets: Tensor, rows: Tensor, *, block: int = 1024) -> float:
        """The error over `rows`, a block at a time."""
        total = inputs.new_zeros(())
        for some in rows.split(block):
            total += len(some) * self(net(inputs[some]), targets[some])
        return float(total) / len(rows)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """The discriminator of table VII, trained beside the reconstructor.

    The paper does not say which adversarial loss it uses: least squares (Mao et al. 2017) keep a slope for records that
    are told apart with certainty, and at first all are.
    """

    net: nn.Sequential
    optimizer: torch.optim.Optimizer

    @classmethod
    def start(cls, records: Tensor, *, seed: int) -> "Judge":
        net = patchgan(records.shape[1:])
        materialised(net, initial_params(net, seed=seed), records)
        # the rate and momentum of pix2pix (Isola et al. 2017), where this discriminator comes from
        return cls(net=net, optimizer=torch_optimizer(Adam(lr=2e-4, beta1=0.5), list(net.parameters())))

    def doubt(self, found: Tensor) -> Tensor:
        """How far the reconstructions are from passing for records."""
        verdict: Tensor = self.net(found)
        return (verdict - 1).square().mean()

    def learn(self, found: Tensor, target: Tensor) -> None:
        fake: Tensor = self.net(found.detach())
        update(self.optimizer, (self.doubt(target) + fake.square().mean()) / 2)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One step of the reconstructor, and of its judge where there is one, on what lies in `batch`."""

    net: Reader
    batch: Batch
    error: Error
    optimizer: torch.optim.Optimizer
    judge: Judge | None
    adversarial: float

    def __call__(self) -> None:
        found, target = self.batch.read(self.net)
        loss = self.error(found, target)
        if self.judge is not None:
            loss = loss + self.adversarial * self.judge.doubt(found)
        update(self.optimizer, loss)
        if self.judge is not None:
            self.judge.learn(found, target)

    def replayed(self) -> Callable[[], None]:
        return replayed(self, partial(changed_by, [self.optimizer] + ([self.judge.optimizer] if self.judge else [])))
