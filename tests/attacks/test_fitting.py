"""A reconstructor's training against a plain loop; its features against exact decompositions."""

import contextlib
import dataclasses
from collections.abc import Callable
from math import ceil, cos, pi

import pytest
import torch
from refusals import refused
from torch import Tensor, nn
from torch.func import grad

from remanence import SGD, Adam, AdamW, Data, RMSProp
from remanence.attacks import Fitting, ImageLoss, RecoNN, WeightFeatures
from remanence.attacks.one_unknown.fitting import Batch, Step
from remanence.attacks.one_unknown.losses import Criterion, Discriminator
from remanence.attacks.one_unknown.network import Reconstructor, materialise
from remanence.engine.cuda import changed_by, copied, precision, rewind, torch_optimizer
from remanence.models import apply, initial_params, mlp
from remanence.models.lpips import SHAPES, Lpips
from remanence.seeds import derive_seed
from remanence.shadow import ShadowBank
from remanence.shadow.features import Scaler, principal_axes
from remanence.training import Optimizer
from remanence.types import Params

OPTIMIZERS: list[Optimizer] = [
    SGD(lr=0.05),
    SGD(lr=0.05, momentum=0.9),
    Adam(lr=0.01, beta1=0.8, beta2=0.95, eps=1e-6),
    AdamW(lr=0.01, weight_decay=0.1),
    RMSProp(lr=0.01, decay=0.8, eps=1e-6),
    RMSProp(lr=0.01, decay=0.8, eps=1e-6, eps_in_root=True),
]


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def linear_bank(count: int, *, shape: tuple[int, ...] = (1, 3, 3), dtype: torch.dtype = torch.float64) -> ShadowBank:
    x = rand(count, *shape, dtype=dtype)
    weights = x.flatten(1) @ (rand(x[0].numel(), 20, seed=1, dtype=dtype) - 0.5)
    return ShadowBank(weights=weights, targets=Data(x=x, y=torch.zeros(count).long(), num_classes=1))


def plain_loop(attack: RecoNN, bank: ShadowBank, seed: int) -> tuple[list[Params], list[float]]:
    """The weights after each epoch and their validation error: pure functions, one batch after the other."""
    order = torch.randperm(len(bank.weights), generator=torch.Generator().manual_seed(derive_seed(seed, "held out")))
    fitting = attack.fitting
    count = round(fitting.validation_fraction * len(order))
    rows, validation = order[count:], order[:count]
    std, mean = torch.std_mean(bank.weights[rows], dim=0)
    x, target = ((bank.weights - mean) / std).clamp(-3, 3), bank.targets.x.flatten(1)
    net = mlp((x.shape[1],), target.shape[1], hidden=attack.hidden, activation=nn.ReLU)

    def error(params: Params, rows: Tensor) -> Tensor:
        difference = apply(net, params, x[rows]).sigmoid() - target[rows]
        return 2 * (difference**2).mean() + 0.5 * difference.abs().mean()

    params = {name: p.double() for name, p in initial_params(net, seed=derive_seed(seed, "start")).items()}
    state, step, generator = (
        fitting.optimizer.init(params),
        0,
        torch.Generator().manual_seed(derive_seed(seed, "batches")),
    )
    after, errors = [], []
    for epoch in range(fitting.epochs):
        rate = fitting.optimizer.lr * (0.5 + 0.5 * cos(pi * epoch / fitting.epochs))
        optimizer = dataclasses.replace(fitting.optimizer, lr=rate)
        turn = rows[torch.randperm(len(rows), generator=generator)]
        for i in range(ceil(len(rows) / fitting.batch_size)):
            some = turn.roll(-i * fitting.batch_size)[: fitting.batch_size]  # the last one is filled from the front
            params, state = optimizer.update(params, grad(error)(params, some), state, step)
            step += 1
        after.append(params)
        errors.append(float(error(params, validation)) if count else 0.0)
    return after, errors


def reconn(fitting: Fitting) -> RecoNN:
    features, loss = WeightFeatures(clip=3.0), ImageLoss(mse=2.0, mae=0.5)
    return RecoNN(hidden=(12,), head="dense", features=features, loss=loss, fitting=fitting)


TOO_FAST = Adam(lr=0.3)  # the error goes up and down, so that the best epoch is neither the first nor the last


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, TOO_FAST], ids=repr)
@pytest.mark.parametrize("validation_fraction", [0.0, 0.2])
def test_training_is_the_plain_loop(optimizer: Optimizer, validation_fraction: float) -> None:
    bank = linear_bank(50)
    attack = reconn(Fitting(optimizer=optimizer, epochs=6, batch_size=16, validation_fraction=validation_fraction))
    after, errors = plain_loop(attack, bank, seed=1)
    best = errors.index(min(errors)) if validation_fraction else -1
    assert optimizer is not TOO_FAST or best not in (0, 5)
    found = dict(attack.fit(bank, seed=1).net.trunk.named_parameters())
    for name, value in after[best].items():
        torch.testing.assert_close(found[name].data, value, rtol=1e-8, atol=1e-10)


def test_an_optimiser_without_a_counterpart_is_refused() -> None:
    class Mine:
        lr = 0.1

    with refused("wrong-type", "optimizer"):
        torch_optimizer(Mine(), [nn.Parameter(torch.zeros(1))])


def make_step(optimizer: Optimizer, device: str, *, adversarial: float = 0.0) -> Step:
    inputs, targets = rand(12, 30, dtype=torch.float32).to(device), rand(12, 1, 24, 24, dtype=torch.float32).to(device)
    net = Reconstructor(mlp((30,), 576, hidden=(16,), activation=nn.ReLU), (1, 24, 24))
    materialise(net, initial_params(net, seed=0), inputs)
    return Step(
        net=net,
        batch=Batch.allocate(net, inputs, targets, 4, noise_std=torch.zeros(30), dropout=0.0, seed=0),
        criterion=Criterion(weights=ImageLoss(adversarial=adversarial), network=None),
        optimizer=torch_optimizer(optimizer, list(net.parameters())),
        discriminator=Discriminator.from_records(targets, seed=1) if adversarial else None,
    )


def walk(step: Step, go: Callable[[], None]) -> list[Tensor]:
    for rows in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]):
        step.batch.fill(torch.tensor(rows, device=step.batch.rows.device))
        go()
    return [p.detach().cpu() for p in step.net.parameters()]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captured on a CUDA device alone")
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("adversarial", [0.0, 0.1])
def test_a_replayed_step_is_the_step(optimizer: Optimizer, adversarial: float) -> None:
    plain, captured = (make_step(optimizer, device, adversarial=adversarial) for device in ("cpu", "cuda"))
    with precision(tf32=False):
        replayed = walk(captured, captured.replayed())
    for p, q in zip(walk(plain, plain), replayed, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [OPTIMIZERS[1], OPTIMIZERS[2]], ids=repr)
def test_rewinding_undoes_the_warm_up(optimizer: Optimizer) -> None:
    plain, warmed = (make_step(optimizer, "cpu", adversarial=0.1) for _ in range(2))
    optimizers = [warmed.optimizer, warmed.discriminator.optimizer]
    held = changed_by(optimizers)
    start = copied(held)
    walk(warmed, warmed)
    rewind(changed_by(optimizers), held, start)
    for p, q in zip(walk(plain, plain), walk(warmed, warmed), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)


@pytest.mark.slow
def test_the_discriminator_learns_to_separate_and_the_reconstructor_to_pass() -> None:
    real, fake = rand(6, 1, 24, 24, dtype=torch.float32), torch.zeros(6, 1, 24, 24)
    discriminator = Discriminator.from_records(real, seed=0)
    scores = discriminator.net(fake)
    torch.testing.assert_close(discriminator.generator_loss(fake), ((1 - scores) ** 2).sum() / scores.numel())
    for _ in range(20):
        discriminator.update(fake, real)
    assert discriminator.net(real).mean() > discriminator.net(fake).mean() + 0.3
    passing = fake.clone().requires_grad_()
    discriminator.generator_loss(passing).backward()
    assert discriminator.generator_loss(fake - 10 * passing.grad) < discriminator.generator_loss(fake)


@pytest.mark.slow
def test_the_adversarial_term_is_part_of_the_fit() -> None:
    bank = linear_bank(8, shape=(1, 24, 24), dtype=torch.float32)
    attack = RecoNN(hidden=(8,), head="dense", fitting=Fitting(epochs=2, batch_size=4))
    plain, adversarial, again = (
        next(a.fit(bank, seed=0).net.parameters())
        for a in (attack, *[dataclasses.replace(attack, loss=ImageLoss(adversarial=1.0))] * 2)
    )
    assert torch.equal(adversarial, again)
    assert not torch.equal(plain, adversarial)


def test_the_loss_is_the_weighted_sum_over_all_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    network = Lpips(weights={n: 0.1 * torch.rand(s, generator=generator) for n, s in SHAPES.items()})
    criterion = Criterion(weights=ImageLoss(mse=0.5, mae=2.0, lpips=3.0), network=network)
    inputs, targets = rand(5, 30, dtype=torch.float32), rand(5, 1, 8, 8, dtype=torch.float32)
    net = Reconstructor(mlp((30,), 64, hidden=(4,), activation=nn.ReLU), (1, 8, 8))
    materialise(net, initial_params(net, seed=0), inputs)
    rows = torch.tensor([3, 0, 4])
    with torch.no_grad():
        found, target = net(inputs[rows]), targets[rows]
        each = [
            0.5 * ((f - t) ** 2).mean() + 2 * (f - t).abs().mean() + 3 * network(f[None], t[None])[0]
            for f, t in zip(found, target, strict=True)
        ]
        expected = torch.stack(each).mean()
        torch.testing.assert_close(criterion(found, target), expected)
    assert criterion.evaluate(net, inputs, targets, rows, block=2) == pytest.approx(float(expected), rel=1e-5)


def test_noise_falls_on_active_features_and_dropout_on_hidden_layers() -> None:
    inputs, active = torch.zeros(1, 100), torch.arange(100) < 60
    net = Reconstructor(nn.Sequential(nn.Flatten(), nn.Linear(100, 100), nn.ReLU()), (100,))
    materialise(net, {"trunk.1.weight": torch.zeros(100, 100), "trunk.1.bias": torch.ones(100)}, inputs)
    batch = Batch.allocate(net, inputs, torch.zeros(1, 100), 400, noise_std=0.3 * active, dropout=0.2, seed=0)
    batch.fill(torch.zeros(400, dtype=torch.int64))
    noisy, _ = batch.evaluate(Reconstructor(nn.Sequential(nn.Flatten()), (100,)))
    assert (noisy.logit()[:, active].std() - 0.3).abs() < 0.01
    assert torch.equal(noisy[:, ~active], torch.full((400, 40), 0.5))
    dropped, _ = batch.evaluate(net)
    assert {round(float(v), 4) for v in dropped.detach().logit().unique()} == {0.0, 1.25}
    assert ((dropped == 0.5).float().mean() - 0.2).abs() < 0.01


def test_precision_is_restored_also_after_an_error() -> None:
    def in_tf32() -> list[bool]:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        if hasattr(cudnn, "conv"):  # torch 2.9 and later
            return [backend.fp32_precision == "tf32" for backend in (matmul, cudnn.conv)]
        return [matmul.allow_tf32, cudnn.allow_tf32]

    before = in_tf32()
    with precision(tf32=True):
        assert in_tf32() == [True, True]
    with precision(tf32=False):
        assert in_tf32() == [False, False]
    with contextlib.suppress(KeyError), precision(tf32=not all(before)):
        raise KeyError
    assert in_tf32() == before


@pytest.mark.slow
def test_a_lower_ratio_keeps_weights_that_vary_little() -> None:
    """Without it a few weights that end anywhere hide those that hold the record."""
    x = rand(400, 1, 4, 4)
    noisy = torch.randn(400, 6, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    weights = torch.cat([0.02 + 1e-5 * x.flatten(1), noisy], dim=1)
    bank = ShadowBank(weights=weights, targets=Data(x=x, y=torch.zeros(400).long(), num_classes=1))
    fitting = Fitting(optimizer=RMSProp(lr=1e-3), epochs=30, batch_size=32)
    high, low = (
        RecoNN(hidden=(32,), head="dense", features=WeightFeatures(min_std_ratio=ratio), fitting=fitting)
        for ratio in (1e-4, 1e-8)
    )
    hidden, visible = (attack.fit(bank, seed=0) for attack in (high, low))
    assert int(hidden.features.active.sum()) == 6
    assert bool(visible.features.active.all())
    mean_error = float((x.mean(0) - x).square().mean())
    assert float((hidden.reconstruct(weights) - x).square().mean()) > 0.9 * mean_error
    assert float((visible.reconstruct(weights) - x).square().mean()) < 0.5 * mean_error


def test_blocks_and_other_rows_do_not_change_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, rows = rand(30, 13), torch.tensor([4, 9, 20, 3, 29, 11])
    monkeypatch.setattr("remanence.shadow.features._BLOCK", 4)
    std, mean = torch.std_mean(weights[rows], dim=0)
    torch.testing.assert_close(
        Scaler.fit(weights, clip=1.5, rows=rows)(weights), ((weights - mean) / std).clamp(-1.5, 1.5)
    )


def test_the_axes_are_those_of_the_singular_value_decomposition() -> None:
    x = rand(60, 9) @ rand(9, 50, seed=1) + 1e-3 * rand(60, 50, seed=2)
    axes, squared = principal_axes(lambda: iter(x.split(7)), rand(50, 12, seed=3), 9)
    _, values, rows = torch.linalg.svd(x, full_matrices=False)
    torch.testing.assert_close(squared, values[:9].square(), rtol=1e-8, atol=0)
    torch.testing.assert_close(axes @ axes.T, rows[:9].T @ rows[:9], rtol=0, atol=1e-7)
