"""Full batches in place against the pure loop; training that ends where the weights have come to rest, or whose rate
follows the loss."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from optimisers import OPTIMIZERS
from torch import nn

from remanence import SGD, Adam, BadInput, CrossEntropy, Data, Logistic, SquaredError, Training
from remanence.data import Split
from remanence.engine import mlp as plain_mlp
from remanence.models import apply, centred_mlp, cnn, initial_params, mlp, torch_params
from remanence.training import DPGD, ByLoss, Optimizer, UntilRest, train_together
from remanence.training.in_full import train_in_full
from remanence.training.losses import LogOf
from remanence.types import Params

WHERE = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
STAGES = ((5, 0.3), (8, 0.1))


def few(parts: Split) -> Data:
    return parts.fixed.take(slice(0, 20)).to("cpu", torch.float64)


def net(data: Data) -> tuple[nn.Sequential, Params]:
    model = centred_mlp(data.shape, data.num_classes, hidden=(16,))
    return model, {name: p.double() for name, p in torch_params(model, seed=0).items()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("device", WHERE)
def test_it_takes_the_steps_of_the_pure_loop(parts: Split, optimizer: Optimizer, device: str) -> None:
    """On a CUDA device they are a captured graph."""
    data = few(parts)
    model, initial = net(data)
    training = Training(optimizer=optimizer, epochs=12, stages=STAGES)
    pure = training.run(model, initial, data.x, data.y, [None] * 12, noise_seed=0)
    there, by_hand = data.to(device), plain_mlp.of(model, training.loss)
    assert by_hand is not None
    ours = train_in_full(
        lambda params: by_hand.gradient(params, there.x, there.y),
        {name: p.to(device) for name, p in initial.items()},
        optimizer,
        epochs=12,
        stages=STAGES,
    )
    off = 1e-9 if device == "cpu" else 1e-5  # there the rate is in single precision
    for name, p in pure.items():
        torch.testing.assert_close(ours[name].cpu(), p, rtol=off, atol=off)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captured on a CUDA device alone")
def test_a_victim_on_a_device_is_that_of_the_host(parts: Split) -> None:
    data = few(parts)
    model, initial = net(data)
    training = Training(epochs=12, weight_decay=0.01, stages=STAGES)
    there = training(model, {name: p.cuda() for name, p in initial.items()}, data.to("cuda"))
    for name, p in training(model, initial, data).items():
        torch.testing.assert_close(there[name].cpu(), p, rtol=1e-5, atol=1e-5)


def pull(training: Training, model: nn.Module, params: Params, data: Data) -> float:
    """How far steps of a tiny rate go, over how far decay alone would."""
    steps = Training(optimizer=SGD(lr=1e-4), epochs=200, weight_decay=training.weight_decay)
    moved = steps.run(model, params, data.x, data.y, [None] * 200, noise_seed=0)
    squares = sum(float((moved[name] - p).square().sum()) for name, p in params.items())
    whole = sum(float((2e-2 * training.weight_decay * p).square().sum()) for name, p in params.items())
    return float((squares / whole) ** 0.5)


def test_it_ends_where_the_weights_have_come_to_rest(parts: Split) -> None:
    data = few(parts)
    model, initial = net(data)
    training = Training(optimizer=SGD(lr=0.2, momentum=0.9), weight_decay=0.02, epochs=10_000)
    rested = replace(training, stages=UntilRest(look=100))(model, initial, data)
    longer = replace(training, stages=UntilRest(look=100), epochs=12_000)(model, initial, data)
    assert all(torch.equal(rested[name], longer[name]) for name in rested)  # it ended by itself
    one_rate = replace(training, epochs=1000)(model, initial, data)
    assert pull(training, model, rested, data) < 0.6 * pull(training, model, one_rate, data)


def test_it_never_takes_more_epochs_than_it_may(parts: Split) -> None:
    data = few(parts)
    model, initial = net(data)
    few_epochs = Training(epochs=15)
    for look in (10, 40):
        ours = replace(few_epochs, stages=UntilRest(look=look, falls=2.0, factors=(1.0,)))(model, initial, data)
        for name, p in few_epochs(model, initial, data).items():
            torch.testing.assert_close(ours[name], p, rtol=1e-8, atol=1e-10)


def assert_refused(trainings: list[Training], data: Data) -> None:
    model, initial = net(data)
    for training in trainings:
        with pytest.raises(BadInput, match=r"give \(epochs, factor\) pairs"):
            training(model, initial, data)


def test_other_trainings_cannot_wait_for_rest(parts: Split) -> None:
    waiting = Training(stages=UntilRest(), epochs=2)
    assert_refused([replace(waiting, batch_size=4), replace(waiting, privacy=DPGD(clip=1.0, noise=0.0))], few(parts))
    images = Data(x=torch.rand(4, 1, 12, 12), y=torch.arange(4), num_classes=4)
    convolutional = cnn(images.shape, 4)
    with pytest.raises(BadInput, match=r"give \(epochs, factor\) pairs"):
        waiting(convolutional, initial_params(convolutional, seed=0), images)


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("net", [centred_mlp, partial(mlp, activation=nn.ReLU)], ids=["centred", "biased"])
def test_a_sweep_is_trained_at_once(parts: Split, net: Callable[..., nn.Module], device: str) -> None:
    some = [parts.fixed.take(slice(start, start + 8)).to(device, torch.float64) for start in (0, 8, 16)]
    model = net(some[0].shape, 10, hidden=(12, 11))
    initial = [{n: p.to(some[0].x) for n, p in torch_params(model, seed=seed).items()} for seed in range(3)]
    for start, data in zip(initial, some, strict=True):
        start |= {"1.mean": data.x.mean(0).flatten()} if net is centred_mlp else {}
    trainings = [Training(epochs=12, weight_decay=decay, stages=STAGES) for decay in (0.0, 0.01, 0.1)]
    for k, together in enumerate(train_together(trainings, model, initial, some)):
        alone = trainings[k].run(model, initial[k], some[k].x, some[k].y, [None] * 12, noise_seed=0)
        assert together.keys() == alone.keys()
        for name, p in alone.items():
            torch.testing.assert_close(together[name], p, rtol=1e-5, atol=1e-5)


def test_a_sweep_of_other_trainings_is_refused(parts: Split) -> None:
    data = few(parts)
    model, initial = net(data)
    plain = Training(epochs=1)
    for other, records in ((replace(plain, epochs=2), data), (plain, data.take(slice(0, 5)))):
        with pytest.raises(BadInput, match="differ in weight decay alone"):
            train_together([plain, other], model, [initial, initial], [data, records])


def on_a_line() -> tuple[nn.Sequential, Params, Data]:
    """Two records say where the largest margin is, along the first axis; the others pull elsewhere at first."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [2.0, 5.0], [-3.0, -5.0]], dtype=torch.float64)
    data = Data(x=0.5 + 0.1 * x, y=torch.tensor([1, 0, 1, 0]), num_classes=2)
    start = {"1.mean": x.new_full((2,), 0.5), "2.weight": x.new_zeros(1, 2)}
    return centred_mlp(data.shape, 1, hidden=()), start, data


def test_the_margin_grows_to_the_largest_as_the_rate_follows_the_loss() -> None:
    model, initial, data = on_a_line()
    slow = Training(optimizer=SGD(lr=10.0, momentum=0.9), epochs=1000, loss=Logistic())
    by_loss = replace(slow, stages=ByLoss())
    turned = [abs(float(w[0, 1] / w[0, 0])) for w in (t(model, initial, data)["2.weight"] for t in (slow, by_loss))]
    assert turned[0] > 0.3
    assert turned[1] < 0.01


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_falls_below_any_number(parts: Split, dtype: torch.dtype, device: str) -> None:
    data = few(parts).to(device, dtype)
    model, initial = net(data)
    start = {name: p.to(data.x) for name, p in initial.items()}
    whole = LogOf(loss=CrossEntropy())
    reached = [
        float(whole(apply(model, Training(epochs=epochs, stages=ByLoss())(model, start, data), data.x), data.y))
        for epochs in (0, 10, 100, 1000)
    ]
    assert sorted(reached, reverse=True) == reached
    assert reached[-1] < -800


def test_a_sweep_by_loss_is_each_training_alone(parts: Split) -> None:
    some = [parts.fixed.take(slice(start, start + 8)).to("cpu", torch.float64) for start in (0, 8)]
    model, initial = net(some[0])
    training = Training(epochs=30, stages=ByLoss())
    for data, together in zip(some, train_together([training] * 2, model, [initial] * 2, some), strict=True):
        for name, p in training(model, initial, data).items():
            torch.testing.assert_close(together[name], p, rtol=1e-8, atol=1e-10)


def test_the_rate_cannot_follow_the_loss_of_other_trainings(parts: Split) -> None:
    data, by_loss = few(parts), Training(stages=ByLoss(), epochs=2)
    others = [replace(by_loss, weight_decay=0.1), replace(by_loss, optimizer=Adam()), replace(by_loss, batch_size=4)]
    assert_refused(others, data)
    model, initial = net(data)
    with pytest.raises(BadInput, match=r"give \(epochs, factor\) pairs"):
        train_together([by_loss, others[0]], model, [initial] * 2, [data] * 2)
    line, start, two = on_a_line()
    with pytest.raises(BadInput, match="falls for ever"):
        replace(by_loss, loss=SquaredError())(line, start, two)
    with pytest.raises(BadInput, match="`fall`"):
        ByLoss(fall=-1.0)


@pytest.mark.parametrize("loss", [CrossEntropy(), Logistic()], ids=repr)
def test_the_slopes_of_the_log_are_those_of_the_loss_over_it(loss: CrossEntropy | Logistic) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(6, 1 if isinstance(loss, Logistic) else 3, generator=generator, dtype=torch.float64)
    labels, log_of = torch.arange(6) % 2, LogOf(loss=loss)
    torch.testing.assert_close(log_of(logits, labels), loss(logits, labels).log())
    torch.testing.assert_close(log_of.slopes(logits, labels), loss.slopes(logits, labels) / loss(logits, labels))
    own = 2.0 * labels[:, None] - 1 if logits.shape[1] == 1 else (labels[:, None] == torch.arange(3)).double()
    far = log_of.slopes(logits + 1e4 * own, labels)
    assert far.isfinite().all()
    assert float(far.abs().amax(1).mean()) == pytest.approx(1.0)
