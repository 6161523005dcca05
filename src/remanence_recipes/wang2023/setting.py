"""The paper's setting: the network that the server sends, planted batches, and the error of a reconstruction.

The server chooses f(x) = sum_j s(w_j x) / m + 30 with m normal rows w_j and receives the gradient of the squared error
of a batch with labels +1 and -1. Everything is float64.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad, vjp

from remanence.attacks import Stein, WideLayer
from remanence.engine import loss_gradient
from remanence.metrics import Interval, hungarian
from remanence.metrics.statistics import bootstrap_mean
from remanence.models import mlp, server_params, server_rows
from remanence.releases import Gradient
from remanence.releases.defenses import Defense, defended
from remanence.seeds import derive_seed
from remanence.training import SquaredError
from remanence.types import Reconstruction

PAPERS = Stein.paper()
BY_ONES = replace(PAPERS, contraction="ones")
OF_ONE_SIGN = replace(PAPERS, contraction="ones, one sign")
PLUGGED = replace(PAPERS, plug_in=2)
HEAD = replace(PAPERS, source="head")
SPAN = Stein(refine=False, norm=1.0, clamp=False)
OURS = Stein(clamp=False)
OFFSET = 30.0  # of the output
ERROR, CHANCE = "‖error‖_F / 2", "the error of random unit vectors"


class SquareAndCube(nn.Module):
    """The activation x^2 + x^3, for which the paper's algorithm needs no remark."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square() + x**3


class Square(nn.Module):
    """The activation x^2, for which only the span of a batch is identifiable."""

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
    defenses: tuple[Defense, ...] = (),
    offset: float = OFFSET,
) -> Gradient:
    """The gradient that a client sends for a batch; `before` are the widths of layers before the wide one, `offset` is
    the bias of the output."""
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
    x: Tensor, labels: Tensor, *, activation: Callable[[], nn.Module], rows: int, seed: int, block: int = 4096
) -> Callable[[], Iterator[WideLayer]]:
    """The gradient of two layers as a function that yields it a block of rows at a time.

    Rows are sampled again from the seed at every call: neither they nor their gradient are ever in memory together.
    """
    s, loss = activation(), SquaredError()
    sampled = partial(server_rows, rows, x.shape[1], seed=seed, block=block)
    outputs = torch.full((len(x), 1), OFFSET).to(x)
    for weights in sampled():
        outputs += s(x @ weights.to(x).T).sum(1, keepdim=True) / rows
    residuals = grad(loss)(outputs, labels)  # (records, 1)

    def blocks() -> Iterator[WideLayer]:
        for weights in sampled():
            weights = weights.to(x)
            values, backward = vjp(s, weights @ x.T)[:2]
            (derivatives,) = backward(torch.ones_like(values))
            head = weights.new_full((len(weights), 1), 1 / rows)
            deltas = head * derivatives * residuals.T  # (rows, records)
            yield WideLayer(
                rows=weights,
                biases=weights.new_zeros(len(weights)),
                head=head,
                grad_rows=deltas @ x,
                grad_biases=deltas.sum(1),
                grad_head=values @ residuals,
                activation=s,
                before=(),
                precision=torch.finfo(weights.dtype).eps,
                row_std=1.0,
            )

    return blocks


def standard_batch(features: int, records: int = 2, *, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """The paper's planted batch: the first unit vectors, with labels +1, -1, +1 and so on (classes 1, 0, 1, ...)."""
    labels = (torch.arange(records, device=device) + 1) % 2
    return torch.eye(features, dtype=torch.float64, device=device)[:records], labels


def unit_batch(features: int, records: int = 2, *, seed: int) -> tuple[Tensor, Tensor]:
    """Random unit vectors, with the labels of `standard_batch`."""
    x = torch.randn(records, features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True), (torch.arange(records) + 1) % 2


def frobenius_error(x: Tensor, truth: Tensor) -> float:
    """The Frobenius norm of the error after the best assignment, over the number of records."""
    return float((x[hungarian(x, truth)] - truth).norm()) / len(truth)


def reconstructed(
    attack: Stein, sent: Iterable[tuple[Tensor, Gradient]], *, seed: int
) -> list[tuple[Tensor, Reconstruction]]:
    """Each batch with what the attack reconstructs from the gradient that was sent of it."""
    return [(x, attack.run(release, seed=derive_seed(seed, "attack", i))) for i, (x, release) in enumerate(sent)]


def mean_error(found: Iterable[tuple[Tensor, Reconstruction]], *, seed: int, position: int) -> Interval:
    """The mean error over batches, with its interval at a position of the axis."""
    errors = [frobenius_error(each.x, x) for x, each in found]
    return bootstrap_mean(torch.tensor(errors), seed=derive_seed(seed, "interval", position))


def chance_error(features: int, seed: int) -> float:
    """The mean error of 200 pairs of random unit vectors in place of a reconstruction."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "chance", features))
    pairs = torch.randn(200, 2, features, generator=generator, dtype=torch.float64)
    truth, _ = standard_batch(features)
    return sum(frobenius_error(pair / pair.norm(dim=1, keepdim=True), truth) for pair in pairs) / len(pairs)
