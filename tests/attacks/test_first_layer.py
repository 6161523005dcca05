import dataclasses

import pytest
import torch
from gradients import assert_exact, error, honest, release_of, some_digits
from refusals import refused
from torch import nn

from remanence import Data, SquaredError
from remanence.attacks import FirstLayer
from remanence.models import cnn, initial_params, mlp, server_params
from remanence.releases import Gradient
from remanence.training.losses import CrossEntropy, Logistic


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ELU, nn.Sigmoid, nn.Tanh, nn.GELU])
@pytest.mark.parametrize("hidden", [(), (7,), (30, 20), (12, 9, 8)], ids=str)
def test_one_record_is_exact_whatever_the_net_behind(
    digits: Data, activation: type[nn.Module], hidden: tuple[int, ...]
) -> None:
    batch = some_digits(digits, 3, 1)
    assert_exact(FirstLayer().run(honest(batch, activation, hidden=hidden), seed=0), batch, within=1e-10)


def test_one_record_is_exact_under_a_squared_error(digits: Data) -> None:
    batch = some_digits(digits, 5, 1, classes=2)
    model = mlp(batch.shape, 1, hidden=(20,), activation=nn.ReLU)
    release = release_of(model, server_params(model, seed=0, row_std=0.3), batch, loss=SquaredError())
    assert_exact(FirstLayer().run(release, seed=0), batch, within=1e-10)


@pytest.mark.parametrize("labels", [[1, 1, 1, 1], [0, 1, 1, 0], [0]], ids=str)
@pytest.mark.parametrize("hidden", [(80,), (80, 30)], ids=str)
def test_records_and_labels_under_a_logistic_loss(digits: Data, hidden: tuple[int, ...], labels: list[int]) -> None:
    """The one output is for two classes, and which of them a record has is inferred."""
    batch = dataclasses.replace(some_digits(digits, 7, len(labels), classes=2), y=torch.tensor(labels))
    model = mlp(batch.shape, 1, hidden=hidden, activation=nn.ReLU)
    release = release_of(model, initial_params(model, seed=0), batch, loss=Logistic())
    assert_exact(FirstLayer().run(release, seed=0), batch, within=1e-4)


@pytest.mark.parametrize("others", [0, 4])
def test_a_blank_record(digits: Data, others: int) -> None:
    """A record of zeros is a quotient like any other."""
    batch = some_digits(digits, 5, others + 1)
    batch = dataclasses.replace(batch, x=torch.cat([torch.zeros_like(batch.x[:1]), batch.x[1:]]))
    model = mlp(batch.shape, 10, hidden=(400,), activation=nn.ReLU)
    at = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    at["1.bias"] = 0.1 * torch.randn(400, generator=torch.Generator().manual_seed(0)).double()  # or it is always off
    release = release_of(model, at, batch, loss=CrossEntropy())
    assert_exact(FirstLayer().run(release, seed=0), batch)


def test_labels_of_a_part_of_the_batch_are_refused(digits: Data) -> None:
    batch = some_digits(digits, 20, 4)
    with refused("shape-mismatch", "labels"):
        FirstLayer().run(dataclasses.replace(honest(batch, nn.ReLU), labels=batch.y[:3]), seed=0)


def test_a_planted_batch_of_which_every_neuron_sees_one_record() -> None:
    """Neuron i is on for record i alone: the quotients are the records, and no label is wrong."""
    x = 0.1 + 0.9 * torch.eye(6, dtype=torch.float64)
    batch = Data(x=x, y=torch.tensor([2, 0, 1, 1, 2, 0]), num_classes=3)
    model = mlp(batch.shape, 3, hidden=(6,), activation=nn.ReLU)
    at = {name: p.double() for name, p in initial_params(model, seed=1).items()}
    at |= {"1.weight": torch.eye(6, dtype=torch.float64), "1.bias": torch.full((6,), -0.5, dtype=torch.float64)}
    release = release_of(model, at, batch, loss=CrossEntropy())
    quotients = release.gradient["1.weight"] / release.gradient["1.bias"][:, None]
    assert torch.allclose(quotients, x)
    assert_exact(FirstLayer().run(release, seed=0), batch, within=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("hidden", [(400,), (400, 50)], ids=str)
def test_a_batch_of_an_ordinary_net_comes_back_whole(digits: Data, hidden: tuple[int, ...], dtype: torch.dtype) -> None:
    batch = some_digits(digits, 100, 16)  # labels repeat
    found = FirstLayer().run(honest(batch, nn.ReLU, hidden=hidden, dtype=dtype), seed=0)
    assert_exact(found, batch, within=1e-4 if dtype == torch.float32 else 1e-10)


def test_what_is_not_sure_is_guessed_only_when_asked_for(digits: Data) -> None:
    batch = some_digits(digits, 0, 3)
    release = honest(batch, nn.ELU)  # no neuron is ever off
    guessed = FirstLayer().run(release, seed=0)
    assert 1 <= len(guessed.x) <= 3
    assert guessed.objective == 1
    with refused("not-identifiable"):
        FirstLayer(guesses=False).run(release, seed=0)


def test_noise_leaves_one_record_readable(digits: Data) -> None:
    batch = some_digits(digits, 3, 1)
    release = honest(batch, nn.ELU)
    generator = torch.Generator().manual_seed(0)
    noise = {n: 1e-3 * g.std() * torch.randn(g.shape, generator=generator) for n, g in release.gradient.items()}
    noisy = dataclasses.replace(release, gradient={n: g + noise[n] for n, g in release.gradient.items()})
    assert error(FirstLayer().run(noisy, seed=0), batch) < 0.01


def test_shown_labels_are_kept_to(digits: Data) -> None:
    batch = some_digits(digits, 20, 4)
    release = dataclasses.replace(honest(batch, nn.ReLU), labels=batch.y)
    assert_exact(FirstLayer().run(release, seed=0), batch)


def sent(model: nn.Module, batch: Data) -> Gradient:
    return release_of(model, initial_params(model, seed=0), batch, loss=CrossEntropy())


def test_refuses_what_it_cannot_divide(digits: Data) -> None:
    batch = some_digits(digits, 0, 2)
    with torch.device("meta"):
        without_bias = nn.Sequential(nn.Flatten(), nn.Linear(64, 8, bias=False), nn.ReLU(), nn.Linear(8, 10))
        narrowed = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 10))
    with refused("unsupported-model", "release"):
        FirstLayer().run(sent(without_bias, batch), seed=0)
    with refused("unsupported-model", "release"):
        FirstLayer().run(sent(narrowed, batch), seed=0)
    images = Data(x=torch.rand(2, 1, 12, 12), y=torch.tensor([0, 1]), num_classes=10)
    with refused("unsupported-model", "release"):
        FirstLayer().run(sent(cnn((1, 12, 12), 10), images), seed=0)
    release = honest(batch, nn.ReLU)
    zeros = {name: torch.zeros_like(g) for name, g in release.gradient.items()}
    with refused("empty", "gradient"):
        FirstLayer().run(dataclasses.replace(release, gradient=zeros), seed=0)
    with refused("not-enough-knowledge", "batch_size"):
        FirstLayer().run(dataclasses.replace(release, batch_size=None), seed=0)
