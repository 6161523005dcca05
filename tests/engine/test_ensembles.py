"""The stack against one model after the other: every activation, every optimiser, clipping, every kind of net."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from optimisers import OPTIMIZERS
from torch import Tensor, nn
from torch.nn.functional import interpolate

from remanence import DPGD, SGD, Data, Training
from remanence.data import Split
from remanence.engine import engine_for, train
from remanence.engine.ensembles import chunked as stacked
from remanence.engine.ensembles import cnn as shared_cnn
from remanence.engine.ensembles import mlp as shared_mlp
from remanence.engine.ensembles.chunked import CPU_CHUNK, chunk_size, chunks, train_by_vmap, train_chunk
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


def agrees(training: Training, model: nn.Module, fixed: Data, targets: Data) -> None:
    made = train_chunk(training, model, start(model), fixed, targets, seed=4, noise_seed=0)
    for k in range(len(targets)):
        alone = train(training, model, start(model), concat([fixed, targets.take(slice(k, k + 1))]), seed=4)
        for name, value in alone.items():
            assert torch.allclose(made[name][k], value, atol=1e-9), name


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("activation", TABLE_3)
def test_agrees_with_one_by_one_for_every_activation_and_optimiser(
    parts: Split, optimizer: Optimizer, activation: str
) -> None:
    fixed, targets = doubles(parts, 2)
    agrees(
        Training(optimizer=optimizer, epochs=8), mlp(fixed.shape, 10, activation=TABLE_3[activation]), fixed, targets
    )


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("privacy", PRIVACY, ids=repr)
@pytest.mark.parametrize("hidden", [(), (6,), (6, 5, 4)])
def test_agrees_for_every_depth_with_decay_and_clipping(
    parts: Split, hidden: tuple[int, ...], privacy: DPGD | None, tf32: bool
) -> None:
    fixed, targets = doubles(parts, 2)
    training = Training(epochs=5, weight_decay=0.01, privacy=privacy, tf32=tf32)
    agrees(training, mlp(fixed.shape, 10, hidden=hidden), fixed, targets)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="TF32 is a CUDA device's")
@pytest.mark.parametrize(("hidden", "activation"), [((10,), nn.ReLU), ((10, 10, 10), nn.Sigmoid)])
def test_what_tf32_rounds_is_far_below_what_a_record_does(
    parts: Split, hidden: tuple[int, ...], activation: Callable[[], nn.Module]
) -> None:
    fixed, targets = parts.fixed.to("cuda"), parts.private.take(slice(0, 8)).to("cuda")
    model = mlp(fixed.shape, 10, hidden=hidden, activation=activation)
    initial = {name: p.cuda() for name, p in initial_params(model, seed=0).items()}

    def deviations(training: Training) -> Tensor:
        made = train_chunk(training, model, initial, fixed, targets, seed=4, noise_seed=0)
        flat = torch.cat([p.flatten(1) for p in made.values()], dim=1)
        return flat - flat.mean(0)

    exact = deviations(Training(epochs=50))
    assert (deviations(Training(epochs=50, tf32=True)) - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("privacy", PRIVACY, ids=repr)
@pytest.mark.parametrize("batch_size", [None, 20])
def test_convolutional_nets_agree_too(parts: Split, batch_size: int | None, privacy: DPGD | None) -> None:
    fixed, targets = doubles(parts, 2, side=12)
    training = Training(optimizer=SGD(lr=0.1), epochs=2, batch_size=batch_size, privacy=privacy)
    agrees(training, cnn(fixed.shape, 10), fixed, targets)


@pytest.mark.parametrize("net", [mlp, cnn])
@pytest.mark.parametrize("batch_size", [None, 20])
def test_each_model_is_clipped_by_its_own_norm(
    parts: Split, batch_size: int | None, net: Callable[..., nn.Module]
) -> None:
    fixed, targets = doubles(parts, 3, side=12)
    training = Training(optimizer=SGD(lr=0.3), epochs=3, batch_size=batch_size, weight_decay=0.01, clip=0.1)
    agrees(training, net(fixed.shape, 10), fixed, targets)


def test_weights_that_are_single_numbers_are_cut_too() -> None:
    grads = {"matrix": torch.rand(3, 2, 4), "number": torch.rand(3)}
    squares, factors = squared_norms(grads, stacked=True), torch.tensor([0.5, 2.0, 3.0])
    for place in range(3):
        alone = {name: g[place] for name, g in grads.items()}
        torch.testing.assert_close(squared_norms(alone, stacked=False), squares[place : place + 1])
        expected = {name: g * factors[place] for name, g in alone.items()}
        torch.testing.assert_close(scaled(alone, factors[place : place + 1]), expected)
        torch.testing.assert_close({name: g[place] for name, g in scaled(grads, factors).items()}, expected)


def test_a_convolutional_net_may_have_no_fixed_records(parts: Split) -> None:
    fixed, targets = doubles(parts, 2, side=12)
    agrees(Training(optimizer=SGD(lr=0.1), epochs=2), cnn(fixed.shape, 10), fixed.take(slice(0, 0)), targets)


def test_records_are_measured_in_blocks_when_patches_are_many(parts: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_cnn, "_PATCHES", 20_000)
    fixed, targets = doubles(parts, 2, side=12)
    agrees(Training(optimizer=SGD(lr=0.1), epochs=2, privacy=DPGD(clip=0.5)), cnn(fixed.shape, 10), fixed, targets)


def test_clipping_agrees_with_a_naive_loop(parts: Split) -> None:
    fixed, _ = doubles(parts, 1)
    model, clip = mlp(fixed.shape, 10), 0.5
    real = mlp(fixed.shape, 10).to_empty(device="cpu").double()
    real.load_state_dict(start(model))
    total = {name: torch.zeros_like(p) for name, p in real.named_parameters()}
    cut = 0
    for i in range(len(fixed)):
        real.zero_grad()
        nn.functional.cross_entropy(real(fixed.x[i : i + 1]), fixed.y[i : i + 1]).backward()
        grads = {name: p.grad for name, p in real.named_parameters() if p.grad is not None}
        norm = torch.cat([g.flatten() for g in grads.values()]).norm()
        cut += int(norm > clip)
        for name, g in grads.items():
            total[name] += g * min(1.0, clip / float(norm)) / len(fixed)
    assert cut > 0
    found = engine_for(model, Training(privacy=DPGD(clip=clip)), fixed.shape).gradient(start(model), fixed.x, fixed.y)
    assert all(torch.allclose(found[name], value, atol=1e-12) for name, value in total.items())


def test_each_model_has_noise_of_its_own_and_of_the_right_size(parts: Split) -> None:
    """One step at rate 1 from a common start, on copies of one record: what differs is the noise alone."""
    fixed, targets = doubles(parts, 1)
    targets = targets.take([0] * 100)
    model, privacy = mlp(fixed.shape, 10), DPGD(clip=0.5, noise=3.0)
    training = Training(optimizer=SGD(lr=1.0), epochs=1, privacy=privacy)
    made = train_chunk(training, model, start(model), fixed, targets, seed=0, noise_seed=1)
    spread = torch.cat([p.flatten(1) for p in made.values()], dim=1).std(dim=0)
    assert float(spread.mean()) == pytest.approx(3.0 * 0.5 / (len(fixed) + 1), rel=0.02)
    again, other = (train_chunk(training, model, start(model), fixed, targets, seed=0, noise_seed=s) for s in (1, 2))
    assert all(torch.equal(again[name], p) for name, p in made.items())
    assert not any(torch.equal(other[name], p) for name, p in made.items())


@pytest.mark.parametrize("net", [mlp, cnn])
def test_each_model_may_have_a_start_of_its_own(parts: Split, net: Callable[..., nn.Module]) -> None:
    fixed, targets = doubles(parts, 3, side=12)
    model, training = net(fixed.shape, 10), Training(optimizer=SGD(lr=0.1), epochs=3)
    starts = {name: p.double() for name, p in initial_stack(model, 3, seed=5).items()}
    made = train_chunk(training, model, starts, fixed, targets, seed=0, noise_seed=0)
    alone = train(training, model, {n: p[2] for n, p in starts.items()}, concat([fixed, targets.take(slice(2, 3))]))
    assert all(torch.allclose(made[name][2], value, atol=1e-9) for name, value in alone.items())


def test_running_out_of_memory_halves_the_stack_and_goes_on(parts: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed, targets = doubles(parts, 5)
    model, training = mlp(fixed.shape, 10), Training(epochs=3)
    whole = train_chunk(training, model, start(model), fixed, targets, seed=0, noise_seed=0)
    sizes = on_a_small_machine(monkeypatch)
    with pytest.warns(UserWarning, match="trained in halves"):
        halved = train_chunk(training, model, start(model), fixed, targets, seed=0, noise_seed=0)
    assert sizes == [128, 64, 32, 32, 64, 32, 32]
    assert all(torch.allclose(halved[name], p, atol=1e-12) for name, p in whole.items())


def test_halves_have_noise_of_their_own(parts: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed, targets = doubles(parts, 1)
    targets = targets.take([0] * 128)
    model, training = mlp(fixed.shape, 10), Training(epochs=1, privacy=DPGD(clip=1.0, noise=1.0))
    on_a_small_machine(monkeypatch)
    with pytest.warns(UserWarning, match="trained in halves"):
        made = train_chunk(training, model, start(model), fixed, targets, seed=0, noise_seed=0)
    assert len(made["1.weight"].flatten(1).unique(dim=0)) == 128


def on_a_small_machine(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Forty models fit; what was tried is noted."""
    real, sizes = shared_mlp.train_sharing, []

    def train(
        training: Training, model: nn.Module, starts: Params, fixed: Data, targets: Data, *, seed: int, noise_seed: int
    ) -> Params:
        sizes.append(len(targets))
        if len(targets) > 40:
            raise torch.OutOfMemoryError("too much")
        return real(training, model, starts, fixed, targets, seed=seed, noise_seed=noise_seed)

    monkeypatch.setattr(stacked.shared_mlp, "train_sharing", train)
    return sizes


def test_a_record_trains_to_the_same_bytes_in_a_full_and_in_a_short_chunk(parts: Split) -> None:
    model = mlp(parts.fixed.shape, 10)
    initial, training = initial_params(model, seed=0), Training(epochs=3)
    full = train_chunk(
        training, model, initial, parts.fixed, parts.public.take(slice(0, CPU_CHUNK)), seed=0, noise_seed=0
    )
    short = train_chunk(training, model, initial, parts.fixed, parts.public.take(slice(0, 2)), seed=0, noise_seed=0)
    assert all(torch.equal(full[name][:2], short[name]) for name in full)


def test_chunks_cover_every_record_in_order(parts: Split) -> None:
    model = mlp(parts.fixed.shape, 10)
    pieces = chunks(model, parts.fixed, parts.public)
    assert torch.equal(torch.cat([piece.x for piece in pieces]), parts.public.x)
    assert max(map(len, pieces)) <= chunk_size(model, parts.fixed)


def test_a_large_net_goes_in_smaller_chunks() -> None:
    many = Data(x=torch.zeros(5000, 3, 32, 32), y=torch.zeros(5000, dtype=torch.int64), num_classes=10)
    model = cnn(many.shape, 10)
    assert activations(model, many.shape) == 2 * 16 * 15**2 + 2 * 32 * 12**2 + 3 * 10
    assert 1 <= chunk_size(model, many) < 8 < chunk_size(mlp(many.shape, 10), many)


def test_what_shares_its_first_layer(parts: Split) -> None:
    full, mini, shape = Training(), Training(batch_size=8), parts.fixed.shape
    assert shared_mlp.can_share(full, mlp(shape, 10, hidden=(5, 4)), shape, 61)
    assert shared_cnn.can_share(full, cnn((1, 12, 12), 10), (1, 12, 12), 61)
    odd = [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Softmax(dim=1), nn.Linear(10, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.Flatten(), nn.Linear(144, 10)),
    ]
    assert not any(way.can_share(full, net, shape, 61) for way in (shared_mlp, shared_cnn) for net in odd)
    assert not shared_mlp.can_share(mini, mlp(shape, 10), shape, 61)
    assert not shared_cnn.can_share(mini, cnn((1, 12, 12), 10), (1, 12, 12), 61)


def test_any_other_net_goes_through_vmap(parts: Split) -> None:
    fixed, targets = doubles(parts, 2)
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))
    agrees(Training(epochs=2), model, fixed, targets)
    starts = {name: p.double() for name, p in initial_stack(model, 2, seed=0).items()}
    private = Training(epochs=2, privacy=DPGD(clip=0.5))
    made = train_by_vmap(private, model, starts, fixed, targets, seed=0, noise_seed=0)
    alone = train(private, model, {n: p[1] for n, p in starts.items()}, concat([fixed, targets.take(slice(1, 2))]))
    assert all(torch.allclose(made[name][1], value, atol=1e-9) for name, value in alone.items())
