"""The pure training loop against torch.optim on a real module, and the stack against one model after the other."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

from remanence import SGD, Adam, AdamW, Data, Params, RMSProp, Training, cnn, initial_params, mlp
from remanence.data import Split
from remanence.training import Optimizer
from remanence.training.shared_mlp import can_share, train_sharing
from remanence.training.stacked import CPU_CHUNK, _train_by_vmap, chunk_size, chunks, train_chunk
from remanence.types import concat

OPTIMIZERS: list[Optimizer] = [
    SGD(lr=0.3),
    SGD(lr=0.2, momentum=0.9),
    Adam(lr=0.01),
    AdamW(lr=0.01, weight_decay=0.1),
    RMSProp(lr=0.01),
]
ACTIVATIONS = [nn.ReLU, nn.ELU, nn.Sigmoid, nn.Tanh, nn.GELU]


def reference(training: Training, model: nn.Module, initial: Params, data: Data, seed: int) -> Params:
    """The same recipe with a module that holds its weights, autograd and torch.optim."""
    real = model.to_empty(device="cpu").double()
    real.load_state_dict(initial)
    chosen = training.optimizer
    make: dict[type, Callable[..., torch.optim.Optimizer]] = {
        SGD: lambda p: torch.optim.SGD(p, lr=chosen.lr, momentum=getattr(chosen, "momentum", 0.0)),
        Adam: lambda p: torch.optim.Adam(p, lr=chosen.lr),
        AdamW: lambda p: torch.optim.AdamW(p, lr=chosen.lr, weight_decay=getattr(chosen, "weight_decay", 0.0)),
        RMSProp: lambda p: torch.optim.RMSprop(p, lr=chosen.lr, alpha=0.9),
    }
    optimizer = make[type(chosen)](real.parameters())
    generator = torch.Generator().manual_seed(seed)
    for _ in range(training.epochs):
        order = torch.arange(len(data))
        size = training.batch_size or len(data)
        if size < len(data):
            order = torch.randperm(len(data), generator=generator)
        for start in range(0, len(data), size):
            batch = order[start : start + size]
            optimizer.zero_grad()
            decay = sum((p.square().sum() for p in real.parameters()), torch.tensor(0.0)) * training.weight_decay / 2
            (cross_entropy(real(data.x[batch]), data.y[batch]) + decay).backward()
            optimizer.step()
    return {name: p.detach() for name, p in real.named_parameters()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("batch_size", [None, 16])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_agrees_with_torch_optim(
    parts: Split, optimizer: Optimizer, batch_size: int | None, weight_decay: float
) -> None:
    data = parts.fixed.to("cpu", torch.float64)
    model = mlp(data.shape, 10)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    training = Training(optimizer=optimizer, epochs=6, batch_size=batch_size, weight_decay=weight_decay)
    ours = training(model, initial, data, seed=3)
    theirs = reference(training, mlp(data.shape, 10), initial, data, seed=3)
    for name, value in theirs.items():
        assert torch.allclose(ours[name], value, atol=1e-10), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_stacked_training_agrees_with_one_by_one(
    parts: Split, optimizer: Optimizer, activation: type[nn.Module]
) -> None:
    fixed, targets = parts.fixed, parts.private.take(slice(0, 5))
    model = mlp(fixed.shape, 10, activation=activation)
    initial, training = initial_params(model, seed=0), Training(optimizer=optimizer, epochs=8)
    stacked = train_chunk(training, model, initial, fixed, targets, seed=0)
    for k in range(len(targets)):
        alone = training(model, initial, concat([fixed, targets.take(slice(k, k + 1))]))
        for name, value in alone.items():
            assert torch.allclose(stacked[name][k], value, atol=1e-5), name


def test_a_convolutional_net_stacks_with_mini_batches_too(parts: Split) -> None:
    fixed, targets = (
        Data(x=interpolate(d.x, size=(12, 12)), y=d.y, num_classes=10)
        for d in (parts.fixed, parts.private.take(slice(0, 2)))
    )
    model, training = cnn(fixed.shape, 10), Training(optimizer=SGD(lr=0.1), epochs=2, batch_size=20)
    initial = initial_params(model, seed=0)
    stacked = train_chunk(training, model, initial, fixed, targets, seed=4)
    alone = training(model, initial, concat([fixed, targets.take(slice(1, 2))]), seed=4)
    assert all(torch.allclose(stacked[name][1], value, atol=1e-5) for name, value in alone.items())


def test_a_record_trains_to_the_same_bytes_in_a_full_and_in_a_short_chunk(parts: Split) -> None:
    model = mlp(parts.fixed.shape, 10)
    initial, training = initial_params(model, seed=0), Training(epochs=3)
    full = train_chunk(training, model, initial, parts.fixed, parts.public.take(slice(0, CPU_CHUNK)), seed=0)
    short = train_chunk(training, model, initial, parts.fixed, parts.public.take(slice(0, 2)), seed=0)
    assert all(torch.equal(full[name][:2], short[name]) for name in full)


def test_chunks_cover_every_record_in_order(parts: Split) -> None:
    model = mlp(parts.fixed.shape, 10)
    pieces = chunks(model, parts.fixed, parts.public)
    assert torch.equal(torch.cat([piece.x for piece in pieces]), parts.public.x)
    assert max(map(len, pieces)) <= chunk_size(model, parts.fixed)


def test_autograd_runs_through_the_training(parts: Split) -> None:
    """The derivative of the final weights with respect to a record, against finite differences."""
    data = parts.fixed.take(slice(0, 4)).to("cpu", torch.float64)
    model, training = mlp(data.shape, 10), Training()
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}

    def final_norm(x: torch.Tensor) -> torch.Tensor:
        return sum(
            (p.square().sum() for p in training.run(model, initial, x, data.y, [None] * 3).values()), torch.tensor(0.0)
        )

    x = data.x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(final_norm(x), x)
    step = torch.zeros_like(data.x)
    step[1, 0, 3, 3] = 1e-5
    by_difference = (final_norm(data.x + step) - final_norm(data.x - step)) / 2e-5
    assert slope[1, 0, 3, 3] == pytest.approx(float(by_difference), rel=1e-5)


def test_plain_mlps_share_their_first_layer_and_nothing_else_does(parts: Split) -> None:
    full, mini = Training(), Training(batch_size=8)
    assert can_share(full, mlp(parts.fixed.shape, 10, hidden=(5, 4)), 61)
    assert not can_share(mini, mlp(parts.fixed.shape, 10), 61)
    assert not can_share(full, cnn((1, 12, 12), 10), 61)
    assert not can_share(full, nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Softmax(dim=1), nn.Linear(10, 3)), 61)
    assert not can_share(full, nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)), 61)


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("hidden", [(), (6,), (6, 5, 4)])
def test_sharing_agrees_with_vmap(parts: Split, hidden: tuple[int, ...], weight_decay: float) -> None:
    fixed, targets = (d.to("cpu", torch.float64) for d in (parts.fixed, parts.private.take(slice(0, 3))))
    model, training = mlp(fixed.shape, 10, hidden=hidden), Training(epochs=5, weight_decay=weight_decay)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    shared = train_sharing(training, model, initial, fixed, targets)
    mapped = _train_by_vmap(training, model, initial, fixed, targets, seed=0)
    assert list(shared) == list(mapped)
    assert all(torch.allclose(shared[name], mapped[name], atol=1e-12) for name in mapped)
