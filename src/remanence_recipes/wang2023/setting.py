"""What the recipes of this paper share: the server's net, planted batches, and the error of a reading."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from remanence.attacks import Stein
from remanence.metrics import hungarian
from remanence.nets import mlp, server_params
from remanence.release import Gradient
from remanence.seeds import stream
from remanence.training import SquaredError, Training
from remanence.types import Params

PAPERS = Stein(exact=False, refine=False, norm=1.0, box=False)
HEAD = Stein(source="head", exact=False, refine=False, norm=1.0, box=False)
SPAN = Stein(refine=False, norm=1.0, box=False)
OURS = Stein(box=False)


class SquareAndCube(nn.Module):
    """x^2 + x^3, with which the paper's algorithm is plain."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square() + x**3


class Square(nn.Module):
    """x^2, with which only the span of a batch can be read."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square()


def gradient_of(
    x: Tensor,
    labels: Tensor,
    *,
    activation: Callable[[], nn.Module],
    rows: int,
    seed: int,
    before: tuple[int, ...] = (),
    offset: float = 30.0,
    noise: float = 0.0,
) -> Gradient:
    """What a client sends for the batch to a server of the paper; `before` are widths of layers before the wide one,
    `noise` is a share of each tensor's norm."""
    model, loss = mlp(x.shape[1:], 1, hidden=(*before, rows), activation=activation), SquaredError()
    at = {name: p.to(x) for name, p in server_params(model, seed=seed, offset=offset).items()}
    sent = noisy(Training(loss=loss).gradient(model, at, x, labels), noise, seed=stream(seed, "noise"))
    return Gradient(
        model=model, at=at, gradient=sent, labels=None, batch_size=len(x), shape=tuple(x.shape[1:]), loss=loss
    )


def noisy(gradient: Params, share: float, *, seed: int) -> Params:
    """Gaussian noise with `share` of the norm of each tensor."""
    if not share:
        return gradient
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(g.shape, generator=generator, dtype=torch.float64).to(g) for name, g in gradient.items()}
    return {name: g + share * g.norm() / drawn[name].norm() * drawn[name] for name, g in gradient.items()}


def standard_batch(features: int, records: int = 2) -> tuple[Tensor, Tensor]:
    """The paper's: the first unit vectors, with labels +1, -1, +1 and so on."""
    return torch.eye(features, dtype=torch.float64)[:records], (torch.arange(records) + 1) % 2


def unit_batch(features: int, records: int = 2, *, seed: int) -> tuple[Tensor, Tensor]:
    """Random directions, with the same labels."""
    drawn = torch.randn(records, features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn / drawn.norm(dim=1, keepdim=True), (torch.arange(records) + 1) % 2


def frobenius(attack: Stein, release: Gradient, truth: Tensor, *, seed: int) -> float:
    """The Frobenius norm of the error after the best assignment, over the number of records."""
    found = attack.run(release, seed=seed).x
    matched = found[hungarian(found, truth)]
    return float((matched - truth).norm()) / len(truth)
