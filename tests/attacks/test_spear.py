import dataclasses

import torch
from gradients import error, honest, matched, release_of, some_digits
from refusals import refused
from torch import nn

from remanence import Data
from remanence.attacks import SPEAR, FirstLayer
from remanence.attacks.gradients.gate_decoding import ReluLayer, decode
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


def test_errors_of_planted_gates_are_decoded_from_their_span() -> None:
    """Words gate * (V^T e) of known gates, mixed by random records: the points that start the decoding are records."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 20, dtype=torch.float64, generator=generator)
    weight = torch.randn(150, 20, dtype=torch.float64, generator=generator)
    bias = torch.zeros(150, dtype=torch.float64)
    next_weight = torch.randn(3, 150, dtype=torch.float64, generator=generator)
    e = torch.randn(12, 3, dtype=torch.float64, generator=generator)
    errors = (x @ weight.T > 0) * (e @ next_weight)
    near = x + 0.1 * torch.randn(12, 20, dtype=torch.float64, generator=generator)
    layer = ReluLayer(
        weight=weight,
        bias=bias,
        next_weight=next_weight,
        next_errors=lambda points: e[None].expand(len(points), -1, -1),
    )
    gradient = errors.T @ torch.cat([x, torch.ones(12, 1, dtype=torch.float64)], 1)
    found = decode(layer, gradient, near, records=12, seed=0)
    cosines = (found @ (errors / errors.norm(dim=1, keepdim=True)).T).abs()
    assert len(found) == 12
    assert torch.allclose(cosines.max(0).values, torch.ones(12, dtype=torch.float64))


def test_decoding_reads_a_noisy_batch_that_peeling_does_not_verify(digits: Data) -> None:
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
