"""Ensembles against one model after the other: every activation, every optimizer, clipping, every kind of network."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from optimisers import OPTIMIZERS
from torch import Tensor, nn
from torch.nn.functional import interpolate

from remanence import DPGD, SGD, Data, Training
from remanence.data import Split
from remanence.engine import ensembles, train
from remanence.engine.ensembles.chunked import CPU_CHUNK, chunk_size, train_by_vmap, train_chunk, trainer
from remanence.models import activations, cnn, initial_params, initial_stack, mlp
from remanence.training import Optimizer
from remanence.training.clipping import scaled, squared_norms
from remanence.types import Params, concat

TABLE_3: dict[str, Callable[[], nn.Module]] = {
    "ReLU": nn.ReLU,
    "max(-0.5, x)": partial(nn.Threshold, -0.5, -0.5),
    "ELU": nn.ELU,
    "Sigmoid": nn.Sigmoid,
    "Softplus": nn.Softplus,
    "Swish": nn.SiLU,
    "LeakyReLU": nn.LeakyReLU,
    "Tanh": nn.Tanh,
    "CELU": nn.CELU,
    "SELU": nn.SELU,
    "GELU": partial(nn.GELU, approximate="tanh"),
    "Identity": nn.Identity,
}
PRIVACY = [None, DPGD(clip=0.5)]


def doubles(parts: Split, count: int, side: int | None = None) -> tuple[Data, Data]:
    pair = (parts.fixed, parts.private.take(slice(0, count)))
    if side:
        pair = tuple(Data(x=interpolate(d.x, size=(side, side)), y=d.y, num_classes=10) for d in pair)
    return pair[0].to("cpu", torch.float64), pair[1].to("cpu", torch.float64)


def start(model: nn.Module) -> Params:
    return {name: p.double() for name, p in initial_params(model, seed=0).items()}


def assert_agrees(training: Training, model: nn.Module, fixed: Data, targets: Data) -> None:
    found = train_chunk(training, model, start(model), fixed, targets, seed=4, noise_seed=0)
    for k in range(len(targets)):
        alone = train(training, model, start(model), concat([fixed, targets.take(slice(k, k + 1))]), seed=4)
        for name, value in alone.items():
            assert torch.allclose(found[name][k], value, atol=1e-9), name


@pytest.mark.parametrize("activation", TABLE_3)
def test_every_activation(parts: Split, activation: str) -> None:
    fixed, targets = doubles(parts, 2)
    assert_agrees(Training(epochs=8), mlp(fixed.shape, 10, activation=TABLE_3[activation]), fixed, targets)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_every_optimizer(parts: Split, optimizer: Optimizer) -> None:
    fixed, targets = doubles(parts, 2)
    assert_agrees(Training(optimizer=optimizer, epochs=8), mlp(fixed.shape, 10), fixed, targets)


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("privacy", PRIVACY, ids=repr)
@pytest.mark.parametrize("hidden", [(), (6,), (6, 5, 4)])
def test_every_depth_with_decay_and_clipping(
    parts: Split, hidden: tuple[int, ...], privacy: DPGD | None, tf32: bool
) -> None:
    fixed, targets = doubles(parts, 2)
    training = Training(epochs=5, weight_decay=0.01, privacy=privacy, tf32=tf32)
    assert_agrees(training, mlp(fixed.shape, 10, hidden=hidden), fixed, targets)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="TF32 exists on CUDA devices alone")
@pytest.mark.parametrize(("hidden", "activation"), [((10,), nn.ReLU), ((10, 10, 10), nn.Sigmoid)])
def test_the_rounding_of_tf32_is_far_below_the_effect_of_a_record(
    parts: Split, hidden: tuple[int, ...], activation: Callable[[], nn.Module]
) -> None:
    fixed, targets = parts.fixed.to("cuda"), parts.private.take(slice(0, 8)).to("cuda")
    model = mlp(fixed.shape, 10, hidden=hidden, activation=activation)
    initial = {name: p.cuda() for name, p in initial_params(model, seed=0).items()}

    def deviations(training: Training) -> Tensor:
        found = train_chunk(training, model, initial, fixed, targets, seed=4, noise_seed=0)
        flat = torch.cat([p.flatten(1) for p in found.values()], dim=1)
        return flat - flat.mean(0)

    exact = deviations(Training(epochs=50))
    assert (deviations(Training(epochs=50, tf32=True)) - exact).norm() < 0.02 * exact.norm()


@pytest.mark.slow
@pytest.mark.parametrize("privacy", PRIVACY, ids=repr)
@pytest.mark.parametrize("batch_size", [None, 20])
def test_cnns(parts: Split, batch_size: int | None, privacy: DPGD | None) -> None:
    fixed, targets = doubles(parts, 2, side=12)
    training = Training(optimizer=SGD(lr=0.1), epochs=2, batch_size=batch_size, privacy=privacy)
    assert_agrees(training, cnn(fixed.shape, 10), fixed, targets)


def test_cnns_without_fixed_records(parts: Split) -> None:
    fixed, targets = doubles(parts, 2, side=12)
    assert_agrees(Training(optimizer=SGD(lr=0.1), epochs=2), cnn(fixed.shape, 10), fixed.take(slice(0, 0)), targets)


def test_norms_are_computed_in_blocks_of_records(parts: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensembles.cnn, "_MAX_PATCH_VALUES", 20_000)
    fixed, targets = doubles(parts, 2, side=12)
    training = Training(optimizer=SGD(lr=0.1), epochs=2, privacy=DPGD(clip=0.5))
    assert_agrees(training, cnn(fixed.shape, 10), fixed, targets)


@pytest.mark.parametrize("net", [mlp, cnn])
@pytest.mark.parametrize("batch_size", [None, 20])
def test_each_model_is_clipped_by_its_norm(parts: Split, batch_size: int | None, net: Callable[..., nn.Module]) -> None:
    fixed, targets = doubles(parts, 3, side=12)
    training = Training(optimizer=SGD(lr=0.3), epochs=3, batch_size=batch_size, weight_decay=0.01, clip=0.1)
    assert_agrees(training, net(fixed.shape, 10), fixed, targets)


def test_scalar_weights_are_clipped_too() -> None:
    grads = {"matrix": torch.rand(3, 2, 4), "scalar": torch.rand(3)}
    squares, factors = squared_norms(grads, stacked=True), torch.tensor([0.5, 2.0, 3.0])
    for k in range(3):
        alone = {name: g[k] for name, g in grads.items()}
        torch.testing.assert_close(squared_norms(alone, stacked=False), squares[k : k + 1])
        expected = {name: g * factors[k] for name, g in alone.items()}
        torch.testing.assert_close(scaled(alone, factors[k : k + 1]), expected)
        torch.testing.assert_close({name: g[k] for name, g in scaled(grads, factors).items()}, expected)


def test_the_noise_of_each_model_is_independent_and_of_the_right_size(parts: Split) -> None:
    """One step at a learning rate of 1 from common weights, on copies of one record: the noise alone differs."""
    fixed, targets = doubles(parts, 1)
    targets = targets.take([0] * 100)
    model, privacy = mlp(fixed.shape, 10), DPGD(clip=0.5, noise=3.0)
    training = Training(optimizer=SGD(lr=1.0), epochs=1, privacy=privacy)
    runs = [train_chunk(training, model, start(model), fixed, targets, seed=0, noise_seed=s) for s in (1, 1, 2)]
    std = torch.cat([p.flatten(1) for p in runs[0].values()], dim=1).std(dim=0)
    assert float(std.mean()) == pytest.approx(3.0 * 0.5 / (len(fixed) + 1), rel=0.02)
    assert all(torch.equal(runs[1][name], p) for name, p in runs[0].items())
    assert not any(torch.equal(runs[2][name], p) for name, p in runs[0].items())


@pytest.mark.parametrize("net", [mlp, cnn])
def test_each_model_may_have_initial_weights_of_its_own(parts: Split, net: Callable[..., nn.Module]) -> None:
    fixed, targets = doubles(parts, 3, side=12)
    model, training = net(fixed.shape, 10), Training(optimizer=SGD(lr=0.1), epochs=3)
    initial = {name: p.double() for name, p in initial_stack(model, 3, seed=5).items()}
    found = train_chunk(training, model, initial, fixed, targets, seed=0, noise_seed=0)
    alone = train(training, model, {n: p[2] for n, p in initial.items()}, concat([fixed, targets.take(slice(2, 3))]))
    assert all(torch.allclose(found[name][2], value, atol=1e-9) for name, value in alone.items())


def fit_forty(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let memory suffice for forty models, and list the sizes that are tried."""
    real, sizes = ensembles.mlp.train_ensemble, list[int]()

    def limited(
        training: Training, model: nn.Module, initial: Params, fixed: Data, targets: Data, *, seed: int, noise_seed: int
    ) -> Params:
        sizes.append(len(targets))
        if len(targets) > 40:
            raise torch.OutOfMemoryError("too many")
        return real(training, model, initial, fixed, targets, seed=seed, noise_seed=noise_seed)

    monkeypatch.setattr(ensembles.mlp, "train_ensemble", limited)
    return sizes


def test_an_ensemble_that_does_not_fit_is_halved(parts: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed, targets = doubles(parts, 5)
    model, training = mlp(fixed.shape, 10), Training(epochs=3)
    at_once = train_chunk(training, model, start(model), fixed, targets, seed=0, noise_seed=0)
    sizes = fit_forty(monkeypatch)
    with pytest.warns(UserWarning, match="trained in halves"):
        halved = train_chunk(training, model, start(model), fixed, targets, seed=0, noise_seed=0)
    assert sizes == [128, 64, 32, 32, 64, 32, 32]
    assert all(torch.allclose(halved[name], p, atol=1e-12) for name, p in at_once.items())
    private = Training(epochs=1, privacy=DPGD(clip=1.0, noise=1.0))
    with pytest.warns(UserWarning, match="trained in halves"):
        noisy = train_chunk(private, model, start(model), fixed, targets.take([0] * 128), seed=0, noise_seed=0)
    assert len(noisy["1.weight"].flatten(1).unique(dim=0)) == 128


def test_a_record_trains_to_the_same_bytes_in_a_full_and_in_a_short_chunk(parts: Split) -> None:
    model = mlp(parts.fixed.shape, 10)
    initial, training = initial_params(model, seed=0), Training(epochs=3)
    full, short = (
        train_chunk(training, model, initial, parts.fixed, parts.public.take(slice(0, size)), seed=0, noise_seed=0)
        for size in (CPU_CHUNK, 2)
    )
    assert all(torch.equal(full[name][:2], short[name]) for name in full)


def test_a_large_network_is_trained_in_smaller_chunks() -> None:
    many = Data(x=torch.zeros(5000, 3, 32, 32), y=torch.zeros(5000, dtype=torch.int64), num_classes=10)
    model = cnn(many.shape, 10)
    assert activations(model, many.shape) == 2 * 16 * 15**2 + 2 * 32 * 12**2 + 3 * 10
    assert 1 <= chunk_size(model, many) < 8 < chunk_size(mlp(many.shape, 10), many)


def test_specialised_ensembles_apply_to_their_networks_alone(parts: Split) -> None:
    fixed, full = parts.fixed, Training()
    larger = replace(fixed, x=fixed.x.new_zeros(len(fixed), 1, 12, 12))
    assert trainer(full, mlp(fixed.shape, 10, hidden=(5, 4)), fixed) is ensembles.mlp.train_ensemble
    assert trainer(full, cnn(larger.shape, 10), larger) is ensembles.cnn.train_ensemble
    odd = [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Softmax(dim=1), nn.Linear(10, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.Flatten(), nn.Linear(144, 10)),
    ]
    assert {trainer(full, net, fixed) for net in odd} == {train_by_vmap}
    assert trainer(Training(batch_size=8), mlp(fixed.shape, 10), fixed) is train_by_vmap


@pytest.mark.parametrize("privacy", PRIVACY, ids=repr)
def test_any_other_network_is_trained_by_vmap(parts: Split, privacy: DPGD | None) -> None:
    fixed, targets = doubles(parts, 2)
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))
    training = Training(epochs=2, privacy=privacy)
    initial = {name: p.double() for name, p in initial_stack(model, 2, seed=0).items()}
    found = train_by_vmap(training, model, initial, fixed, targets, seed=0, noise_seed=0)
    alone = train(training, model, {n: p[1] for n, p in initial.items()}, concat([fixed, targets.take(slice(1, 2))]))
    assert all(torch.allclose(found[name][1], value, atol=1e-9) for name, value in alone.items())
