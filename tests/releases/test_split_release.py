"""A network split at its first fully connected layer: both parts together are the network, and features keep to their
box."""

from math import inf

import pytest
import torch
from refusals import refused
from torch import Tensor, nn
from torch.nn import functional as F

from remanence import WeightsOnly
from remanence.models import Unsupported, apply, mlp, split_at_first_linear
from remanence.releases import split_release

SHAPE = (2, 8, 8)


class LeNet(nn.Module):
    """The functional style, with an average pooling that is not recognised, frozen BatchNorm and dropout."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.ModuleDict({"hidden": nn.Linear(48, 7), "out": nn.Linear(7, 5)})
        self.first, self.norm, self.second = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 12, 2)
        self.register_buffer("mean", torch.rand(2, 1, 1))

    def forward(self, x: Tensor, scaled: bool = False) -> Tensor:
        x = F.relu(self.norm(self.first(x - self.mean)))
        x = F.relu(self.second(F.avg_pool2d(x, 2)))
        x = F.dropout(x, training=self.training).view(x.size(0), -1)
        x = torch.relu(self.head["hidden"](x))
        logits: Tensor = self.head["out"](x)
        return logits / 2 if scaled else logits


class Past(nn.Module):
    """Records go past the first linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.one, self.other = nn.Conv2d(2, 1, 3, padding=1), nn.Linear(64, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.conv(x).flatten(1)
        logits: Tensor = self.other(self.one(flat) + x.mean(1).flatten(1))
        return logits


class Tied(nn.Module):
    """One set of weights on both sides of the first linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.other = nn.BatchNorm1d(128), nn.Linear(128, 128), nn.Linear(128, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.other(self.norm(self.one(self.norm(x.flatten(1)))))
        return logits


def sequential(*after: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), *after, nn.Linear(48, 7), nn.ReLU(), nn.Linear(7, 5))


def pooled(*after: nn.Module) -> nn.Sequential:
    return sequential(*after, nn.MaxPool2d(2), nn.Flatten())


NETS: dict[str, tuple[nn.Module, tuple[float, float]]] = {
    "a class": (LeNet(), (-inf, inf)),  # its pooling is not recognised, so nothing is said of its features
    "ReLU": (pooled(nn.ReLU()), (0.0, inf)),
    "no activation": (pooled(), (-inf, inf)),
    "tanh and dropout": (pooled(nn.Tanh(), nn.Dropout2d(0.5)), (-1.0, 1.0)),
    "ELU": (pooled(nn.ELU()), (-inf, inf)),
    "norm last": (pooled(nn.ReLU(), nn.BatchNorm2d(3)), (-inf, inf)),
}


def released(model: nn.Module) -> WeightsOnly:
    """The model in double precision; its statistics are far from the identity."""
    generator = torch.Generator().manual_seed(0)
    final = {
        name: 0.3 + torch.rand(p.shape, generator=generator, dtype=torch.float64) - 0.4 * (p.ndim > 1)
        for name, p in model.eval().state_dict().items()
        if p.is_floating_point()
    }
    return WeightsOnly(model=model, final=final, shape=SHAPE, num_classes=5)


@pytest.mark.parametrize(("model", "bounds"), NETS.values(), ids=NETS)
def test_both_parts_together_are_the_network(model: nn.Module, bounds: tuple[float, float]) -> None:
    release = released(model)
    parts = split_release(release)
    x = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    features = parts.backbone(x)
    taken = list[Tensor]()
    first = next(m for m in model.modules() if isinstance(m, nn.Linear) and m.in_features == 48)
    handle = first.register_forward_pre_hook(lambda module, args: taken.append(args[0]))
    expected = apply(model, release.final, x)
    handle.remove()
    torch.testing.assert_close(features, taken[0], rtol=0, atol=0)
    torch.testing.assert_close(apply(parts.head.model, parts.head.final, features), expected, rtol=0, atol=0)
    assert parts.head.shape == (48,) == (parts.backbone.width,)
    assert parts.head.bounds == bounds
    assert features.min() >= bounds[0]
    assert features.max() <= bounds[1]
    names = parts.backbone.params.keys() | parts.head.final.keys()
    assert names == release.final.keys()
    assert not parts.backbone.params.keys() & parts.head.final.keys()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Past(), "past its first linear layer"),
        (Tied(), "both parts use `norm."),
        (nn.Sequential(nn.Conv2d(2, 5, 8), nn.Flatten()), "no linear layer"),
        (nn.Sequential(nn.Conv2d(2, 1, 1), nn.Linear(8, 5)), "not flat"),
    ],
)
def test_what_cannot_be_split_is_refused_with_the_reason(model: nn.Module, reason: str) -> None:
    with refused("unsupported-model", "release") as refusal:
        split_release(released(model))
    assert reason in str(refusal.value)


def test_rows_of_a_table_are_refused_and_an_mlp_is_split_after_its_flattening() -> None:
    model = mlp(SHAPE, 5)
    with refused("shape-mismatch", "release"):
        split_release(WeightsOnly(model=mlp((6,), 5), final={}, shape=(6,), num_classes=5))
    parts = split_at_first_linear(model, SHAPE)
    assert not isinstance(parts, Unsupported)
    assert not list(parts[0].parameters())
    assert len(list(parts[1].parameters())) == len(list(model.parameters()))
