"""Planted records of which no neuron sees one alone, and their gradient by torch's own backward pass."""

import dataclasses

import pytest
import torch
from gradients import matched, release_of
from torch import Tensor, nn

from remanence import Data
from remanence.attacks import FirstLayer
from remanence.attacks.gradients.row_matching import RowSpace
from remanence.models import initial_params, mlp
from remanence.training.losses import CrossEntropy

pytestmark = pytest.mark.slow


def planted(records: int, neurons: int, features: int = 300) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A net of random weights, and correlated Gaussian records with their labels."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.arange(1, features + 1) ** -0.5
    x = torch.randn(records, features, generator=generator) * scale / scale.square().mean().sqrt()
    net = nn.Sequential(nn.Linear(features, neurons), nn.ReLU(), nn.Linear(neurons, 10))
    params = initial_params(mlp((features,), 10, hidden=(neurons,), activation=nn.ReLU), seed=0)
    for parameter, value in zip(net.parameters(), params.values(), strict=True):
        parameter.data = value.clone()
    return net, x, torch.arange(records) % 10


def test_points_are_nearer_to_planted_records_than_random_ones_of_their_row_space() -> None:
    net, x, y = planted(24, 200)
    nn.functional.cross_entropy(net(x), y).backward()
    weight, bias, last_weight, last_bias = net.parameters()
    assert weight.grad is not None
    assert bias.grad is not None
    gradient = torch.cat([weight.grad, bias.grad[:, None]], 1).double()

    def backpropagated(activations: Tensor) -> Tensor:
        errors = (activations @ last_weight.T + last_bias).softmax(1) - nn.functional.one_hot(y, 10)
        return (errors @ last_weight / 24).detach()

    space = RowSpace.from_gradient(gradient, records=24, norm=float(x.norm(dim=1).mean()))
    points = space.match(weight.detach(), bias.detach(), backpropagated, seed=0)
    away, random = (torch.cdist(x, each).min(1).values / x.norm(dim=1) for each in (points, space.sample(seed=0)))
    assert float(away.median()) < 0.1 < 0.5 < float(random.median())
    assert float(away.max()) < 0.5


def test_a_batch_of_which_no_neuron_sees_one_record_comes_back_whole() -> None:
    net, x, y = planted(70, 280)
    batch = Data(bounds=(-torch.inf, torch.inf), x=x.double(), y=y, num_classes=10)
    at = dict(
        zip(["1.weight", "1.bias", "3.weight", "3.bias"], [p.detach().double() for p in net.parameters()], strict=True)
    )
    release = release_of(mlp(batch.shape, 10, hidden=(280,), activation=nn.ReLU), at, batch, loss=CrossEntropy())
    release = dataclasses.replace(release, bounds=batch.bounds)
    assert (FirstLayer(factorising=False).run(release, seed=0).objective or 0) == 1
    found = FirstLayer(guesses=False).run(release, seed=0)
    assert torch.allclose(matched(found, batch)[0], batch.x, atol=1e-6)
