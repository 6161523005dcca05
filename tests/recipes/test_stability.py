"""Snapshots of one bank against trainings of fewer epochs, and the sharpness against a dense Hessian."""

from dataclasses import replace

import pytest
import torch
from smoke import measures, results
from torch import nn
from torch.autograd.functional import hessian
from torch.nn.functional import cross_entropy

from remanence.engine import GenericEngine
from remanence.engine.ensembles.chunked import train_chunk
from remanence.experiments import prepare
from remanence.models import apply, initial_params, initial_stack, mlp
from remanence.training import CrossEntropy
from remanence.types import Data
from remanence_recipes.balle2022.on_cifar10 import cifar10_victims
from remanence_recipes.balle2022.stability import top_eigenvalue, train_with_snapshots


def test_snapshots_are_the_weights_of_trainings_of_fewer_epochs() -> None:
    prepared = prepare(cifar10_victims("smoke"), seed=0)
    training, targets = prepared.victims.training, prepared.split.public.take(slice(0, 18))  # more than a chunk
    model, fixed, last = prepared.model, prepared.split.fixed, targets.take(slice(16, 18))
    starts = {name: p.to(fixed.x) for name, p in initial_stack(model, len(targets), seed=0).items()}
    for initial, of_last in ((prepared.initial, prepared.initial), (starts, {n: p[16:] for n, p in starts.items()})):
        found = train_with_snapshots(training, model, initial, fixed, targets, (1, 3), seed=0)
        for epochs, weights in found.items():
            short = replace(training, epochs=epochs)
            expected = train_chunk(short, model, of_last, fixed, last, seed=0, noise_seed=0)
            for name, p in weights.items():
                assert len(p) == len(targets)
                assert torch.equal(p[16:], expected[name])
        assert not torch.equal(found[1][name], found[3][name])


def test_sharpness_is_the_largest_eigenvalue_of_the_hessian() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(12, 1, 2, 3, generator=generator, dtype=torch.float64)
    data = Data(x=x, y=torch.arange(12) % 3, num_classes=3)
    model = mlp(data.shape, 3, hidden=(4,), activation=nn.Tanh)
    params = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    sizes = [p.numel() for p in params.values()]

    def loss(flat: torch.Tensor) -> torch.Tensor:
        parts = zip(params.items(), flat.split(sizes), strict=True)
        return cross_entropy(apply(model, {name: part.view_as(p) for (name, p), part in parts}, data.x), data.y)

    dense = hessian(loss, torch.cat([p.flatten() for p in params.values()]))
    start = {name: torch.randn(p.shape, generator=generator, dtype=torch.float64) for name, p in params.items()}
    engine = GenericEngine(model=model, loss=CrossEntropy())
    found, direction = top_eigenvalue(engine, params, data, start, steps=300)
    values = torch.linalg.eigvalsh(dense)
    assert found == pytest.approx(float(values[values.abs().argmax()]), rel=1e-6)
    again, _ = top_eigenvalue(engine, params, data, direction, steps=1)
    assert again == pytest.approx(found, rel=1e-6)


@pytest.mark.slow
def test_a_stable_training_keeps_twins_together() -> None:
    (result,) = results("balle2022.figure15_stability").values()
    found = {measure.name: measure.value for measure in result.measures}
    assert found["epoch of the edge of stability"] is None
    assert 0.1 < measures(result)["distance of twins, 6 epochs"] < 10
