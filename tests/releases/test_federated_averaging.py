"""Clients of federated averaging against torch's own optimizers: mini-batches, Adam, several clients, defenses."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence import SGD, Adam, Data, Training, Victim
from remanence.models import initial_params, mlp
from remanence.releases import gradient_at_initial, local_update, update_scale
from remanence.releases.defenses import Clipping, TopK
from remanence.training import AdamW, Optimizer
from remanence.types import Params

MODEL = mlp((1, 8, 8), 10, hidden=(20,), activation=nn.ReLU)
BEFORE = {name: p.double() for name, p in initial_params(MODEL, seed=0).items()}
IN_ORDER = Training(optimizer=SGD(lr=0.1), epochs=3, batch_size=4, shuffled=False)


@pytest.fixture(scope="module")
def batch(digits: Data) -> Data:
    return digits.take(slice(0, 12)).to("cpu", torch.float64)


def client(batch: Data, training: Training) -> Victim:
    none = batch.take(slice(0, 0))
    return Victim(model=MODEL, training=training, initial=BEFORE, final=BEFORE, fixed=none, private=batch)


def by_torch(make: type[torch.optim.Optimizer], batches: list[tuple[Tensor, Tensor]], **settings: float) -> Params:
    """The update by torch's optimizer, a step for each batch."""
    real = mlp((1, 8, 8), 10, hidden=(20,), activation=nn.ReLU).to_empty(device="cpu").double()
    real.load_state_dict(BEFORE)
    optimizer = make(real.parameters(), **settings)  # type: ignore[call-arg]
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(real(x), y).backward()
        optimizer.step()
    return {name: p.detach() - BEFORE[name] for name, p in real.named_parameters()}


@pytest.mark.parametrize(
    ("optimizer", "theirs", "settings"),
    [
        (SGD(lr=0.1, momentum=0.9), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (Adam(lr=1e-3), torch.optim.Adam, {"lr": 1e-3}),
        (AdamW(lr=1e-3, weight_decay=0.1), torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.1}),
    ],
    ids=["momentum", "Adam", "AdamW"],
)
def test_mini_batches_are_simulated_as_torch_trains(
    optimizer: Optimizer, theirs: type[torch.optim.Optimizer], settings: dict[str, float], batch: Data
) -> None:
    release = local_update(client(batch, replace(IN_ORDER, optimizer=optimizer))).release
    parts = [(x, y) for _ in range(3) for x, y in zip(batch.x.split(4), batch.y.split(4), strict=True)]
    expected = by_torch(theirs, parts, **settings)
    torch.testing.assert_close(release.update, expected)
    torch.testing.assert_close(release.simulate(batch.x, batch.y), release.sent)


def test_the_first_epoch_takes_candidates_as_they_come(batch: Data) -> None:
    """Whatever order a client draws for one epoch, candidates in that order explain what it sent."""
    order = torch.randperm(12, generator=torch.Generator().manual_seed(5))
    update = by_torch(torch.optim.SGD, [(batch.x[i], batch.y[i]) for i in order.split(4)], lr=0.1)
    shown = local_update(client(batch, replace(IN_ORDER, epochs=1, shuffled=True))).release
    release = replace(shown, update=update)
    torch.testing.assert_close(release.simulate(batch.x[order], batch.y[order]), release.sent)
    other = release.simulate(batch.x, batch.y)
    assert not all(torch.allclose(other[name], sent) for name, sent in release.sent.items())


def test_several_candidates_are_simulated_at_once(batch: Data) -> None:
    release = local_update(client(batch, replace(IN_ORDER, shuffled=True))).release
    both = torch.vmap(release.simulate)(
        torch.stack([batch.x, batch.x.flip(0)]), torch.stack([batch.y, batch.y.flip(0)])
    )
    for k, x in enumerate((batch.x, batch.x.flip(0))):
        alone = release.simulate(x, batch.y if k == 0 else batch.y.flip(0))
        torch.testing.assert_close({name: value[k] for name, value in both.items()}, alone)


def test_the_mean_of_two_clients_is_that_of_each_on_its_own(batch: Data) -> None:
    whole = local_update(client(batch, IN_ORDER), clients=2).release
    halves = [local_update(client(batch.take(part), IN_ORDER)).release for part in (slice(0, 6), slice(6, 12))]
    for name, update in whole.update.items():
        torch.testing.assert_close(update, (halves[0].update[name] + halves[1].update[name]) / 2)
    torch.testing.assert_close(whole.simulate(batch.x, batch.y), whole.sent)
    with refused("conflict", "clients"):
        replace(whole, clients=5)
    with refused("out-of-range", "batch_size"):
        replace(whole, batch_size=0)
    for clients in (0, -1, 24):
        with refused("conflict", "clients"):
            local_update(client(batch, IN_ORDER), clients=clients)
    for reveal in (local_update, gradient_at_initial):
        with refused("empty", "victim"):
            reveal(client(batch.take(slice(0, 0)), IN_ORDER))
    with refused("conflict", "clients"):
        whole.fine_tuned(10)


def test_copies_of_each_record_take_as_many_steps_as_the_records(batch: Data) -> None:
    release = local_update(client(batch, IN_ORDER)).release
    twice = release.simulate(torch.cat([batch.x, batch.x]), torch.cat([batch.y, batch.y]))
    torch.testing.assert_close(twice, release.sent)


def test_defenses_act_on_the_update_in_their_order(batch: Data) -> None:
    plain = local_update(client(batch, IN_ORDER)).release
    norm = float(torch.cat([u.flatten() for u in plain.update.values()]).norm())
    shown = local_update(client(batch, IN_ORDER), defenses=(Clipping(norm=norm / 2), TopK(fraction=0.1))).release
    values = torch.cat([u.flatten() for u in shown.update.values()])
    assert int((values != 0).sum()) == -(-len(values) // 10)
    sent = torch.cat([(plain.update[name] / 2).flatten() for name in plain.update])[values != 0]
    torch.testing.assert_close(values[values != 0], sent)
    mine = shown.simulate(batch.x, batch.y)
    for name, value in shown.sent.items():
        torch.testing.assert_close(mine[name][value != 0], value[value != 0])


def test_a_scale_is_the_update_of_a_weight_with_gradient_minus_one() -> None:
    training = Training(optimizer=SGD(lr=0.5, momentum=0.9), epochs=2, batch_size=4, lr_schedule=((1, 0.1),))
    weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.9)
    for step in range(6):
        optimizer.param_groups[0]["lr"] = 0.5 if step < 3 else 0.05
        weight.grad = torch.tensor(-1.0, dtype=torch.float64)
        optimizer.step()
    assert update_scale(training, 12) == pytest.approx(weight.item())
