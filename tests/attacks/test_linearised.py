"""The linear theories: their sum of gradients against a loop, and where they are exact."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import nn

from remanence import SGD, Adam, Data, FineTuned, SquaredError, Training, train_victim
from remanence.attacks import L2, Linearised, Search, with_search
from remanence.attacks.finetuning.linearised import weighted_gradients
from remanence.engine import loss_gradient
from remanence.models import initial_params, mlp
from remanence.releases import fine_tuned
from remanence.training import CrossEntropy, Loss


def after(steps: int, data: Data) -> FineTuned:
    model = mlp(data.shape, 10, hidden=(32,))
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    training = Training(optimizer=SGD(lr=0.1), epochs=steps)
    return fine_tuned(train_victim(model, training, initial, data.take([]), data, seed=0)).release


@pytest.fixture
def data(digits: Data) -> Data:
    place = [int((digits.y == label).nonzero()[0, 0]) for label in range(10)]
    return digits.take(place).to("cpu", torch.float64)


@pytest.mark.parametrize("loss", [CrossEntropy(), SquaredError()], ids=repr)
def test_the_sum_is_that_of_each_records_gradient(loss: Loss, data: Data) -> None:
    model = mlp(data.shape, 1 if isinstance(loss, SquaredError) else 10, hidden=(6,), activation=nn.ReLU)
    ends = [{n: p.double() for n, p in initial_params(model, seed=seed).items()} for seed in (0, 1)]
    multipliers = torch.randn(2, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    names, labels = [name for name, _ in model.named_parameters()], data.y % 2
    slow = torch.zeros(())
    for end, own in zip(ends, multipliers, strict=True):
        for i in range(10):
            gradient = loss_gradient(model, end, data.x[i : i + 1], labels[i : i + 1], loss=loss)
            slow = slow + own[i] * torch.cat([gradient[name].flatten() for name in names])
    torch.testing.assert_close(weighted_gradients(model, loss, names, ends, multipliers, data.x, labels), slow)


@pytest.mark.slow
def test_digits_come_back_after_one_step_and_less_after_many(data: Data) -> None:
    attack = Linearised(
        candidates=40, prior=None, search=Search(optimizer=Adam(lr=0.05, beta1=0.8, beta2=0.9), steps=150)
    )
    one, many = (replace(attack, initial_gradients=False).run(after(steps, data), seed=0) for steps in (1, 30))
    assert one.objective < 0.01 < many.objective
    errors = [torch.cdist(data.x.flatten(1), found.x.flatten(1)).min(1).values.median() for found in (one, many)]
    assert errors[0] < 0.7 * errors[1]


def test_ends_that_say_nothing_are_refused(data: Data) -> None:
    release = after(1, data)
    with refused("conflict", "final"):
        with_search(Linearised(candidates=10, distance=L2()), steps=1).run(
            replace(release, final=release.initial), seed=0
        )
    with refused("out-of-range", "candidates"):
        Linearised(candidates=0)
