"""The pure training loop against torch.optim on a real module."""

from collections.abc import Callable
from math import sqrt

import pytest
import torch
from optimisers import OPTIMIZERS
from refusals import refused
from torch import nn
from torch.nn.functional import cross_entropy

from remanence import SGD, Adam, AdamW, CrossEntropy, Data, Logistic, RMSProp, SquaredError, Training
from remanence.data import Split
from remanence.engine import train
from remanence.models import initial_params, mlp
from remanence.training import KnownLoss, Optimizer
from remanence.training.losses import LogOf
from remanence.types import Params


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
            cross_entropy(real(data.x[batch]), data.y[batch]).backward()
            norm = torch.cat([p.grad.flatten() for p in real.parameters() if p.grad is not None]).norm()
            kept = 1.0 if training.clip is None else min(1.0, training.clip / float(norm))
            for name, p in real.named_parameters():
                assert p.grad is not None
                decay = training.weight_decay if training.decay_biases or not name.endswith("bias") else 0.0
                p.grad = kept * p.grad + decay * p.detach()
            optimizer.step()
    return {name: p.detach() for name, p in real.named_parameters()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("batch_size", [None, 16])
@pytest.mark.parametrize(("weight_decay", "clip"), [(0.0, None), (0.01, None), (0.01, 0.2)])
def test_agrees_with_torch_optim(
    parts: Split, optimizer: Optimizer, batch_size: int | None, weight_decay: float, clip: float | None
) -> None:
    data = parts.fixed.to("cpu", torch.float64)
    model = mlp(data.shape, 10)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    decays = clip is None or isinstance(optimizer, AdamW)
    training = Training(
        optimizer=optimizer,
        epochs=6,
        batch_size=batch_size,
        weight_decay=weight_decay,
        decay_biases=decays,
        clip=clip,
    )
    ours = train(training, model, initial, data, seed=3)
    theirs = reference(training, mlp(data.shape, 10), initial, data, seed=3)
    for name, value in theirs.items():
        assert torch.allclose(ours[name], value, atol=1e-10), name


@pytest.mark.parametrize("optimizer", [Adam(lr=0.01), AdamW(lr=0.01), RMSProp(lr=0.01)], ids=repr)
def test_the_derivative_of_a_step_is_finite_where_no_gradient_has_come(optimizer: Optimizer) -> None:
    """There a step is the rate times the gradient over eps."""
    params, grads = {"w": torch.ones(2).double()}, torch.tensor([0.0, 0.5], dtype=torch.float64, requires_grad=True)
    moved, _ = optimizer.update(params, {"w": grads}, optimizer.init(params), 0)
    (slope,) = torch.autograd.grad(moved["w"].sum(), grads)
    assert float(slope[0]) == pytest.approx(-0.01 / 1e-8)
    assert slope.isfinite().all()
    decay = getattr(optimizer, "weight_decay", 0.0)
    assert float(moved["w"][0].detach()) == 1 - 0.01 * decay


def test_epsilon_may_stand_under_the_root_as_in_optax() -> None:
    weight, second = 1.0, 0.0
    optimizer = RMSProp(lr=0.01, decay=0.9, eps=1e-2, eps_in_root=True)
    params = {"w": torch.tensor([weight], dtype=torch.float64)}
    state = optimizer.init(params)
    for step, gradient in enumerate((0.05, -0.2, 0.0)):
        second = 0.9 * second + 0.1 * gradient**2
        weight -= 0.01 * gradient / sqrt(second + 1e-2)
        params, state = optimizer.update(params, {"w": torch.tensor([gradient]).double()}, state, step)
        assert float(params["w"]) == pytest.approx(weight, rel=1e-6)


def test_mini_batches_can_come_in_the_order_of_the_records() -> None:
    batches = list(Training(epochs=2, batch_size=4, shuffled=False).batches(10, seed=0))
    assert [batch.tolist() for batch in batches if batch is not None] == 2 * [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_learning_rate_follows_the_schedule(parts: Split) -> None:
    data = parts.fixed.to("cpu", torch.float64)
    model = mlp(data.shape, 10)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    first = train(Training(epochs=3, optimizer=SGD(lr=0.2)), model, initial, data)
    expected = train(Training(epochs=2, optimizer=SGD(lr=0.02)), model, first, data)
    scheduled = Training(epochs=5, optimizer=SGD(lr=0.2), lr_schedule=((3, 0.1),))
    torch.testing.assert_close(train(scheduled, model, initial, data), expected)


@pytest.mark.parametrize("loss", [CrossEntropy(), Logistic()], ids=repr)
def test_the_gradient_of_the_log_is_that_of_the_loss_over_it(loss: CrossEntropy | Logistic) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(6, 1 if isinstance(loss, Logistic) else 3, generator=generator, dtype=torch.float64)
    labels, log_of = torch.arange(6) % 2, LogOf(loss=loss)
    torch.testing.assert_close(log_of(logits, labels), loss(logits, labels).log())
    torch.testing.assert_close(
        log_of.grad_logits(logits, labels), loss.grad_logits(logits, labels) / loss(logits, labels)
    )
    own = 2.0 * labels[:, None] - 1 if logits.shape[1] == 1 else (labels[:, None] == torch.arange(3)).double()
    far = log_of.grad_logits(logits + 1e4 * own, labels)
    assert far.isfinite().all()
    assert float(far.abs().amax(1).mean()) == pytest.approx(1.0)


@pytest.mark.parametrize("loss", [CrossEntropy(), Logistic(), SquaredError()], ids=repr)
def test_derivatives_with_respect_to_logits_are_those_of_autograd(loss: KnownLoss) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (5, 4 if isinstance(loss, CrossEntropy) else 1)
    logits, direction = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    labels = torch.tensor([0, 1, 1, 0, 1])
    logits.requires_grad_()
    (expected,) = torch.autograd.grad(5 * loss(logits, labels), logits)
    torch.testing.assert_close(loss.grad_logits(logits, labels), expected)
    (expected,) = torch.autograd.grad(loss.grad_logits(logits, labels), logits, direction)
    torch.testing.assert_close(loss.hvp_logits(logits, labels, direction), expected)


def test_a_gradient_that_is_nearly_zero_is_exact() -> None:
    logits = torch.tensor([[40.0, 0.0, 1.0]])
    single, double = (CrossEntropy().grad_logits(each, torch.tensor([0])) for each in (logits, logits.double()))
    assert single[0, 0] < 0
    torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=0)


def test_an_optimizer_that_decays_by_itself_cannot_spare_biases() -> None:
    with refused("unsupported-training", "decay_biases"):
        Training(optimizer=AdamW(), decay_biases=False)
