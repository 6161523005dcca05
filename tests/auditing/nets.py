"""Small models as users bring them, trained by a plain loop of torch, and what the preflight says of one."""

from copy import deepcopy
from hashlib import blake2b

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remanence.auditing.answer.report import PreflightSummary
from remanence.releases import WeightsOnly
from remanence.types import Data, Params


class SmallCNN(nn.Module):
    """A class of its own, with BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(32 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.relu(self.norm2(self.conv2(x)))
        return self.head(self.drop(x.flatten(1)))


def as_images(data: Data) -> Data:
    return Data(x=data.x.view(-1, 1, 8, 8), y=data.y, num_classes=data.num_classes)


def small_mlp(inputs: int = 64, hidden: int = 128, classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def seeded(make: type[nn.Module] | object, seed: int = 0) -> nn.Module:
    """A net with torch's initial weights, sampled without the global generator's state being changed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def fitted(
    model: nn.Module,
    data: Data,
    *,
    epochs: int = 15,
    mean: float = 0.0,
    std: float = 1.0,
    lr: float = 1e-3,
    seed: int = 0,
) -> nn.Module:
    """`model` trained by Adam on normalised records, in evaluation mode; once for all tests that ask for the same."""
    settings = f"{type(model).__qualname__} {model} {data.shape} {epochs} {mean} {std} {lr} {seed}"
    digest = blake2b(settings.encode())
    for tensor in (*model.state_dict().values(), data.x, data.y):
        digest.update(tensor.numpy().tobytes())
    if digest.digest() not in _FITTED:
        _FITTED[digest.digest()] = deepcopy(_trained(model, data, epochs, mean, std, lr, seed).state_dict())
    model.load_state_dict(_FITTED[digest.digest()])
    return model.eval()


_FITTED: dict[bytes, Params] = {}


def _trained(model: nn.Module, data: Data, epochs: int, mean: float, std: float, lr: float, seed: int) -> nn.Module:
    optimizer, generator = torch.optim.Adam(model.parameters(), lr), torch.Generator().manual_seed(seed)
    model.train()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for _ in range(epochs):
            for batch in torch.randperm(len(data), generator=generator).split(32):
                optimizer.zero_grad()
                F.cross_entropy(model((data.x[batch] - mean) / std), data.y[batch]).backward()
                optimizer.step()
    return model


def weights(model: nn.Module) -> Params:
    return {name: p.detach().clone() for name, p in model.state_dict().items()}


def published(model: nn.Module, data: Data) -> WeightsOnly:
    return WeightsOnly(model=model, final=weights(model), shape=data.shape, num_classes=data.num_classes)


def status(summary: PreflightSummary, name: str) -> str | None:
    """The worst status of the checks of this name."""
    found = [check.status for check in summary.checks if check.name == name]
    return max(found, key=["ok", "note", "warning", "stop"].index) if found else None
