"""The losses of a reconstructor: pixel errors, LPIPS and a discriminator."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks.one_unknown.network import Reconstructor, materialise
from remanence.engine.cuda import torch_optimizer, update
from remanence.errors import check_min
from remanence.models import initial_params, patchgan
from remanence.models.lpips import Lpips, load_lpips
from remanence.training import Adam


@final
@dataclass(frozen=True, kw_only=True)
class ImageLoss:
    """The weights of a reconstructor's losses. On MNIST the paper uses MSE + MAE; on CIFAR-10 all four, of which it
    does not print the weights."""

    mse: float = 1.0  # weight of the mean squared error
    mae: float = 1.0  # weight of the mean absolute error
    lpips: float = 0.0  # weight of the perceptual distance; it needs a file of weights
    adversarial: float = 0.0  # weight of a discriminator's verdict on patches

    def __post_init__(self) -> None:
        check_min(self, mse=0, mae=0, lpips=0, adversarial=0)

    def load(self, like: Tensor) -> "Criterion":
        """The loss as a function, with the network of LPIPS on the device of `like` where it has a weight."""
        return Criterion(weights=self, network=load_lpips(like) if self.lpips else None)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Criterion:
    """The weighted sum of mean squared, mean absolute and perceptual error over a batch."""

    weights: ImageLoss
    network: Lpips | None

    def __call__(self, found: Tensor, target: Tensor) -> Tensor:
        difference = found - target
        error = self.weights.mse * difference.square().mean() + self.weights.mae * difference.abs().mean()
        return error if self.network is None else error + self.weights.lpips * self.network(found, target).mean()

    @torch.no_grad()
    def pixel_gradient(self, found: Tensor, target: Tensor) -> Tensor:
        """The gradient by `found` of the squared and the absolute error, which autograd finds in many more kernels."""
        difference, count = found - target, found.numel()
        squared = 2 * self.weights.mse / count
        return difference.sign().mul_(self.weights.mae / count).add_(difference, alpha=squared)

    @torch.no_grad()
    def evaluate(
        self, net: Reconstructor, inputs: Tensor, targets: Tensor, rows: Tensor, *, block: int = 1024
    ) -> float:
        """The mean loss over the examples `rows`, computed `block` of them at a time."""
        total = inputs.new_zeros(())
        for some in rows.split(block):
            total += len(some) * self(net(inputs[some]), targets[some])
        return float(total) / len(rows)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Discriminator:
    """The PatchGAN of table VII, trained together with the reconstructor.

    The paper does not name its adversarial loss. This is least squares (Mao et al. 2017), whose gradient does not
    vanish for records that are classified with certainty; at first all are.
    """

    net: nn.Sequential
    optimizer: torch.optim.Optimizer

    @classmethod
    def from_records(cls, records: Tensor, *, seed: int) -> "Discriminator":
        """An untrained discriminator of images with the shape, dtype and device of `records`."""
        net = patchgan(records.shape[1:])
        materialise(net, initial_params(net, seed=seed), records)
        # learning rate and momentum of pix2pix (Isola et al. 2017), where this discriminator comes from
        return cls(net=net, optimizer=torch_optimizer(Adam(lr=2e-4, beta1=0.5), list(net.parameters())))

    def generator_loss(self, found: Tensor) -> Tensor:
        """The mean squared distance of the scores of reconstructions from 1, the label of real records."""
        scores: Tensor = self.net(found)
        return (scores - 1).square().mean()

    def update(self, found: Tensor, target: Tensor) -> None:
        """One step towards scores of 1 for records and 0 for reconstructions."""
        fake: Tensor = self.net(found.detach())
        update(self.optimizer, (self.generator_loss(target) + fake.square().mean()) / 2)


def mse_plus_mae(found: Tensor, target: Tensor) -> Tensor:
    """(n,): MSE + MAE of each reconstruction, by which Mnemonist compares masks, trains and reports."""
    difference = (found - target).flatten(1)
    return difference.square().mean(1) + difference.abs().mean(1)
