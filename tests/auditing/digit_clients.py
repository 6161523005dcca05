"""Clients of digits: what they send, by the package and by plain torch, and their federation."""

from copy import deepcopy
from functools import cache

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from remanence.auditing.countermeasures.federation import Federation
from remanence.data import load
from remanence.releases import LocalUpdate, Victim, local_update
from remanence.releases.defenses import Defense
from remanence.training import SGD, Training
from remanence.types import Data, Params

STEP = Training(optimizer=SGD(lr=0.1), epochs=1)
SEVERAL = Training(optimizer=SGD(lr=0.05, momentum=0.9), epochs=3, weight_decay=0.01)


@cache
def digits() -> Data:
    data = load("digits")
    return data.take(torch.randperm(len(data), generator=torch.Generator().manual_seed(0)))


@cache
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)).eval()


def part(start: int, stop: int) -> Data:
    return digits().take(slice(start, stop))


def sent(training: Training, records: int = 8, *, clients: int = 1, defenses: tuple[Defense, ...] = ()) -> LocalUpdate:
    """What clients with the first digits send."""
    at, batch = dict(net().state_dict()), part(0, records)
    victim = Victim(model=net(), training=training, initial=at, final=at, fixed=batch.take([]), private=batch)
    return local_update(victim, clients=clients, defenses=defenses).release


def federation(training: Training, clients: int = 3, records: int = 8) -> Federation:
    return Federation.from_held_out(sent(training, records), part(0, records), part(100, 700), clients, seed=0)


def by_torch(weights: Params, data: Data, training: Training) -> Params:
    """The update of a client, by torch's own optimizer on full batches."""
    model = deepcopy(net())
    model.load_state_dict(weights)
    assert isinstance(training.optimizer, SGD)
    lr, momentum = training.optimizer.lr, training.optimizer.momentum
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=training.weight_decay)
    for _ in range(training.epochs):
        optimizer.zero_grad()
        cross_entropy(model(data.x), data.y).backward()
        optimizer.step()
    return {name: p.detach() - weights[name] for name, p in model.named_parameters()}


def parts_of(made: Federation, clients: int) -> list[Data]:
    size = len(made.truth)
    return [made.truth, *(made.others.take(slice(k * size, (k + 1) * size)) for k in range(clients - 1))]


def mean(updates: list[Params]) -> Params:
    return {name: torch.stack([each[name] for each in updates]).mean(0) for name in updates[0]}
