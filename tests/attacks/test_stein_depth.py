"""Stein on deeper nets: the layers before the last two are inverted, or refused."""

from dataclasses import replace

import pytest
import torch
from gradients import FEATURES, ROWS, Activation, assert_exact, name_of, release_of, some_digits, unit_vectors
from refusals import refused
from torch import nn

from remanence import Data
from remanence.attacks import Stein
from remanence.attacks.gradients.tensor.wide_layer import WideLayer
from remanence.models import initial_params, mlp, server_params
from remanence.training.losses import CrossEntropy


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [(150, 1000), (100, 100, 1000)])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid], ids=name_of)
def test_layers_before_the_last_two_are_inverted(digits: Data, activation: Activation, hidden: tuple[int, ...]) -> None:
    batch = some_digits(digits, 0, 3)
    model = mlp(batch.shape, 10, hidden=hidden, activation=activation)
    at = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    assert_exact(Stein().run(release_of(model, at, batch, loss=CrossEntropy()), seed=0), batch)


@pytest.mark.parametrize("hidden", [(40, ROWS), (60, 45, ROWS)])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU, nn.Tanh], ids=name_of)
def test_the_server_reads_deeper_nets(activation: Activation, hidden: tuple[int, ...]) -> None:
    """Algorithm 2: the layers before pass x and -x on."""
    batch = unit_vectors()
    model = mlp(batch.shape, 1, hidden=hidden, activation=activation)
    release = release_of(model, server_params(model, seed=0), batch)
    assert_exact(Stein().run(release, seed=0), batch)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU], ids=name_of)
def test_estimates_pass_back_through_layers_with_the_error_that_they_have(activation: Activation) -> None:
    """Inverted alone, each leaky ReLU makes an error below zero a hundred times larger."""
    x = torch.randn(2, FEATURES, generator=torch.Generator().manual_seed(0)).double()
    batch = replace(unit_vectors(), x=(x / x.norm(dim=1, keepdim=True)).abs())
    model = mlp(batch.shape, 1, hidden=(40, 40, 40, 40, ROWS), activation=activation)
    layer = WideLayer.from_release(release_of(model, server_params(model, seed=0), batch))
    inputs = layer.inputs(batch.x)
    noise = 0.1 * torch.randn(inputs.shape, generator=torch.Generator().manual_seed(1)).double() / FEATURES**0.5
    assert (layer.records(inputs + noise, exact=False) - batch.x).norm(dim=1).max() < 3 * noise.norm(dim=1).max()


def test_a_deeper_net_must_be_wide_enough_for_x_and_its_opposite() -> None:
    with refused("unsupported-model", "model"):
        server_params(mlp((FEATURES,), 1, hidden=(50, 39, ROWS)), seed=0)


@pytest.mark.slow
def test_a_layer_that_cannot_be_inverted_is_refused(digits: Data) -> None:
    batch = some_digits(digits, 0, 3)
    for activation, code in ((nn.ReLU, "not-identifiable"), (nn.ELU, "unsupported-model")):
        model = mlp(batch.shape, 10, hidden=(70, 1000), activation=activation)
        at = {name: p.double() for name, p in initial_params(model, seed=0).items()}
        with refused(code, "release"):
            Stein().run(release_of(model, at, batch, loss=CrossEntropy()), seed=0)


def test_a_layer_before_without_biases_is_inverted(digits: Data) -> None:
    batch = some_digits(digits, 0, 3)
    with torch.device("meta"):
        before = (nn.Flatten(), nn.Linear(64, 100, bias=False), nn.Tanh())
        model = nn.Sequential(*before, nn.Linear(100, 1000), nn.Tanh(), nn.Linear(1000, 10))
    at = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    assert_exact(Stein().run(release_of(model, at, batch, loss=CrossEntropy()), seed=0), batch)
