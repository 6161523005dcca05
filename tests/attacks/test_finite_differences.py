"""Every gradient that the federated part sends or follows, against the differences of the number it is the slope of."""

from collections.abc import Callable

import pytest
import torch
from gradients import Activation, name_of, release_of, unit_vectors
from torch import Tensor, nn
from torch.func import grad

from remanence import SGD, Data, LocalUpdate, SquaredError, Training
from remanence.attacks import L2, Cosine
from remanence.engine import loss_gradient
from remanence.engine.mlp import mlp_engine
from remanence.models import apply, mlp
from remanence.releases import KnowsUpdate
from remanence.releases.releases import local_delta
from remanence.search.distances import Distance
from remanence.search.priors import total_variation
from remanence.training.losses import CrossEntropy, Loss
from remanence.types import Params
from remanence_recipes.wang2023.setting import SquareAndCube, gradient_in_blocks, gradient_of

_STEP = 1e-5
LOSSES: list[Loss] = [CrossEntropy(), SquaredError()]


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def difference(value: Callable[[Tensor], Tensor], at: Tensor, along: Tensor) -> Tensor:
    return (value(at + _STEP * along) - value(at - _STEP * along)) / (2 * _STEP)


def agrees(slope: Tensor, value: Callable[[Tensor], Tensor], at: Tensor) -> None:
    for seed in range(3):
        along = drawn(*at.shape, seed=seed)
        assert float((slope * along).sum()) == pytest.approx(float(difference(value, at, along)), rel=1e-5, abs=1e-9)


def small_net(loss: Loss, activation: Activation) -> tuple[nn.Module, Params, Data]:
    batch = Data(x=drawn(5, 1, 3, 4, seed=1).sigmoid(), y=torch.tensor([0, 1, 1, 0, 1]), num_classes=2)
    model = mlp(batch.shape, 1 if isinstance(loss, SquaredError) else 2, hidden=(6, 4), activation=activation)
    return model, {n: drawn(*p.shape, seed=k) for k, (n, p) in enumerate(model.named_parameters())}, batch


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU], ids=name_of)
def test_what_a_client_sends(activation: Activation, loss: Loss) -> None:
    model, at, batch = small_net(loss, activation)
    written = mlp_engine(model, loss, batch.shape)
    assert (written is not None) is (activation is nn.ReLU)
    ways = [loss_gradient(model, at, batch.x, batch.y, loss=loss)]
    ways += [written.gradient(at, batch.x, batch.y)] if written else []
    for sent in ways:
        for name, p in at.items():

            def value(p: Tensor, name: str = name) -> Tensor:
                return loss(apply(model, at | {name: p}, batch.x), batch.y)

            agrees(sent[name], value, p)


@pytest.mark.parametrize("activation", [SquareAndCube, nn.Tanh, nn.Sigmoid], ids=name_of)
def test_what_a_client_sends_in_blocks(activation: Activation) -> None:
    batch = unit_vectors(2, features=6)
    given = {"activation": activation, "rows": 40, "seed": 3}
    model, at = (getattr(gradient_of(batch.x, batch.y, **given), name) for name in ("model", "at"))
    rows = torch.cat([block.grad_rows for block in gradient_in_blocks(batch.x, batch.y, **given, block=16)()])

    def value(weight: Tensor) -> Tensor:
        return SquaredError()(apply(model, at | {"1.weight": weight}, batch.x), batch.y)

    agrees(rows, value, at["1.weight"])


def one_gradient(model: nn.Module, at: Params, batch: Data) -> KnowsUpdate:
    return release_of(model, at, batch, loss=CrossEntropy())


def three_steps(model: nn.Module, at: Params, batch: Data) -> KnowsUpdate:
    training = Training(optimizer=SGD(lr=0.05, momentum=0.5), epochs=3)
    update = local_delta(training, model, at, batch.x, batch.y)
    given = {"labels": None, "batch_size": len(batch), "shape": batch.shape, "training": training}
    return LocalUpdate(model=model, at=at, update=update, **given)


@pytest.mark.parametrize("distance", [Cosine(), L2()], ids=repr)
@pytest.mark.parametrize("sends", [one_gradient, three_steps])
def test_what_gradient_matching_follows(
    sends: Callable[[nn.Module, Params, Data], KnowsUpdate], distance: Distance
) -> None:
    model, at, batch = small_net(CrossEntropy(), nn.Tanh)
    release = sends(model, at, batch)

    def value(x: Tensor) -> Tensor:
        sent, ours = (torch.cat([p[n].flatten() for n in at]) for p in (release.sent, release.simulate(x, batch.y)))
        return distance(sent, ours) + 1e-3 * total_variation(x)

    x = drawn(*batch.x.shape, seed=9).sigmoid()
    agrees(grad(value)(x), value, x)
