"""Training in place against the pure loop, and learning rates that follow the training."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from optimisers import OPTIMIZERS
from refusals import refused
from torch import nn

from remanence import SGD, Adam, CrossEntropy, Data, Logistic, SquaredError, Training
from remanence.data import Split
from remanence.engine import engine_for, on_batches, train, train_each, trajectory
from remanence.engine.driver import train_full_batch
from remanence.models import apply, centred_mlp, cnn, initial_params, mlp, torch_params
from remanence.training import DPGD, ByLoss, Optimizer, UntilStationary
from remanence.training.losses import LogOf
from remanence.types import Params

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
SCHEDULE = ((5, 0.3), (8, 0.1))


def few(parts: Split) -> Data:
    return parts.fixed.take(slice(0, 20)).to("cpu", torch.float64)


def net(data: Data) -> tuple[nn.Sequential, Params]:
    model = centred_mlp(data.shape, data.num_classes, hidden=(16,))
    return model, {name: p.double() for name, p in torch_params(model, seed=0).items()}


def pure(training: Training, model: nn.Module, initial: Params, data: Data) -> Params:
    """Full-batch steps of the pure loop."""
    gradient = on_batches(engine_for(model, training, data.shape).gradient, data.x, data.y)
    return training.descend(gradient, initial, [None] * training.epochs, records=len(data), noise_seed=0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("device", DEVICES)
def test_steps_in_place_are_those_of_the_pure_loop(parts: Split, optimizer: Optimizer, device: str) -> None:
    """On a CUDA device they are a captured graph."""
    data = few(parts)
    model, initial = net(data)
    training = Training(optimizer=optimizer, epochs=12, lr_schedule=SCHEDULE)
    there, engine = data.to(device), engine_for(model, training, data.shape)
    ours = train_full_batch(
        lambda params: engine.gradient(params, there.x, there.y),
        {name: p.to(device) for name, p in initial.items()},
        optimizer,
        epochs=12,
        schedule=SCHEDULE,
    )
    off = 1e-9 if device == "cpu" else 1e-5  # there the learning rate is in single precision
    for name, p in pure(training, model, initial, data).items():
        torch.testing.assert_close(ours[name].cpu(), p, rtol=off, atol=off)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captured on a CUDA device alone")
def test_a_victim_on_a_device_is_that_of_the_host(parts: Split) -> None:
    data = few(parts)
    model, initial = net(data)
    training = Training(epochs=12, weight_decay=0.01, lr_schedule=SCHEDULE)
    there = train(training, model, {name: p.cuda() for name, p in initial.items()}, data.to("cuda"))
    for name, p in train(training, model, initial, data).items():
        torch.testing.assert_close(there[name].cpu(), p, rtol=1e-5, atol=1e-5)


def test_a_trajectory_holds_the_weights_before_each_step(parts: Split) -> None:
    data = few(parts)
    model, initial = net(data)
    passed = trajectory(Training(epochs=3, batch_size=10), model, initial, data, seed=1)
    assert len(passed) == 6
    torch.testing.assert_close(passed[0], initial)
    torch.testing.assert_close(passed[4], train(Training(epochs=2, batch_size=10), model, initial, data, seed=1))


def update_norm(training: Training, model: nn.Module, params: Params, data: Data) -> float:
    """How far steps at a tiny learning rate move the weights, relative to weight decay alone."""
    steps = Training(optimizer=SGD(lr=1e-4), epochs=200, weight_decay=training.weight_decay)
    after = pure(steps, model, params, data)
    squares = sum(float((after[name] - p).square().sum()) for name, p in params.items())
    by_decay = sum(float((2e-2 * training.weight_decay * p).square().sum()) for name, p in params.items())
    return float((squares / by_decay) ** 0.5)


@pytest.mark.slow
def test_training_ends_where_the_weights_are_stationary(parts: Split) -> None:
    data = few(parts)
    model, initial = net(data)
    training = Training(optimizer=SGD(lr=0.2, momentum=0.9), weight_decay=0.02, epochs=10_000)
    rule = UntilStationary(check_every=100)
    stationary = train(replace(training, lr_schedule=rule), model, initial, data)
    longer = train(replace(training, lr_schedule=rule, epochs=12_000), model, initial, data)
    assert all(torch.equal(stationary[name], longer[name]) for name in stationary)  # it ended by itself
    one_rate = train(replace(training, epochs=1000), model, initial, data)
    assert update_norm(training, model, stationary, data) < 0.6 * update_norm(training, model, one_rate, data)


@pytest.mark.parametrize("check_every", [10, 40])
def test_it_never_takes_more_epochs_than_given(parts: Split, check_every: int) -> None:
    data = few(parts)
    model, initial = net(data)
    rule = UntilStationary(check_every=check_every, shrinks=2.0, factors=(1.0,))
    ours = train(Training(epochs=15, lr_schedule=rule), model, initial, data)
    for name, p in train(Training(epochs=15), model, initial, data).items():
        torch.testing.assert_close(ours[name], p, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("net", [centred_mlp, partial(mlp, activation=nn.ReLU)], ids=["centred", "biased"])
def test_a_sweep_is_trained_as_one_ensemble(parts: Split, net: Callable[..., nn.Module], device: str) -> None:
    some = [parts.fixed.take(slice(start, start + 8)).to(device, torch.float64) for start in (0, 8, 16)]
    model = net(some[0].shape, 10, hidden=(12, 11))
    initial = [{n: p.to(some[0].x) for n, p in torch_params(model, seed=seed).items()} for seed in range(3)]
    for start, data in zip(initial, some, strict=True):
        start |= {"1.mean": data.x.mean(0).flatten()} if net is centred_mlp else {}
    training = Training(epochs=12, weight_decay=0.01, lr_schedule=SCHEDULE)
    for k, ours in enumerate(train_each(training, model, initial, some)):
        alone = pure(training, model, initial[k], some[k])
        assert ours.keys() == alone.keys()
        for name, p in alone.items():
            torch.testing.assert_close(ours[name], p, rtol=1e-5, atol=1e-5)


def test_a_sweep_by_loss_is_each_training_alone(parts: Split) -> None:
    some = [parts.fixed.take(slice(start, start + 8)).to("cpu", torch.float64) for start in (0, 8)]
    model, initial = net(some[0])
    training = Training(epochs=30, lr_schedule=ByLoss())
    for data, ours in zip(some, train_each(training, model, [initial] * 2, some), strict=True):
        for name, p in train(training, model, initial, data).items():
            torch.testing.assert_close(ours[name], p, rtol=1e-8, atol=1e-10)


def on_a_line() -> tuple[nn.Sequential, Params, Data]:
    """Two records determine the largest margin, along the first axis; the others point elsewhere at first."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [2.0, 5.0], [-3.0, -5.0]], dtype=torch.float64)
    data = Data(x=0.5 + 0.1 * x, y=torch.tensor([1, 0, 1, 0]), num_classes=2)
    start = {"1.mean": x.new_full((2,), 0.5), "2.weight": x.new_zeros(1, 2)}
    return centred_mlp(data.shape, 1, hidden=()), start, data


def test_the_margin_grows_to_the_largest_as_the_rate_follows_the_loss() -> None:
    model, initial, data = on_a_line()
    constant = Training(optimizer=SGD(lr=10.0, momentum=0.9), epochs=1000, loss=Logistic())
    by_loss = replace(constant, lr_schedule=ByLoss())
    weights = [train(training, model, initial, data)["2.weight"] for training in (constant, by_loss)]
    angles = [abs(float(w[0, 1] / w[0, 0])) for w in weights]
    assert angles[0] > 0.3
    assert angles[1] < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_falls_below_any_number(parts: Split, dtype: torch.dtype, device: str) -> None:
    data = few(parts).to(device, dtype)
    model, initial = net(data)
    start = {name: p.to(data.x) for name, p in initial.items()}
    log_loss, reached = LogOf(loss=CrossEntropy()), []
    for epochs in (0, 10, 100, 1000):
        final = train(Training(epochs=epochs, lr_schedule=ByLoss()), model, start, data)
        reached.append(float(log_loss(apply(model, final, data.x), data.y)))
    assert sorted(reached, reverse=True) == reached
    assert reached[-1] < -800


def test_schedules_that_follow_the_training_refuse_other_trainings(parts: Split) -> None:
    data = few(parts)
    model, initial = net(data)
    stationary, by_loss = (Training(lr_schedule=rule, epochs=2) for rule in (UntilStationary(), ByLoss()))
    others = [
        replace(stationary, batch_size=4),
        replace(stationary, privacy=DPGD(clip=1.0, noise=0.0)),
        replace(by_loss, weight_decay=0.1),
        replace(by_loss, optimizer=Adam()),
        replace(by_loss, batch_size=4),
    ]
    for training in others:
        with refused("unsupported-training", "lr_schedule"):
            train(training, model, initial, data)
    images = Data(x=torch.rand(4, 1, 12, 12), y=torch.arange(4), num_classes=4)
    convolutional = cnn(images.shape, 4)
    with refused("unsupported-training", "lr_schedule"):
        train(stationary, convolutional, initial_params(convolutional, seed=0), images)
    line, start, two = on_a_line()
    with refused("unsupported-training", "lr_schedule"):
        train(replace(by_loss, loss=SquaredError()), line, start, two)
    with refused("out-of-range", "decrease"):
        ByLoss(decrease=-1.0)
    with refused("unsupported-training"):
        train_each(Training(epochs=1), model, [initial] * 2, [data, data.take(slice(0, 5))])
