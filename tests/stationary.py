"""Victims that were trained with weight decay until they were stationary."""

from dataclasses import replace
from functools import cache, partial

import torch
from torch import nn

from remanence import SGD, Data, Logistic, Training, Victim, WeightsOnly, load, train_victim
from remanence.attacks.weights import residual
from remanence.models import centred_mlp, mlp, torch_params
from remanence.releases import weights_only
from remanence.training import ByLoss, KnownLoss

RECORDS = 10


def private(classes: int) -> Data:
    digits = load("digits")
    place = torch.cat([(digits.y == label).nonzero()[: RECORDS // classes, 0] for label in range(classes)])
    return Data(x=digits.x[place].double(), y=digits.y[place], num_classes=classes)


GREY = torch.full((64,), 0.5, dtype=torch.float64)


@cache
def stationary(loss: KnownLoss | None = None, *, centred: bool = True, hidden: tuple[int, ...] = (40,)) -> Victim:
    """Five classes of digits, or two with one output."""
    return trained(private(5 if loss is None else 2), loss, centred=centred, hidden=hidden)


def trained(
    data: Data, loss: KnownLoss | None = None, *, centred: bool = True, hidden: tuple[int, ...] = (40,)
) -> Victim:
    """With weight decay until it is stationary."""
    net = centred_mlp if centred else partial(mlp, activation=nn.ReLU)
    model = net(data.shape, data.num_classes if loss is None else 1, hidden=hidden)
    initial = {name: p.double() for name, p in torch_params(model, seed=0).items()}
    if centred:
        initial["1.mean"] = data.x.mean(0).flatten()
    training = Training(
        optimizer=SGD(lr=0.1, momentum=0.9), epochs=1500, weight_decay=0.02, lr_schedule=((1000, 0.2), (1250, 0.04))
    )
    training = training if loss is None else replace(training, loss=loss)
    return train_victim(model, training, initial, data.take(slice(0, 0)), data, seed=0)


def without_decay(loss: KnownLoss, *, epochs: int) -> Victim:
    """The rate follows the loss."""
    data = private(2 if isinstance(loss, Logistic) else 5)
    model = centred_mlp(data.shape, 1 if isinstance(loss, Logistic) else 5, hidden=(40,))
    initial = {name: p.double() for name, p in torch_params(model, seed=0, first_std=1e-4).items()}
    initial["1.mean"] = data.x.mean(0).flatten()
    training = Training(optimizer=SGD(lr=0.1, momentum=0.9), epochs=epochs, lr_schedule=ByLoss(), loss=loss)
    return train_victim(model, training, initial, data.take(slice(0, 0)), data, seed=0)


def layers_of(victim: Victim) -> tuple[residual.Layer, ...]:
    layers = residual.layers_of(victim.model, victim.final, victim.private.shape)
    assert layers is not None
    return layers


def release(loss: KnownLoss | None = None) -> WeightsOnly:
    return weights_only(stationary(loss)).release
