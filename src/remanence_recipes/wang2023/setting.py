"""What the recipes of this paper share: the server's net, planted batches, and the error of a reading."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad, vjp

from remanence.attacks import Stein, WideLayer
from remanence.engine import loss_gradient
from remanence.metrics import hungarian
from remanence.models import mlp, server_params, server_rows
from remanence.releases import Gradient
from remanence.releases.defenses import Defense, defended
from remanence.training import SquaredError
from remanence.types import Reconstruction

PAPERS = Stein.paper()
PLUGGED = replace(PAPERS, plug_in=2)
HEAD = replace(PAPERS, source="head")
SPAN = Stein(refine=False, norm=1.0, clamp=False)
OURS = Stein(clamp=False)


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
    defenses: tuple[Defense, ...] = (),
) -> Gradient:
    """What a client sends for the batch to a server of the paper; `before` are widths of layers before the wide one."""
    model, loss = mlp(x.shape[1:], 1, hidden=(*before, rows), activation=activation), SquaredError()
    at = {name: p.to(x) for name, p in server_params(model, seed=seed, offset=offset).items()}
    return Gradient(
        model=model,
        at=at,
        gradient=defended(loss_gradient(model, at, x, labels, loss=loss), defenses, seed=seed),
        labels=None,
        batch_size=len(x),
        shape=tuple(x.shape[1:]),
        loss=loss,
        defenses=defenses,
    )


def gradient_in_blocks(
    x: Tensor,
    labels: Tensor,
    *,
    activation: Callable[[], nn.Module],
    rows: int,
    seed: int,
    offset: float = 30.0,
    block: int = 4096,
) -> Callable[[], Iterator[WideLayer]]:
    """The same of two layers, made a block of rows at a time from the seed, as often as it is called: neither the rows
    nor their gradient are ever whole."""
    s, loss = activation(), SquaredError()
    drawn = partial(server_rows, rows, x.shape[1], seed=seed, block=block)
    outputs = torch.full((len(x), 1), offset).to(x)
    for own in drawn():
        outputs += s(x @ own.to(x).T).sum(1, keepdim=True) / rows
    residuals = grad(loss)(outputs, labels)  # (records, 1)

    def blocks() -> Iterator[WideLayer]:
        for own in drawn():
            own = own.to(x)
            values, pull = vjp(s, own @ x.T)[:2]
            (slopes,) = pull(torch.ones_like(values))
            head = own.new_full((len(own), 1), 1 / rows)
            reached = head * slopes * residuals.T  # (rows, records)
            yield WideLayer(
                rows=own,
                biases=own.new_zeros(len(own)),
                head=head,
                grad_rows=reached @ x,
                grad_biases=reached.sum(1),
                grad_head=values @ residuals,
                activation=s,
                before=(),
                precision=torch.finfo(own.dtype).eps,
                row_std=1.0,
            )

    return blocks


def standard_batch(features: int, records: int = 2) -> tuple[Tensor, Tensor]:
    """The paper's: the first unit vectors, with labels +1, -1, +1 and so on."""
    return torch.eye(features, dtype=torch.float64)[:records], (torch.arange(records) + 1) % 2


def unit_batch(features: int, records: int = 2, *, seed: int) -> tuple[Tensor, Tensor]:
    """Random directions, with the same labels."""
    drawn = torch.randn(records, features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn / drawn.norm(dim=1, keepdim=True), (torch.arange(records) + 1) % 2


def frobenius(attack: Stein, release: Gradient, truth: Tensor, *, seed: int) -> float:
    return frobenius_of(attack.run(release, seed=seed), truth)


def frobenius_of(found: Reconstruction, truth: Tensor) -> float:
    """The Frobenius norm of the error after the best assignment, over the number of records."""
    matched = found.x[hungarian(found.x, truth)]
    return float((matched - truth).norm()) / len(truth)
