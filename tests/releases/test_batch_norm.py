"""Clients with BatchNorm in training mode against plain torch: gradients, local training, running statistics."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence import SGD, Adam, Data, Training, Victim
from remanence.models import apply_to_batch
from remanence.releases import Gradient, gradient_at_initial, local_update
from remanence.training import CrossEntropy
from remanence.training.dp import DPGD
from remanence.types import Params


def net(momentum: float | None = 0.1, *, affine: bool = True) -> nn.Module:
    """Convolutions and a linear layer, each with a BatchNorm, in training mode with statistics of some batches."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = nn.Sequential(
            *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=momentum, affine=affine), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(4 * 36, 20), nn.BatchNorm1d(20, momentum=momentum), nn.Tanh(), nn.Linear(20, 10)),
        ).double()
        for _ in range(3):
            made(torch.rand(5, 1, 8, 8).double())
    return made


@pytest.fixture(scope="module")
def batch(digits: Data) -> Data:
    return digits.take(slice(0, 12)).to("cpu", torch.float64)


def client(model: nn.Module, batch: Data, training: Training) -> Victim:
    state, none = {name: p.clone() for name, p in model.state_dict().items()}, batch.take(slice(0, 0))
    return Victim(model=model, training=training, initial=state, final=state, fixed=none, private=batch)


def trained_by_torch(
    model: nn.Module, make: type[torch.optim.Optimizer], batches: list[tuple[Tensor, Tensor]], **settings: float
) -> Params:
    real = deepcopy(model).train()
    optimizer = make(real.parameters(), **settings)  # type: ignore[call-arg]
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(real(x), y).backward()
        optimizer.step()
    return {name: p.detach().clone() for name, p in real.state_dict().items()}


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [True, False])
def test_a_gradient_and_its_statistics_are_those_of_torch(momentum: float | None, affine: bool, batch: Data) -> None:
    model = net(momentum, affine=affine)
    release = gradient_at_initial(
        client(model.eval(), batch, Training(epochs=1)), batch_norm="training", statistics=True
    ).release
    real = deepcopy(model).train()
    loss = cross_entropy(real(batch.x), batch.y)
    expected = dict(zip(dict(real.named_parameters()), torch.autograd.grad(loss, list(real.parameters())), strict=True))
    torch.testing.assert_close(release.gradient, expected)
    after = {n: b for n, b in real.named_buffers() if "running" in n}
    torch.testing.assert_close(release.statistics, after)
    torch.testing.assert_close(release.simulate_with_statistics(batch.x, batch.y)[0], expected)
    assert not model.training


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("adam", [True, False])
def test_epochs_of_mini_batches_are_those_of_torch(momentum: float | None, adam: bool, batch: Data) -> None:
    model = net(momentum)
    optimizer, theirs = (Adam(lr=1e-3), torch.optim.Adam) if adam else (SGD(lr=0.1), torch.optim.SGD)
    training = Training(optimizer=optimizer, epochs=2, batch_size=4, shuffled=False)
    release = local_update(client(model, batch, training), batch_norm="training", statistics=True).release
    parts = [(x, y) for _ in range(2) for x, y in zip(batch.x.split(4), batch.y.split(4), strict=True)]
    after = trained_by_torch(model, theirs, parts, lr=optimizer.lr)
    for name, update in release.update.items():
        torch.testing.assert_close(release.at[name] + update, after[name])
    torch.testing.assert_close(release.statistics, {name: p for name, p in after.items() if "running" in name})
    simulated, statistics = release.simulate_with_statistics(batch.x, batch.y)
    torch.testing.assert_close(simulated, release.sent)
    torch.testing.assert_close({name: statistics[name] for name in release.statistics or ()}, release.statistics)


def test_two_clients_send_the_mean_of_their_statistics(batch: Data) -> None:
    training = Training(optimizer=SGD(lr=0.1), epochs=1)
    shown = local_update(client(net(), batch, training), clients=2, batch_norm="training", statistics=True).release
    halves = [apply_to_batch(net(), shown.at, x)[1] for x in batch.x.split(6)]
    assert shown.statistics is not None
    for name, value in shown.statistics.items():
        torch.testing.assert_close(value, (halves[0][name] + halves[1][name]) / 2)


def test_statistics_can_be_differentiated_for_several_candidates_at_once(batch: Data) -> None:
    """Against finite differences of torch's own running statistics."""
    model = net()
    state = dict(model.state_dict())

    def total(x: Tensor) -> Tensor:
        after = apply_to_batch(model, state, x)[1]
        return sum((value.square().sum() for name, value in after.items() if "running" in name), torch.zeros(()))

    def by_torch(x: Tensor) -> Tensor:
        real = deepcopy(model).train()
        real(x)
        return torch.stack([b.square().sum() for name, b in real.named_buffers() if "running" in name]).sum()

    x = torch.stack([batch.x[:4], batch.x[4:8]])
    direction, small = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x), 1e-5
    grads = torch.vmap(torch.func.grad(total))(x)
    for one, along, grad in zip(x, direction, grads, strict=True):
        expected = (by_torch(one + small * along) - by_torch(one - small * along)) / (2 * small)
        torch.testing.assert_close((grad * along).sum(), expected, rtol=1e-5, atol=1e-8)


def test_a_layer_that_is_used_twice_counts_two_batches(batch: Data) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Linear(64, 64), nn.BatchNorm1d(64)
            self.again = self.norm

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.again(self.first(self.norm(x.flatten(1))))
            return logits

    model = Twice().double().eval()
    state = {name: p for name, p in model.state_dict().items() if not name.startswith("again")}
    logits, after = apply_to_batch(model, state, batch.x)
    real = deepcopy(model).train()
    torch.testing.assert_close(logits, real(batch.x))
    torch.testing.assert_close(after["norm.running_mean"], real.norm.running_mean)
    torch.testing.assert_close(after["norm.running_var"], real.norm.running_var)


def test_what_cannot_be_is_refused(batch: Data) -> None:
    victim = client(net(), batch, Training(epochs=1))
    shown = gradient_at_initial(victim, batch_norm="training", statistics=True).release
    assert shown.statistics is not None
    with refused("conflict", "statistics"):
        replace(shown, batch_norm="frozen")
    with refused("unknown-name", "batch_norm"):
        replace(shown, batch_norm="frosen")
    with refused("shape-mismatch", "statistics"):
        replace(shown, statistics={"1.running_mean": torch.zeros(4)})
    with refused("shape-mismatch", "at"):
        replace(shown, at={name: p for name, p in shown.at.items() if "running" not in name})
    with refused("conflict", "statistics"):
        gradient_at_initial(client(net().eval(), batch, Training(epochs=1)), statistics=True)
    with refused("out-of-range", "x"):
        shown.simulate(batch.x[:1], batch.y[:1])
    private = replace(victim.training, privacy=DPGD(clip=1.0))
    for reveal in (gradient_at_initial, local_update):
        with refused("unsupported-training", "privacy"):
            reveal(replace(victim, training=private), batch_norm="training")
    frozen = {"gradient": shown.gradient, "labels": None, "batch_size": 12, "shape": (1, 8, 8), "loss": CrossEntropy()}
    with refused("unsupported-model", "model"):
        Gradient(model=net(), at=shown.at, **frozen).simulate(batch.x, batch.y)
