"""Training inversion: the unknown record is exact where training is smooth and known, whatever the network."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import Tensor, nn
from torch.nn.functional import gelu

from remanence import SGD, Adam, Data, Logistic, Training, Victim, train_victim
from remanence.attacks import TrainingInversion
from remanence.attacks.one_unknown import training_inversion
from remanence.engine import train
from remanence.errors import Diverged
from remanence.models import initial_params, mlp
from remanence.progress import time_limit
from remanence.releases import AllButOne, all_but_one
from remanence.search import solver
from remanence.training import SquaredError
from remanence.types import Reconstruction

FULL_BATCH = Training(optimizer=SGD(lr=0.1, momentum=0.9), epochs=8)
IN_ORDER = Training(
    optimizer=SGD(lr=0.1, momentum=0.9),
    epochs=3,
    batch_size=16,
    shuffled=False,
    weight_decay=1e-3,
    lr_schedule=((1, 0.5),),
)
BY_ADAM = replace(IN_ORDER, optimizer=Adam(lr=0.01))


class Named(nn.Module):
    """A network as users write them: layers with names, a norm, a function in place of a module, an unused output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(64, 12), nn.LayerNorm(12), nn.Linear(12, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(gelu(self.norm(self.embed(images.flatten(1)))))


def named_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Named()


def victim(model: nn.Module, fixed: Data, record: Data, training: Training) -> Victim:
    fixed, record = fixed.to("cpu", torch.float64), record.to("cpu", torch.float64)
    sampled = model.state_dict() if isinstance(model, Named) else initial_params(model, seed=0)
    initial = {name: p.detach().double() for name, p in sampled.items()}
    return train_victim(model, training, initial, fixed, record, seed=0)


def parts(digits: Data, *, fixed: int = 50, record: int = 0) -> tuple[Data, Data]:
    return digits.take(slice(100, 100 + fixed)), digits.take(slice(record, record + 1))


def error(found: Reconstruction, record: Data) -> float:
    return float((found.x - record.x).square().mean())


def neighbour(fixed: Data, record: Data) -> float:
    """The error of the most similar record that the attacker owns."""
    return float((fixed.x - record.x).square().flatten(1).mean(1).min())


@pytest.mark.slow
@pytest.mark.parametrize("training", [FULL_BATCH, IN_ORDER], ids=["full batch", "mini-batches in order, decay"])
@pytest.mark.parametrize("named", [False, True], ids=["mlp", "own class"])
def test_the_unknown_record_and_its_label_are_exact(digits: Data, training: Training, named: bool) -> None:
    fixed, record = parts(digits)
    label, model = int(record.y), named_net() if named else mlp(record.shape, 10, hidden=(10,))
    attack = TrainingInversion(labels=tuple((label + shift) % 10 for shift in (3, 0, 6, 8)), rounds=(3,), steps=40)
    found = attack.run(all_but_one(victim(model, fixed, record, training)).release, seed=0)
    assert error(found, record) < 1e-12
    assert found.y is not None
    assert found.y.tolist() == [label]
    assert found.objective < 1e-12


@pytest.mark.slow
def test_where_line_searches_stall_the_search_goes_on(digits: Data) -> None:
    fixed, record = parts(digits, record=1)
    release = all_but_one(victim(named_net(), fixed, record, BY_ADAM)).release
    attack = TrainingInversion(labels=(int(record.y),), steps=20)
    stalled, found = (replace(attack, descent_steps=steps).run(release, seed=0) for steps in (0, 150))
    assert stalled.objective > 0.01  # else the test shows nothing
    assert found.objective < 0.1 * stalled.objective
    assert error(found, record) < 0.01 * neighbour(fixed, record) < 0.1 * error(stalled, record)


@pytest.mark.parametrize("loss", [Logistic(), SquaredError(values=(-1.0, 1.0))], ids=repr)
def test_tables_without_a_box_and_with_one_output(loss: Logistic | SquaredError) -> None:
    x = torch.randn(41, 6, generator=torch.Generator().manual_seed(0))
    data = Data(x=x, y=(x[:, 0] > 0).long(), num_classes=2, bounds=(-torch.inf, torch.inf))
    fixed, record = data.take(slice(1, None)), data.take(slice(0, 1))
    made = victim(mlp(record.shape, 1, hidden=(8,)), fixed, record, replace(FULL_BATCH, loss=loss, epochs=4))
    found = TrainingInversion(rounds=(2,), steps=40).run(all_but_one(made).release, seed=0)
    assert error(found, record) < 1e-8
    assert found.y is not None
    assert found.y.tolist() == record.y.tolist()


def test_an_order_of_mini_batches_that_is_not_known_hides_the_record(digits: Data) -> None:
    fixed, record = parts(digits)
    made = victim(mlp(record.shape, 10, hidden=(10,)), fixed, record, replace(IN_ORDER, shuffled=True))
    found = TrainingInversion(labels=(int(record.y),), steps=10, descent_steps=0).run(all_but_one(made).release, seed=1)
    assert found.objective > 0.1


def test_labels_that_the_model_does_not_have_are_refused(digits: Data) -> None:
    fixed, record = parts(digits)
    release = all_but_one(victim(mlp(record.shape, 10), fixed, record, replace(FULL_BATCH, epochs=1))).release
    assert isinstance(release, AllButOne)
    with refused("out-of-range", "labels"):
        TrainingInversion(labels=(3, 10)).run(release, seed=0)
    with refused("out-of-range", "steps"):
        TrainingInversion(steps=0)
    with refused("out-of-range", "labels"):
        TrainingInversion(labels=())


def table(training: Training = IN_ORDER) -> tuple[AllButOne, Data]:
    """A release of few numbers, and its record, which comes after the first mini-batches."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(13, 8, generator=generator), torch.randint(0, 3, (13,), generator=generator)
    data = Data(x=x, y=y, num_classes=3)
    fixed, record = data.take(slice(0, 12)), data.take(slice(12, None))
    release = all_but_one(victim(mlp((8,), 3, hidden=(6,)), fixed, record, replace(training, batch_size=4))).release
    assert isinstance(release, AllButOne)
    return release, record


def test_records_are_taken_in_the_precision_of_the_weights() -> None:
    release, record = table()
    single = replace(release, fixed=release.fixed.to("cpu", torch.float32))
    found = TrainingInversion(labels=(int(record.y),), steps=40).run(single, seed=0)
    assert found.x.dtype == torch.float64
    assert error(found, record) < 1e-12  # 24 bits hold these records


@pytest.mark.parametrize("length", [1, 2])
def test_graphs_of_few_steps_give_the_same_record(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_inversion, "segment_length", lambda *args, **settings: length)
    release, record = table()
    found = TrainingInversion(labels=(int(record.y),), steps=40).run(release, seed=0)
    assert error(found, record) < 1e-12


def test_a_limit_of_time_ends_it_with_what_it_has() -> None:
    release, _ = table()
    with time_limit(0.0) as limit:
        found = TrainingInversion(steps=10_000).run(release, seed=0)
    assert limit.reached
    assert bool(found.x.isfinite().all())
    assert found.y is not None
    assert 0 < found.objective < torch.inf


def test_a_training_that_is_not_the_victims_is_named() -> None:
    release, _ = table()
    other = replace(IN_ORDER, batch_size=4, optimizer=SGD(lr=1e200, momentum=0.9))
    with refused("diverged", "training"):
        TrainingInversion().run(replace(release, training=other), seed=0)


def test_a_search_that_diverges_leaves_the_record_that_was_found_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*args: object, **settings: object) -> None:
        raise Diverged("it did", argument="search")

    release, record = table()
    attack = TrainingInversion(labels=(int(record.y),), steps=3, descent_steps=0)
    expected = attack.run(release, seed=0)
    monkeypatch.setattr(solver, "_descend", diverge)
    found = replace(attack, descent_steps=5).run(release, seed=0)
    assert torch.equal(found.x, expected.x)
    assert found.objective == expected.objective


def test_a_record_without_a_trace_and_no_fixed_ones_are_refused() -> None:
    release, _ = table()
    training = Training(optimizer=SGD(lr=0.1, momentum=0.0), epochs=1, batch_size=4, shuffled=False)
    fixed = release.fixed.take(slice(0, 4))
    without = train(training, release.model, release.initial, fixed)
    release = replace(release, training=training, fixed=fixed, final=without)
    with refused("conflict", "fixed"):
        TrainingInversion().run(release, seed=0)
    with refused("out-of-range", "fixed"):
        TrainingInversion().run(replace(release, fixed=fixed.take(slice(0, 0))), seed=0)


class Tokens(nn.Module):
    """A bag of words: records are tokens, by which nothing can be differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens.long()).mean(1))


def test_a_training_without_a_derivative_by_the_record_is_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, 20, (9, 5), generator=generator), torch.randint(0, 3, (9,), generator=generator)
    data = Data(x=x.double(), y=y, num_classes=3, bounds=(0.0, 19.0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Tokens().double()
    initial = {name: p.detach().clone() for name, p in model.state_dict().items()}
    training = Training(optimizer=SGD(lr=0.1), epochs=2)
    made = train_victim(model, training, initial, data.take(slice(1, None)), data.take(slice(0, 1)), seed=0)
    with refused("unsupported-model", "model"):
        TrainingInversion().run(all_but_one(made).release, seed=0)
    release, _ = table()
    with refused("unsupported-model", "model"):
        TrainingInversion().run(replace(release, training=replace(IN_ORDER, epochs=0)), seed=0)
