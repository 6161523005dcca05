"""How a reconstructor is trained: mini-batches of shadow models, an optimiser, validation on held-out shadows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil, cos, inf, pi
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from remanence.attacks.one_unknown.losses import Criterion, Discriminator, ImageLoss
from remanence.attacks.one_unknown.network import Reconstructor
from remanence.engine.cuda import changed_by, copied, precision, replayed, restore, set_lr, torch_optimizer, update
from remanence.errors import BadInput, Diverged, check_min
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence.shadow import ShadowBank
from remanence.shadow.features import FittedFeatures
from remanence.training import AdamW, Optimizer


@final
@dataclass(frozen=True, kw_only=True)
class Fitting:
    """The training of a reconstructor on shadow models; the default is our best on MNIST."""

    optimizer: Optimizer = AdamW(lr=5e-4, weight_decay=1e-2)  # of the reconstructor
    # the paper's learning rate is constant; annealing it lowers the error (MNIST, one bank: MSE 0.0138 -> 0.0134)
    cosine: bool = True
    epochs: int = 50  # over the shadow models
    batch_size: int = 128  # shadow models to a step
    validation_fraction: float = 0.05  # shadows that select the epoch; 0: the last epoch is taken, as in the paper
    dropout: float = 0.0  # not in the paper
    input_noise: float = 0.0  # not in the paper: standard deviation of Gaussian noise on the features
    tf32: bool = True  # on a CUDA device

    def __post_init__(self) -> None:
        for name in ("dropout", "validation_fraction"):
            if not 0 <= getattr(self, name) < 1:
                message = f"`{name}` is a fraction and must lie in [0, 1), got {getattr(self, name)}"
                raise BadInput(message, code="out-of-range", argument=name)
        check_min(self, epochs=0, batch_size=1, input_noise=0)

    def split(self, bank: ShadowBank, *, seed: int) -> tuple[Tensor, Tensor]:
        """The indices of the shadows for validation and of those for training, at random."""
        order = torch.randperm(len(bank.weights), generator=torch.Generator().manual_seed(seed))
        order = order.to(bank.weights.device)
        count = max(1, round(self.validation_fraction * len(order))) if self.validation_fraction else 0
        if len(order) < count + 2:
            message = f"`bank` holds {len(order)} shadow models, RecoNN needs at least {count + 2}: train more"
            raise BadInput(message, code="too-few", argument="bank")
        return order[:count], order[count:]

    def learning_rate(self, epoch: int) -> float:
        """The learning rate of an epoch: constant, or annealed to zero by half a cosine."""
        return self.optimizer.lr * ((1 + cos(pi * epoch / self.epochs)) / 2 if self.cosine else 1)

    def train(
        self,
        net: Reconstructor,
        features: FittedFeatures,
        loss: ImageLoss,
        bank: ShadowBank,
        *,
        training: Tensor,
        validation: Tensor,
        seed: int,
    ) -> None:
        """Train `net` in place on the shadows `training`. Afterwards it holds the parameters of the epoch that was best
        on `validation`, or of the last epoch where that is empty, and needs no gradient."""
        inputs, targets = features(bank.weights), bank.targets.x.to(bank.weights)
        size, params = min(self.batch_size, len(training)), list(net.parameters())
        layer = features.rows
        batch = Batch.allocate(
            net,
            inputs,
            targets,
            size,
            noise_std=self.input_noise * pad(features.active, (0, inputs.shape[1] - len(features.active))),
            encoded=bank.inputs_of(layer) if layer and layer.encoder else None,
            dropout=self.dropout,
            seed=derive_seed(seed, "noise"),
        )
        adversary = derive_seed(seed, "discriminator")
        step = Step(
            net=net,
            batch=batch,
            criterion=loss.load(targets),
            optimizer=torch_optimizer(self.optimizer, params),
            discriminator=Discriminator.from_records(targets, seed=adversary) if loss.adversarial else None,
        )
        generator = torch.Generator().manual_seed(derive_seed(seed, "batches"))
        best, lowest = None, inf
        with precision(tf32=self.tf32):
            go = step.replayed()
            for epoch in track(range(self.epochs), total=self.epochs, label="reconstructor"):
                set_lr(step.optimizer, self.learning_rate(epoch))
                for rows in shuffled_batches(training, size, generator):
                    batch.fill(rows)
                    go()
                if len(validation) and (error := step.criterion.evaluate(net, inputs, targets, validation)) < lowest:
                    best, lowest = copied(params), error
        finite = best is not None if len(validation) else all(bool(p.isfinite().all()) for p in params)
        if not finite and self.epochs:
            message = f"the reconstructor diverged with {self.optimizer}: lower its learning rate"
            raise Diverged(message, code="diverged", argument="optimizer")
        if best is not None:
            restore(params, best)
        for p in params:
            p.grad = None
            p.requires_grad_(False)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """One mini-batch in buffers at fixed addresses, so that a captured CUDA graph finds the next batch there too."""

    inputs: Tensor  # (shadows, inputs)
    targets: Tensor  # (shadows, *shape)
    encoded: Tensor | None  # (shadows, features): inputs of the first fully connected layer, which the decoder inverts
    rows: Tensor  # (size,): which shadows are in the batch
    noise: Tensor | None  # (size, inputs), standard normal
    noise_std: Tensor  # (inputs,)
    dropout_masks: list[Tensor]  # one for each hidden layer
    dropout: float
    generator: torch.Generator  # on the device of the inputs

    @classmethod
    def allocate(
        cls,
        net: Reconstructor,
        inputs: Tensor,
        targets: Tensor,
        size: int,
        *,
        noise_std: Tensor,
        dropout: float,
        seed: int,
        encoded: Tensor | None = None,
    ) -> "Batch":
        pairs = pairwise(net.trunk)
        hidden = [a.out_features for a, b in pairs if isinstance(a, nn.Linear) and isinstance(b, nn.ReLU)]
        return cls(
            inputs=inputs,
            targets=targets,
            encoded=encoded,
            rows=torch.zeros(size, dtype=torch.int64, device=inputs.device),
            noise=inputs.new_zeros(size, inputs.shape[1]) if noise_std.any() else None,
            noise_std=noise_std,
            dropout_masks=[inputs.new_ones(size, width) for width in hidden] if dropout else [],
            dropout=dropout,
            generator=torch.Generator(inputs.device).manual_seed(seed),
        )

    def fill(self, rows: Tensor) -> None:
        """Make the batch that of the shadows `rows`, with new noise and dropout masks."""
        self.rows.copy_(rows)
        if self.noise is not None:
            self.noise.normal_(generator=self.generator)
        for mask in self.dropout_masks:
            mask.bernoulli_(1 - self.dropout, generator=self.generator).div_(1 - self.dropout)

    def evaluate(self, net: Reconstructor) -> tuple[Tensor, Tensor]:
        """The reconstructions and their targets; where there is a decoder, then the same of the decoder alone."""
        inputs, target = self.inputs.index_select(0, self.rows), self.targets.index_select(0, self.rows)
        if self.noise is not None:
            inputs = torch.addcmul(inputs, self.noise, self.noise_std)
        found: Tensor = net(inputs, self.dropout_masks)
        if self.encoded is not None:
            found = torch.cat([found, net.decode(self.encoded.index_select(0, self.rows))])
            target = torch.cat([target, target])
        return found, target


def shuffled_batches(rows: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """All `rows` in random order as batches (steps, size); the last one is filled up from the front of the order."""
    order = rows[torch.randperm(len(rows), generator=generator).to(rows.device)]
    steps = ceil(len(rows) / size)
    return torch.cat([order, order[: steps * size - len(rows)]]).view(steps, size)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One optimiser step of the reconstructor, and of its discriminator if any, on what lies in `batch`."""

    net: Reconstructor
    batch: Batch
    criterion: Criterion
    optimizer: torch.optim.Optimizer
    discriminator: Discriminator | None

    def __call__(self) -> None:
        found, target = self.batch.evaluate(self.net)
        if self.discriminator is None and self.criterion.network is None:
            update(self.optimizer, found, self.criterion.pixel_gradient(found, target))
            return
        loss = self.criterion(found, target)
        if self.discriminator is not None:
            loss = loss + self.criterion.weights.adversarial * self.discriminator.generator_loss(found)
        update(self.optimizer, loss)
        if self.discriminator is not None:
            self.discriminator.update(found, target)

    def replayed(self) -> Callable[[], None]:
        """The step, captured as a CUDA graph where the device allows it."""
        optimizers = [self.optimizer] + ([self.discriminator.optimizer] if self.discriminator else [])
        return replayed(self, partial(changed_by, optimizers))
