"""Which rows store a record, against autograd of one model trained alone, one record at a time."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

import remanence.engine.ensembles.chunked
from remanence import SGD, Data, Training
from remanence.data import Split
from remanence.diagnostics.memorization import Storage, audit_storage
from remanence.engine import train
from remanence.models import cnn, initial_params, mlp
from remanence.seeds import derive_seed
from remanence.types import Params, concat

RELU = {"hidden": (10, 8), "activation": nn.ReLU}


def bias_gradient(model: nn.Sequential, params: Params, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the first fully connected bias, through a module that holds the parameters."""
    real = deepcopy(model).to_empty(device="cpu").double()
    real.load_state_dict(params)
    bias = next(layer.bias for layer in real if isinstance(layer, nn.Linear))
    (found,) = torch.autograd.grad(cross_entropy(real(x[None]), y[None]), bias)
    return found


def start(model: nn.Module) -> Params:
    """Some rows off from the beginning on most records, others on."""
    return {name: p.double() for name, p in initial_params(model, seed=4).items()}


def world(parts: Split, targets: int, *, side: int = 8) -> tuple[Data, Data]:
    resized = [replace(d, x=interpolate(d.x, size=(side, side))) for d in (parts.fixed, parts.public)]
    fixed, public = (d.to("cpu", torch.float64) for d in resized)
    return fixed, public.take(slice(0, targets))


def one_by_one(
    training: Training, model: nn.Sequential, fixed: Data, targets: Data, steps: tuple[int, ...], *, seed: int
) -> Tensor:
    """Each model trained alone, step after step by torch's own optimiser, with the bank's shuffle."""
    optimizer, found = training.optimizer, []
    assert isinstance(optimizer, SGD)
    for k in range(len(targets)):
        target = targets.take(slice(k, k + 1))
        data = concat([fixed, target])
        params = {name: p.clone().requires_grad_() for name, p in start(model).items()}
        torch_sgd = torch.optim.SGD(list(params.values()), lr=optimizer.lr, momentum=optimizer.momentum)
        rows = []
        for step, batch in enumerate(training.batches(len(data), derive_seed(seed, "batches of shadows")), start=1):
            used = torch.arange(len(data)) if batch is None else batch
            if step in steps:
                now = {name: p.detach().clone() for name, p in params.items()}
                held = bias_gradient(model, now, target.x[0], target.y[0]) != 0
                rows.append(held if len(fixed) in used else torch.zeros_like(held))
            torch_sgd.zero_grad()
            logits = torch.func.functional_call(model, params, (data.x[used],))
            cross_entropy(logits, data.y[used]).backward()
            torch_sgd.step()
        found.append(torch.stack(rows))
    return torch.stack(found)


@pytest.mark.parametrize("batch_size", [None, 40])
def test_every_target_at_once_is_as_one_by_one(
    parts: Split, batch_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remanence.engine.ensembles.chunked, "CPU_CHUNK", 4)  # chunks, the last one padded
    fixed, targets = world(parts, 6)
    model, steps = mlp(fixed.shape, 10, **RELU), (1, 5, 12)
    training = Training(optimizer=SGD(lr=0.5, momentum=0.9), epochs=20, batch_size=batch_size)
    found = audit_storage(training, model, start(model), fixed, targets, steps=steps, seed=3)
    expected = one_by_one(replace(training, epochs=12), model, fixed, targets, steps, seed=3)
    assert found.stored.dtype == torch.bool
    assert torch.equal(found.stored, expected)
    taking_part = expected[:, expected.any(2).any(0)]
    assert 0.1 < taking_part.double().mean() < 0.9  # there is something to tell apart


def test_steps_may_come_in_any_order(parts: Split) -> None:
    fixed, targets = world(parts, 3)
    model, training = mlp(fixed.shape, 10, **RELU), Training(epochs=30)
    there, back = (
        audit_storage(training, model, start(model), fixed, targets, steps=steps, seed=0)
        for steps in ((1, 30, 1), (30, 1))
    )
    assert torch.equal(there.stored[:, [1, 2]], back.stored)
    assert torch.equal(there.stored[:, 0], there.stored[:, 2])


def test_a_stack_halved_for_want_of_memory_is_the_same(parts: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remanence.engine.ensembles.chunked, "CPU_CHUNK", 6)
    fixed, targets = world(parts, 6)
    model, training = mlp(fixed.shape, 10, **RELU), Training(epochs=8)

    def audit() -> Storage:
        return audit_storage(training, model, start(model), fixed, targets, steps=(2, 6), seed=0)

    expected, real, calls = audit(), remanence.engine.ensembles.mlp._gradient, []

    def short_of_memory(*given: object, centred: bool) -> Params:
        calls.append(1)
        if len(calls) == 4:  # after step 2 was seen
            raise torch.OutOfMemoryError
        return real(*given, centred=centred)

    monkeypatch.setattr(remanence.engine.ensembles.mlp, "_gradient", short_of_memory)
    with pytest.warns(UserWarning, match="trained in halves"):
        assert torch.equal(audit().stored, expected.stored)


def test_the_first_step_shows_what_given_weights_store(parts: Split) -> None:
    fixed, records = world(parts, 30)
    model = mlp(fixed.shape, 10, **RELU)
    params = train(Training(epochs=20), model, start(model), fixed)
    stored = at_first_step(model, params, fixed, records)
    expected = [bias_gradient(model, params, x, y) != 0 for x, y in zip(records.x, records.y, strict=True)]
    assert torch.equal(stored, torch.stack(expected))
    assert stored.any()
    assert not stored.all()


def test_rows_after_convolutions_count_too(parts: Split) -> None:
    fixed, records = world(parts, 4, side=12)
    model = cnn(fixed.shape, 10, activation=nn.ReLU)
    params = start(model)
    expected = [bias_gradient(model, params, x, y) != 0 for x, y in zip(records.x, records.y, strict=True)]
    assert torch.equal(at_first_step(model, params, fixed, records), torch.stack(expected))


def test_a_sigmoid_stores_every_record_in_every_row(parts: Split) -> None:
    fixed, records = world(parts, 20)
    model = mlp(fixed.shape, 10, hidden=(6,), activation=nn.Sigmoid)
    assert at_first_step(model, start(model), fixed, records).all()


def at_first_step(model: nn.Module, params: Params, fixed: Data, records: Data) -> Tensor:
    """Which rows store each of the records at the weights `params`."""
    training = Training(optimizer=SGD(lr=0.1), epochs=1)
    return audit_storage(training, model, params, fixed, records, steps=(1,), seed=0).stored[:, 0]


def test_counts_fractions_and_histograms() -> None:
    stored = torch.tensor([[[1, 0, 1], [0, 0, 0]], [[1, 1, 1], [0, 0, 1]]]).bool()
    storage = Storage(steps=(1, 9), stored=stored)
    assert storage.rows_storing.tolist() == [[2, 0], [3, 1]]
    assert storage.histogram().tolist() == [[0, 0, 1, 1], [1, 1, 0, 0]]
    assert storage.fraction.tolist() == [[1.0, 0.5, 1.0], [0.0, 0.0, 0.5]]


def test_what_cannot_be_audited_is_refused(parts: Split) -> None:
    fixed, records = world(parts, 2)
    model = mlp(fixed.shape, 10)
    for steps, code in (((), "empty"), ((0,), "out-of-range"), ((1, 4), "out-of-range")):
        with refused(code, "steps"):
            audit_storage(Training(epochs=3), model, start(model), fixed, records, steps=steps, seed=0)
    for bare in (nn.Sequential(nn.Flatten()), nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)), nn.ReLU()):
        with refused("unsupported-model", "model"):
            audit_storage(Training(epochs=1), bare, start(model), fixed, records, steps=(1,), seed=0)
