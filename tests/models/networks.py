"""Networks as users bring them, each with the one of ours that it equals."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remanence.models import Centre, Residual, Standardise, centred_mlp, cnn, initial_params, mlp, resnet
from remanence.types import Params

SHAPE, IMAGES = (1, 8, 8), (3, 8, 8)


@dataclass(frozen=True, kw_only=True)
class Equal:
    """A network that equals `ours` when its state-dict names are replaced: `names` maps its paths to ours."""

    theirs: nn.Module
    ours: nn.Module
    names: dict[str, str]
    shape: tuple[int, ...] = SHAPE

    def rename(self, params: Params) -> Params:
        """The parameters of `theirs` under the names of `ours`."""
        shapes = {name: p.shape for name, p in self.ours.state_dict().items()}
        renamed = {_joined(self.names[path], leaf): p for (path, _, leaf), p in _parted(params)}
        return {name: p.view(shapes[name]) for name, p in renamed.items()}

    def params(self, *, seed: int = 0) -> tuple[Params, Params]:
        """Weights for `theirs` and the same for `ours`; statistics of norms are far from the identity."""
        back = {ours: theirs for theirs, ours in self.names.items()}
        ours = {name: p.double() for name, p in initial_params(self.ours, seed=seed).items()}
        generator = torch.Generator().manual_seed(seed + 1)
        for name, p in ours.items():
            noise = 0.2 * torch.rand(p.shape, generator=generator, dtype=p.dtype)
            ours[name] = p + noise
        theirs = {_joined(back[path], leaf): p for (path, _, leaf), p in _parted(ours)}
        shapes = {name: p.shape for name, p in self.theirs.state_dict().items()}
        return {name: p.view(shapes[name]) for name, p in theirs.items()}, ours


def _joined(path: str, leaf: str) -> str:
    return f"{path}.{leaf}" if path else leaf


def _parted(params: Params) -> list[tuple[tuple[str, str, str], Tensor]]:
    return [(name.rpartition("."), p) for name, p in params.items()]


def named(activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    layers = {"flat": nn.Flatten(), "fc1": nn.Linear(64, 6), "act": activation(), "fc2": nn.Linear(6, 10)}
    return nn.Sequential(OrderedDict(layers))


class Net(nn.Module):
    """A class with layers as attributes, in another order than they are used in."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 10)
        self.hidden = nn.Linear(64, 6)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = torch.flatten(x, 1)
        x = self.relu(self.hidden(x))
        if mask is not None:
            x = x * mask
        logits: Tensor = self.out(x)
        return logits


class Functional(nn.Module):
    """The functional style, with dropout that follows the mode and one layer applied by `F.linear`."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 7), nn.Linear(7, 5), nn.Linear(5, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(x.view(x.size(0), -1)))
        x = F.dropout(x, p=0.5, training=self.training)
        return F.linear(torch.relu(self.fc2(x)), self.fc3.weight, self.fc3.bias)


class Normalised(nn.Module):
    """Input normalisation by buffers, as in a model that is deployed with its preprocessing."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("std", torch.ones(1))
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Dropout(0.3), nn.ReLU(), nn.Linear(6, 10))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net((x - self.mean.view(1, -1, 1, 1)) / self.std.view(1, -1, 1, 1))
        return logits


class Blocks(nn.Module):
    """Nested blocks in a ModuleList."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(64, 7), (7, 5)]
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Identity()) for a, b in widths])
        self.head = nn.Sequential(nn.Sequential(nn.Linear(5, 10)))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


class Conv(nn.Module):
    """The network of `cnn` in the functional style."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 4, stride=2), nn.ELU(inplace=True), nn.Conv2d(16, 32, 4))
        self.fc1, self.fc2 = nn.Linear(128, 10), nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.features(x))
        logits: Tensor = self.fc2(F.elu(self.fc1(x.reshape(-1, 128))))
        return logits


class BasicBlock(nn.Module):
    """A residual block as torchvision writes it, with one ReLU for both activations."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(fan_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(fan_out)
        self.downsample: nn.Module | None = None
        if stride != 1 or fan_in != fan_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(fan_in, fan_out, 1, stride=stride, bias=False), nn.BatchNorm2d(fan_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        activated: Tensor = self.relu(out)
        return activated


class ResNet(nn.Module):
    """A ResNet as torchvision writes it, without the pooling of its stem."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.layer1, self.layer2 = nn.Sequential(BasicBlock(4, 4, 1)), nn.Sequential(BasicBlock(4, 8, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer2(self.layer1(x))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def _plain(hidden: tuple[int, ...], activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    return mlp(SHAPE, 10, hidden=hidden, activation=activation)


def biasless() -> nn.Module:
    layers = [("mean", Centre(64)), ("a", nn.Linear(64, 6)), ("b", nn.ReLU()), ("c", nn.Linear(6, 10, bias=False))]
    return nn.Sequential(OrderedDict([("flat", nn.Flatten()), *layers]))


def _resnet_names() -> dict[str, str]:
    names = {"conv1": "0", "bn1": "1", "fc": "7"}
    for theirs, ours in (("layer1.0", "3"), ("layer2.0", "4")):
        pairs = {"conv1": "inner.0", "bn1": "inner.1", "conv2": "inner.3", "bn2": "inner.4"}
        names |= {f"{theirs}.{one}": f"{ours}.{other}" for one, other in pairs.items()}
    return names | {f"layer2.0.downsample.{k}": f"4.shortcut.{k}" for k in (0, 1)}


with torch.device("meta"):
    MLPS = {
        "named layers": Equal(theirs=named(), ours=_plain((6,)), names={"fc1": "1", "fc2": "3"}),
        "a class": Equal(theirs=Net(), ours=_plain((6,)), names={"hidden": "1", "out": "3"}),
        "functional": Equal(
            theirs=Functional().eval(), ours=_plain((7, 5)), names={"fc1": "1", "fc2": "3", "fc3": "5"}
        ),
        "nested blocks": Equal(
            theirs=Blocks(), ours=_plain((7, 5)), names={"blocks.0.0": "1", "blocks.1.0": "3", "head.0.0": "5"}
        ),
        "no bias, centred": Equal(
            theirs=biasless(), ours=centred_mlp(SHAPE, 10, hidden=(6,)), names={"mean": "1", "a": "2", "c": "4"}
        ),
        "normalised, dropout": Equal(
            theirs=Normalised().eval(),
            ours=nn.Sequential(Standardise(1), *_plain((6,))),
            names={"": "0", "net.1": "2", "net.4": "4"},
        ),
    }
    CNNS = {
        "torchvision-like ResNet": Equal(
            theirs=ResNet().eval(), ours=resnet(IMAGES, 10, blocks=(1, 1), width=4), names=_resnet_names(), shape=IMAGES
        ),
        "functional CNN": Equal(
            theirs=Conv(),
            ours=cnn((3, 12, 12), 10),
            names={"features.0": "0", "features.2": "2", "fc1": "5", "fc2": "7"},
            shape=(3, 12, 12),
        ),
    }


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 6), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x.flatten(1))
        logits: Tensor = self.fc2(x if x.sum() > 0 else -x)
        return logits


class Overwriting(nn.Module):
    """In place, ReLU changes the shortcut too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        logits: Tensor = self.fc((F.relu(x, inplace=True) + x).flatten(1))
        return logits


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(((x - 0.5) / 0.25).flatten(1))
        return logits


class Doubled(Scaled):
    """The same in other words, in place."""

    def forward(self, x: Tensor) -> Tensor:
        x = 2 * x.mul(2)
        x -= 1
        x += -1.0
        logits: Tensor = self.fc(x.flatten(1))
        return logits


def sequence(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers)


def shared() -> nn.Module:
    layer = nn.Linear(64, 64)
    return sequence(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(64, 10))


with torch.device("meta"):
    REFUSED = {  # with a part of the reason
        "a branch on values": (Branching(), "cannot be traced"),
        "overwritten in place": (Overwriting(), "overwrites in place"),
        "softmax": (sequence(nn.Linear(64, 6), nn.Softmax(dim=1), nn.Linear(6, 10)), "a layer `2`, Softmax(dim=1)"),
        "layer norm": (sequence(nn.Linear(64, 6), nn.LayerNorm(6), nn.Linear(6, 10)), "a layer `2`, LayerNorm"),
        "a layer used twice": (shared(), "uses `1.weight` twice"),
        "dropout in training": (sequence(nn.Dropout(0.5), nn.Linear(64, 10)), "`model.eval()`"),
        "BatchNorm in training": (sequence(nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10)), "`model.eval()`"),
        "an activation at the end": (sequence(nn.Linear(64, 10), nn.Sigmoid()), "does not end with a linear layer"),
        "two activations": (sequence(nn.Linear(64, 6), nn.ReLU(), nn.Tanh(), nn.Linear(6, 3)), "where an MLP has none"),
        "another shape": (sequence(nn.Linear(63, 10)), "`1` does not take what records of shape (1, 8, 8) become"),
        "images in a linear layer": (nn.Sequential(nn.Linear(8, 4), nn.Flatten(), nn.Linear(32, 10)), "are not flat"),
        "convolutions of flat records": (
            nn.Sequential(nn.Flatten(), Residual(1, 1, stride=1, activation=nn.ReLU)).eval(),
            "`1.inner.0` does not take what records",
        ),
    }
