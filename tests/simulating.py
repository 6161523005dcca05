"""Small victims whose training is simulated."""

from collections.abc import Callable

import torch
from torch import nn

from remanence import SGD, Data, FineTuned, Training, Victim, load, train_victim
from remanence.models import cnn, initial_params, mlp, resnet, vgg
from remanence.releases import fine_tuned

Net = Callable[[Data], nn.Module]
EASY = Training(optimizer=SGD(lr=0.1), epochs=6)
HARD = Training(
    optimizer=SGD(lr=0.03, momentum=0.9),
    epochs=4,
    batch_size=4,
    shuffled=False,
    weight_decay=0.01,
    lr_schedule=((2, 0.5), (3, 0.1)),
)
NETS: dict[str, Net] = {
    "mlp with relu": lambda data: mlp(data.shape, 10, hidden=(24,), activation=nn.ReLU),
    "mlp with elu": lambda data: mlp(data.shape, 10, hidden=(24,)),
    "cnn": lambda data: cnn(data.shape, 10),
    "resnet": lambda data: resnet(data.shape, 10, blocks=(1, 1), width=4, activation=nn.ELU),
    "vgg": lambda data: vgg(data.shape, 10, blocks=(1, 2), width=4, activation=nn.ELU),
}


def some(count: int, *, side: int = 8) -> Data:
    """Digits of as many classes, in float64."""
    digits = load("digits")
    place = torch.tensor([int((digits.y == label).nonzero()[0, 0]) for label in range(count)])
    x = nn.functional.interpolate(digits.x[place].double(), size=(side, side))
    return Data(x=x, y=digits.y[place], num_classes=10)


def victim(net: Net, data: Data, training: Training, fixed: Data | None = None) -> Victim:
    model = net(data)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    return train_victim(model, training, initial, fixed or data.take([]), data, seed=0)


def shown(net: Net = NETS["mlp with relu"], training: Training = EASY) -> FineTuned:
    return fine_tuned(victim(net, some(3), training)).release
