"""R-GAP on networks of torch's own modules, whose gradients are those of autograd."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from gradients import release_of
from refusals import refused
from torch import Tensor, nn

from remanence import Data
from remanence.attacks import RGAP
from remanence.models import lenet, torch_params
from remanence.releases import Gradient
from remanence.training import CrossEntropy
from remanence.types import Params

INVERTIBLE: list[Callable[[], nn.Module]] = [
    *(nn.Sigmoid, nn.Tanh, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.Softplus, nn.Identity),
    lambda: nn.CELU(alpha=0.5),
    lambda: nn.LeakyReLU(0.0),  # a ReLU, as is the next
    lambda: nn.ELU(alpha=0.0),
]


def sent(model: nn.Module, record: Data, *, seed: int = 0, at: Params | None = None) -> Gradient:
    """The gradient of one record at fresh weights."""
    return release_of(model, at or torch_params(model, seed=seed), record, loss=CrossEntropy())


def rms(release: Gradient, record: Data) -> float:
    found = RGAP().run(release, seed=0)
    assert found.y is not None
    assert torch.equal(found.y, record.y)
    return float((found.x - record.x).square().mean().sqrt())


@pytest.mark.parametrize("activation", INVERTIBLE, ids=lambda each: type(each()).__name__)
def test_a_record_is_exact_below_invertible_activations(digits: Data, activation: Callable[[], nn.Module]) -> None:
    record = digits.take(slice(7, 8))
    assert rms(sent(lenet(digits.shape, 10, activation=activation), record), record) < 1e-5


class Branded(nn.Module):
    """A class of a user's own: normalised inputs, BatchNorm, groups, a convolution without bias, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.3).reshape(1, 1, 1, 1))
        self.register_buffer("std", torch.tensor(0.5).reshape(1, 1, 1, 1))
        self.stem = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.deep = nn.Conv2d(4, 12, 3, stride=2, padding=1, groups=2)
        self.drop = nn.Dropout(0.5)
        self.hidden = nn.Linear(12 * 16, 20)
        self.classes = nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.nn.functional.leaky_relu(self.norm(self.stem((x - self.mean) / self.std)), 0.1)
        x = self.drop(torch.tanh(self.deep(x)).flatten(1))
        return self.classes(torch.relu(self.hidden(x)))


def branded() -> tuple[nn.Module, Params]:
    torch.manual_seed(0)
    model = Branded().eval()
    with torch.no_grad():
        model.norm.running_mean.uniform_(-0.2, 0.2)
        model.norm.running_var.uniform_(0.5, 2)
        model.norm.weight.uniform_(-1, 1)
    return model, {name: p.detach().clone() for name, p in model.state_dict().items()}


def test_a_class_of_the_users_own(digits: Data) -> None:
    model, at = branded()
    record = digits.take(slice(3, 4))
    assert rms(sent(model, record, at=at), record) < 1e-5


def test_a_clipped_gradient_and_frozen_convolutions(digits: Data) -> None:
    """Clipping scales all gradients alike; the outputs of a wide convolution suffice without its own gradient."""
    model, at = branded()
    record = digits.take(slice(3, 4))
    release = sent(model, record, at=at)
    clipped = {name: 0.01 * g for name, g in release.gradient.items()}
    assert rms(replace(release, gradient=clipped), record) < 1e-5
    without = {name: g for name, g in release.gradient.items() if name != "stem.weight"}
    assert rms(replace(release, gradient=without), record) < 1e-5


def test_the_objective_is_the_distance_of_the_gradient_that_was_sent(digits: Data) -> None:
    record = digits.take(slice(7, 8))
    release = sent(lenet(digits.shape, 10), record)
    generator = torch.Generator().manual_seed(0)
    noisy = {
        name: g + 1e-2 * g.square().mean().sqrt() * torch.randn(g.shape, generator=generator)
        for name, g in release.gradient.items()
    }
    exact, found = (RGAP().run(each, seed=0) for each in (release, replace(release, gradient=noisy)))
    at = {name: p.clone().requires_grad_() for name, p in release.at.items()}
    logits = torch.func.functional_call(release.model, at, (found.x,))
    ours = torch.autograd.grad(nn.functional.cross_entropy(logits, record.y), list(at.values()))
    flat, target = (torch.cat([each.flatten() for each in every]) for every in (ours, noisy.values()))
    assert found.objective == pytest.approx(float((flat - target).norm() / target.norm()), rel=1e-4)
    assert exact.objective is not None
    assert exact.objective < 1e-5


def test_refuses_what_it_cannot_invert(digits: Data) -> None:
    record = digits.take(slice(0, 1))

    def network(*layers: nn.Module) -> Gradient:
        return sent(nn.Sequential(*layers), record)

    with refused("unsupported-model", "release"):
        RGAP().run(network(nn.Flatten(), nn.Linear(64, 10)), seed=0)
    for layer in (nn.GELU(), nn.LeakyReLU(-0.1), nn.ELU(-0.5), nn.MaxPool2d(2)):
        sides = 4 if isinstance(layer, nn.MaxPool2d) else 8
        convolution = nn.Conv2d(1, 3, 3, padding=1)
        with refused("unsupported-model", "release"):
            RGAP().run(network(convolution, layer, nn.Flatten(), nn.Linear(3 * sides**2, 10)), seed=0)
    with refused("not-identifiable", "release") as caught:  # 16 + 9 equations
        RGAP().run(network(nn.Conv2d(1, 1, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(16, 10)), seed=0)
    assert "64 numbers" in str(caught.value)
    for side, channels, stride in ((112, 1, 2), (96, 4, 1)):  # too many unknowns, and too many equations of them
        large = Data(x=torch.rand(1, 1, side, side), y=record.y, num_classes=10)
        convolution = nn.Conv2d(1, channels, 3, stride=stride, padding=1)
        head = nn.Linear(channels * (side // stride) ** 2, 10)
        with refused("unsupported-model", "release"):
            RGAP().run(sent(nn.Sequential(convolution, nn.Flatten(), head), large), seed=0)
    release = sent(lenet(digits.shape, 10), record)
    with refused("not-identifiable", "batch_size"):
        RGAP().run(replace(release, batch_size=4), seed=0)
    with refused("unsupported-model", "release"):
        RGAP().run(replace(release, gradient={k: g for k, g in release.gradient.items() if k != "7.bias"}), seed=0)
    zero = {name: torch.zeros_like(g) for name, g in release.gradient.items()}
    with refused("empty", "gradient"):
        RGAP().run(replace(release, gradient=zero), seed=0)
    for name in release.gradient:
        for value in (torch.nan, torch.inf):
            broken = {**release.gradient, name: torch.full_like(release.gradient[name], value)}
            with refused("not-finite", "gradient"):
                RGAP().run(replace(release, gradient=broken), seed=0)
