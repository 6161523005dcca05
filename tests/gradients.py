"""Gradients of known batches, and how near a reading of them comes."""

from collections.abc import Callable

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from remanence import Data, Reconstruction, SquaredError
from remanence.attacks import Stein
from remanence.engine import loss_gradient
from remanence.models import initial_params, mlp, server_params
from remanence.releases import Gradient
from remanence.training.losses import CrossEntropy, Loss
from remanence.types import Params
from remanence_recipes.wang2023.setting import SquareAndCube

FEATURES, ROWS = 20, 2000
PAPERS = Stein.paper()
Activation = Callable[[], nn.Module]
READABLE: list[Activation] = [SquareAndCube, nn.Tanh, nn.Sigmoid, nn.ReLU, nn.LeakyReLU, nn.ELU]
SMOOTH: list[Activation] = [nn.Tanh, nn.ELU, SquareAndCube]


def name_of(value: object) -> str | None:
    return value.__name__ if isinstance(value, type) else None


def release_of(model: nn.Module, at: Params, batch: Data, *, loss: Loss | None = None) -> Gradient:
    """What a client sends, in the precision of `at`."""
    loss = loss or SquaredError()
    dtype = next(iter(at.values())).dtype
    gradient = loss_gradient(model, at, batch.x.to(dtype), batch.y, loss=loss)
    return Gradient(
        model=model, at=at, gradient=gradient, labels=None, batch_size=len(batch), shape=batch.shape, loss=loss
    )


def unit_vectors(count: int = 2, features: int = FEATURES) -> Data:
    labels = torch.arange(1, count + 1) % 2  # 1, 0, 1, ...: the numbers 1, -1, 1, ... of the paper
    return Data(x=torch.eye(features).double()[:count], y=labels, num_classes=2)


def planted(
    activation: Activation, batch: Data | None = None, *, seed: int = 0, rows: int = ROWS, offset: float = 30.0
) -> Gradient:
    """By default the paper's synthetic experiment: two unit vectors with labels 1 and -1."""
    batch = batch or unit_vectors()
    model = mlp(batch.shape, 1, hidden=(rows,), activation=activation)
    return release_of(model, server_params(model, seed=seed, offset=offset), batch)


def without_biases(batch: Data, activation: nn.Module, *, rows: int = ROWS) -> Gradient:
    with torch.device("meta"):
        first = nn.Linear(batch.x[0].numel(), rows, bias=False)
        model = nn.Sequential(nn.Flatten(), first, activation, nn.Linear(rows, 1))
    return release_of(model, server_params(model, seed=0), batch)


def some_digits(digits: Data, start: int, count: int, *, classes: int = 10) -> Data:
    batch = digits.take(slice(start, start + count))
    return Data(x=batch.x, y=batch.y % classes, num_classes=classes)


def sent_to(batch: Data, activation: Activation, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> Gradient:
    """Raw pixels, the rows scaled to them."""
    model = mlp(batch.shape, 1, hidden=(ROWS,), activation=activation)
    at = server_params(model, seed=seed, row_std=float(1 / batch.x.flatten(1).norm(dim=1).mean()))
    return release_of(model, {name: p.to(dtype) for name, p in at.items()}, batch)


def honest(
    batch: Data,
    activation: Activation,
    *,
    hidden: tuple[int, ...] = (500,),
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Gradient:
    model = mlp(batch.shape, 10, hidden=hidden, activation=activation)
    at = {name: p.to(dtype) for name, p in initial_params(model, seed=seed).items()}
    return release_of(model, at, batch, loss=CrossEntropy())


def matched(found: Reconstruction, truth: Data) -> tuple[Tensor, Tensor]:
    """Records and labels in the order of the truth."""
    assert found.x.shape == truth.x.shape
    distances = torch.cdist(truth.x.double().flatten(1), found.x.double().flatten(1))
    order = torch.from_numpy(linear_sum_assignment(distances.numpy())[1])
    return found.x.double()[order], found.y[order]


def error(found: Reconstruction, truth: Data) -> float:
    """The reading of figure 2's axis that fits best: the Frobenius norm over the number of records."""
    return float((matched(found, truth)[0] - truth.x.double()).norm() / len(truth))


def assert_exact(found: Reconstruction, truth: Data, *, within: float = 1e-6) -> None:
    assert error(found, truth) < within
    assert matched(found, truth)[1].tolist() == truth.y.tolist()
    assert found.objective < within
