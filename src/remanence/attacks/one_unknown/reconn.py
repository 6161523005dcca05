"""RecoNN: a network that reads the one unknown record off the released weights.

Balle, Cherubin, Hayes, "Reconstructing Training Data with Informed Adversaries" (IEEE S&P 2022), tables IV, VI and VII:
a network from the standardised weights of a model to the record that made it, trained on a bank of shadow models with
MSE + MAE, on CIFAR-10 also with LPIPS and a discriminator.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from math import cos, inf, pi, prod
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from remanence.attacks.one_unknown.reconstructor import Batch, Error, Judge, Reader, Step, materialised, shuffled
from remanence.engine.cuda import copied, precision, restore, set_rate, torch_optimizer
from remanence.engine.ensembles.mlp import ELEMENTWISE
from remanence.errors import BadInput, check_min
from remanence.models import deconv, initial_params, mirror, mlp
from remanence.models.lpips import load_lpips
from remanence.progress import track
from remanence.releases import KnowsFixed, require
from remanence.seeds import derive_seed
from remanence.shadow import Rows, ShadowBank, stack_weights
from remanence.shadow.features import FLOOR, Digest, Inputs, Scaler
from remanence.training import Optimizer, RMSProp
from remanence.types import Reconstruction


@final
@dataclass(frozen=True, kw_only=True)
class RecoNN:
    """The paper's own settings for MNIST are `RecoNN(cosine=False, clip=None, held_out=0.0)`."""

    hidden: tuple[int, ...] = (1000, 1000)
    # not in the paper: each row of the first fully connected layer has moved along that layer's inputs, the unknown
    # record's among them, so the network may add the rows to what it makes, with factors that it reads off the weights
    # as well (docs/decisions/0007). Behind convolutions a decoder learns to come back from the layer's inputs
    gated: bool = False
    digest: bool = False  # read the factors off a digest of the weights: with few shadows, all of them mislead
    transposed: bool = False  # end in the transposed convolutions of table VI, which has no `hidden` before them
    optimizer: Optimizer = RMSProp(lr=1e-3)
    # the paper keeps the rate constant; lowered to zero it reads more (MNIST, one bank: MSE 0.0138 -> 0.0134)
    cosine: bool = True
    epochs: int = 100
    batch_size: int = 128
    mse: float = 1.0
    mae: float = 1.0
    lpips: float = 0.0
    adversarial: float = 0.0
    dropout: float = 0.0  # not in the paper
    input_noise: float = 0.0  # not in the paper
    clip: float | None = 5.0  # not in the paper: targets far outside the shadows' range otherwise dominate the error
    # not in the paper: weights with less than this share of the widest spread are taken for rounding and not read. If
    # the shadows disagree about some weights by very much, others that did move may lie below it
    floor: float = FLOOR
    pca: int | None = None  # not in the paper, whose 55,208 inputs on CIFAR-10 take 98 % of the work
    held_out: float = 0.05  # the share of shadows that choose the epoch; the targets never do. 0 keeps the last epoch
    tf32: bool = True  # on a CUDA device

    def __post_init__(self) -> None:
        for name in ("dropout", "held_out", "floor"):
            if not 0 <= getattr(self, name) < 1:
                raise BadInput(f"`{name}` is a share and must lie in [0, 1), got {getattr(self, name)}")
        check_min(self, hidden=1, epochs=0, batch_size=1, pca=1)
        check_min(self, mse=0, mae=0, lpips=0, adversarial=0, input_noise=0, clip=0)
        if self.gated and self.transposed:
            raise BadInput("`gated` and `transposed` are two ways to end a reconstructor: choose one")
        if self.digest and (not self.gated or self.pca is not None):
            raise BadInput("`digest` is what `gated` reads its factors off, in place of the axes of `pca`")

    def fit(self, bank: ShadowBank, *, seed: int) -> "FittedRecoNN":
        """Train the reconstructor on the bank and keep the epoch that does best on held-out shadows."""
        kept, seen = self._cut(bank, seed)
        scaler = self._inputs(bank, seen, seed)
        net = self._network(len(scaler.alive), bank.targets.shape, scaler.rows)
        materialised(net, initial_params(net, seed=derive_seed(seed, "start")), bank.weights)
        self._train(net, scaler, bank, seen, kept, seed=seed)
        return FittedRecoNN(attack=self, scaler=scaler, net=net)

    def refine(self, fitted: "FittedRecoNN", bank: ShadowBank, *, seed: int) -> "FittedRecoNN":
        """Go on from `fitted` with a bank of another fixed set (figure 11); its own `run` there is the zero-shot."""
        for name in ("hidden", "gated", "digest", "transposed", "pca"):
            if getattr(self, name) != getattr(fitted.attack, name):
                raise BadInput(
                    f"`{name}` must be that of the reconstructor to refine, {getattr(fitted.attack, name)}, "
                    f"got {getattr(self, name)}: change the others only"
                )
        kept, seen = self._cut(bank, seed)
        # Another fixed set moves the mean by far more than one record moves a model, and a few shadows tell where to.
        # They do not tell thousands of spreads: those, and the axes, stay the units that the network has learnt.
        mean = Scaler.fit(bank.weights, clip=self.clip, rows=seen).mean
        scaler = fitted.scaler.centred(mean, clip=self.clip)
        net = deepcopy(fitted.net).requires_grad_()
        self._train(net, scaler, bank, seen, kept, seed=seed)
        return FittedRecoNN(attack=self, scaler=scaler, net=net)

    def _cut(self, bank: ShadowBank, seed: int) -> tuple[Tensor, Tensor]:
        """The rows that choose the epoch and those to learn from."""
        generator = torch.Generator().manual_seed(derive_seed(seed, "held out"))
        order = torch.randperm(len(bank.weights), generator=generator).to(bank.weights.device)
        kept = max(1, round(self.held_out * len(order))) if self.held_out else 0
        if len(order) < kept + 2:
            raise BadInput(f"`bank` holds {len(order)} shadow models, RecoNN needs at least {kept + 2}: train more")
        return order[:kept], order[kept:]

    def _inputs(self, bank: ShadowBank, seen: Tensor, seed: int) -> Inputs:
        layer = self._rows(bank)
        if self.digest and layer:
            return Digest.fit(bank.weights, layer, clip=self.clip, rows=seen, floor=self.floor)
        scaler = Scaler.fit(bank.weights, clip=self.clip, rows=seen, floor=self.floor)
        if self.pca is not None:
            scaler = scaler.reduced(bank.weights, self.pca, rows=seen, seed=derive_seed(seed, "axes"))
        return replace(scaler, rows=layer)

    def _rows(self, bank: ShadowBank) -> Rows | None:
        if not self.gated:
            return None
        layer = bank.first_layer()
        if layer is None or not all(isinstance(m, (nn.Conv2d, *ELEMENTWISE)) for m in layer.encoder):
            raise BadInput("`gated` needs a sequence of convolutions, if any, and fully connected layers: leave it out")
        return layer

    def _network(self, inputs: int, shape: tuple[int, ...], layer: Rows | None) -> Reader:
        if self.transposed:
            return Reader(deconv(inputs, shape, hidden=self.hidden), shape)
        if layer is None:
            return Reader(mlp((inputs,), prod(shape), hidden=self.hidden, activation=nn.ReLU), shape)
        trunk = mlp((inputs,), layer.features + layer.count, hidden=self.hidden, activation=nn.ReLU)
        return Reader(trunk, shape, rows=layer.count, decoder=mirror(layer.encoder, shape) if layer.encoder else None)

    def _train(self, net: Reader, scaler: Inputs, bank: ShadowBank, seen: Tensor, kept: Tensor, *, seed: int) -> None:
        """Train `net` in place; in the end it holds the epoch that was best on `kept`, or the last without any."""
        inputs, targets = scaler(bank.weights), bank.targets.x.to(bank.weights)
        size, params = min(self.batch_size, len(seen)), list(net.parameters())
        scale = self.input_noise * pad(scaler.alive, (0, inputs.shape[1] - len(scaler.alive)))
        features = bank.inputs_of(scaler.rows) if scaler.rows and scaler.rows.encoder else None
        own = derive_seed(seed, "noise")
        batch = Batch.of(net, inputs, targets, size, scale=scale, features=features, dropout=self.dropout, seed=own)
        step = self._step(net, batch, seed=derive_seed(seed, "discriminator"))
        generator = torch.Generator().manual_seed(derive_seed(seed, "batches"))
        best, lowest = None, inf
        with precision(tf32=self.tf32):
            go = step.replayed()
            for epoch in track(range(self.epochs), total=self.epochs, label="reconstructor"):
                set_rate(step.optimizer, self._rate(epoch))
                for rows in shuffled(seen, size, generator):
                    batch.fill(rows)
                    go()
                if len(kept) and (reached := step.error.over(net, inputs, targets, kept)) < lowest:
                    best, lowest = copied(params), reached
        self._finish(params, best, chosen=len(kept) > 0)

    def _step(self, net: Reader, batch: Batch, *, seed: int) -> Step:
        perceptual = load_lpips(batch.targets) if self.lpips else None
        return Step(
            net=net,
            batch=batch,
            error=Error(mse=self.mse, mae=self.mae, lpips=self.lpips, network=perceptual),
            optimizer=torch_optimizer(self.optimizer, list(net.parameters())),
            judge=Judge.start(batch.targets, seed=seed) if self.adversarial else None,
            adversarial=self.adversarial,
        )

    def _rate(self, epoch: int) -> float:
        return self.optimizer.lr * ((1 + cos(pi * epoch / self.epochs)) / 2 if self.cosine else 1)

    def _finish(self, params: list[nn.Parameter], best: list[Tensor] | None, *, chosen: bool) -> None:
        finite = best is not None if chosen else all(bool(p.isfinite().all()) for p in params)
        if not finite and self.epochs:
            raise BadInput(f"the reconstructor diverged with {self.optimizer}: lower its rate")
        if best is not None:
            restore(params, best)
        for p in params:
            p.grad = None
            p.requires_grad_(False)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FittedRecoNN:
    """A reconstructor for one recipe: it reads any model made by it from the same start and the same fixed set."""

    attack: RecoNN
    scaler: Inputs
    net: Reader

    def run(self, release: KnowsFixed, *, seed: int) -> Reconstruction:
        require(release, KnowsFixed, by=type(self.attack).__name__)
        weights = stack_weights({name: p[None] for name, p in release.final.items()})
        with torch.no_grad():
            return Reconstruction(x=self.net(self.scaler(weights)))
