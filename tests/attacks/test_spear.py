import dataclasses

import pytest
import torch
from gradients import assert_exact, error, honest, matched, release_of, some_digits
from refusals import refused
from torch import Tensor, nn
from torch.func import functional_call

from remanence import Data
from remanence.attacks import SPEAR, FirstLayer
from remanence.attacks.gradients.sparse_columns import ReluLayer, factorise
from remanence.models import initial_params, mlp
from remanence.training.losses import CrossEntropy


def test_a_small_batch_is_exact(digits: Data) -> None:
    batch = some_digits(digits, 20, 4)
    found = SPEAR(samples=20_000).run(honest(batch, nn.ReLU, hidden=(200,)), seed=0)
    assert error(dataclasses.replace(found, y=batch.y), batch) < 1e-8
    assert found.objective == 0


def test_centred_records_whose_gates_are_independent() -> None:
    x = 2 * torch.rand(5, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
    batch = Data(bounds=(-1.0, 1.0), x=x, y=torch.tensor([0, 1, 2, 0, 1]), num_classes=3)
    model = mlp(batch.shape, 3, hidden=(120,), activation=nn.ReLU)
    at = {name: p.double() for name, p in initial_params(model, seed=1).items()}
    release = dataclasses.replace(release_of(model, at, batch, loss=CrossEntropy()), bounds=(-1.0, 1.0))
    found = SPEAR(samples=20_000).run(release, seed=0)
    assert torch.allclose(matched(dataclasses.replace(found, y=batch.y), batch)[0], x, atol=1e-8)


def test_refuses_what_it_cannot_disaggregate(digits: Data) -> None:
    batch = some_digits(digits, 0, 4)
    with refused("unsupported-model", "release"):
        SPEAR().run(honest(batch, nn.Tanh), seed=0)
    with refused("not-enough-knowledge", "batch_size"):
        SPEAR().run(dataclasses.replace(honest(batch, nn.ReLU), batch_size=None), seed=0)
    with refused("not-identifiable", "release"):
        SPEAR().run(honest(some_digits(digits, 0, 30), nn.ReLU, hidden=(20,)), seed=0)
    with refused("out-of-range", "sparsity"):
        SPEAR(sparsity=1.0)
    release = honest(batch, nn.ReLU)
    for name, g in release.gradient.items():
        with refused("not-finite", "gradient"):
            broken = {**release.gradient, name: torch.full_like(g, torch.nan)}
            SPEAR().run(dataclasses.replace(release, gradient=broken), seed=0)
    with refused("empty", "gradient"):
        zero = {name: torch.zeros_like(g) for name, g in release.gradient.items()}
        SPEAR().run(dataclasses.replace(release, gradient=zero), seed=0)


def planted(changed: float) -> tuple[ReluLayer, Tensor, Tensor, Tensor]:
    """A layer, its gradient, and the records and errors gate * (V^T e) that it is made of; a fraction of the gates are
    not those of the record, and their errors arbitrary, as after local steps."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    x, weight, next_weight = normal(12, 30), normal(200, 30), normal(3, 200)
    errors = (x @ weight.T > 0) * (normal(12, 3) @ next_weight)
    errors = torch.where(torch.rand(12, 200, generator=generator) < changed, normal(12, 200), errors)
    layer = ReluLayer(
        weight=weight,
        bias=torch.zeros(200, dtype=torch.float64),
        next_weight=next_weight,
        near=lambda points: points[points.norm(dim=1).argsort()],
    )
    return layer, errors.T @ torch.cat([x, torch.ones(12, 1, dtype=torch.float64)], 1), x, errors


@pytest.mark.parametrize("changed", [0.0, 0.05])
def test_a_planted_gradient_is_factorised_into_records_and_errors(changed: float) -> None:
    layer, gradient, x, errors = planted(changed)
    found = factorise(layer, gradient, records=12, seed=0)
    order = torch.cdist(x, found.x).argmin(1)
    assert torch.allclose(found.x[order], x, atol=1e-6)
    assert torch.allclose(found.errors[order], errors, atol=1e-6)


def test_a_gradient_of_errors_without_zeros_is_not_factorised() -> None:
    layer, _, x, _ = planted(0.0)
    errors = torch.randn(12, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradient = errors.T @ torch.cat([x, torch.ones(12, 1, dtype=torch.float64)], 1)
    assert not len(factorise(layer, gradient, records=12, seed=0).x)


def test_a_batch_that_peeling_leaves_comes_back_whole(digits: Data) -> None:
    batch = some_digits(digits, 20, 40)
    release = honest(batch, nn.ReLU, hidden=(150,), dtype=torch.float64)
    peeled, found = FirstLayer(factorising=False).run(release, seed=0), FirstLayer().run(release, seed=0)
    assert (peeled.objective or 0) > 0.1
    assert_exact(found, batch, within=1e-6)


def test_more_records_than_features_are_not_factorised() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = Data(x=torch.rand(30, 20, generator=generator), y=torch.arange(30) % 10, num_classes=10)
    release = honest(batch, nn.ReLU, hidden=(60,))
    peeled, found = (FirstLayer(factorising=each).run(release, seed=0) for each in (False, True))
    assert torch.equal(peeled.x, found.x)


def test_a_clipped_gradient_has_the_same_factors(digits: Data) -> None:
    batch = some_digits(digits, 20, 16)
    release = honest(batch, nn.ReLU, hidden=(150,), dtype=torch.float64)
    clipped = {name: 0.01 * g for name, g in release.gradient.items()}
    found = FirstLayer().run(dataclasses.replace(release, gradient=clipped), seed=0)
    assert float(torch.cdist(batch.x.double().flatten(1), found.x.flatten(1)).min(1).values.max()) < 1e-6


@pytest.mark.parametrize("steps", [2, 5])
def test_local_steps_taken_for_one_gradient_are_read_by_their_zeros(digits: Data, steps: int) -> None:
    """The update after several steps, by torch's own SGD."""
    batch = some_digits(digits, 20, 8)
    release = honest(batch, nn.ReLU, hidden=(300,), dtype=torch.float64)
    at = {name: p.clone().requires_grad_() for name, p in release.at.items()}
    optimizer = torch.optim.SGD(at.values(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(functional_call(release.model, at, (batch.x.double(),)), batch.y).backward()
        optimizer.step()
    sent = {name: (release.at[name] - p.detach()) / (0.01 * steps) for name, p in at.items()}
    found = FirstLayer().run(dataclasses.replace(release, gradient=sent), seed=0)
    true = batch.x.double().flatten(1)
    assert float(torch.cdist(true, found.x.flatten(1)).min(1).values.max()) < 1e-6


def test_factorising_reads_a_noisy_batch_that_peeling_does_not_verify(digits: Data) -> None:
    batch = some_digits(digits, 20, 6)
    release = honest(batch, nn.ReLU)
    generator = torch.Generator().manual_seed(0)
    noisy = {
        name: g + 1e-4 * g.square().mean().sqrt() * torch.randn(g.shape, generator=generator)
        for name, g in release.gradient.items()
    }
    release = dataclasses.replace(release, gradient=noisy)
    found = FirstLayer().run(release, seed=0)
    assert found.objective is not None
    assert found.objective < 1e-2 < 0.5 < (FirstLayer(factorising=False).run(release, seed=0).objective or 0)
    assert error(found, batch) < 0.01
