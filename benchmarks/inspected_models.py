"""Models that a server may send, for `inspection.py`: honest ones of many kinds, and known traps on random weights."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize

from remanence.types import Params

SHAPE, TRAPS_OF_A_KIND = (1, 8, 8), 10


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Sent:
    """Weights that a server sent."""

    kind: str
    model: nn.Module | None
    weights: Params
    shape: tuple[int, ...]


def mlp(
    *hidden: int, features: int = 64, activation: Callable[[], nn.Module] = nn.ReLU, classes: int = 10
) -> nn.Module:
    sizes, layers = (features, *hidden), list[nn.Module]([nn.Flatten()])
    for inputs, outputs in zip(sizes, hidden, strict=False):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


def cnn(width: int = 16, *, channels: int = 1, size: int = 8, norm: bool = False) -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        between = [nn.BatchNorm2d(outputs)] if norm else []
        return [nn.Conv2d(inputs, outputs, 3, padding=1), *between, nn.ReLU()]

    flat = 2 * width * (size // 2) ** 2
    head = [nn.Flatten(), nn.Linear(flat, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(*block(channels, width), nn.MaxPool2d(2), *block(width, 2 * width), *head)


class Residual(nn.Module):
    def __init__(self, width: int, *, zero: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        if zero:
            nn.init.zeros_(self.norm2.weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


def resnet(width: int = 16, *, zero: bool = True) -> nn.Module:
    blocks = [Residual(width, zero=zero) for _ in range(2)]
    stem = [nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class Rows(nn.Module):
    """A transformer of the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x[:, 0])).mean(1))


class LowRank(nn.Module):
    """The adapter of a linear layer: LoRA, whose second factor begins at zero."""

    def __init__(self, inputs: int, outputs: int, rank: int = 8) -> None:
        super().__init__()
        self.lora_A, self.lora_B = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.lora_B.weight @ self.lora_A.weight


def initialised(net: nn.Module, how: Callable[[Tensor], object]) -> nn.Module:
    for p in net.parameters():
        if p.ndim > 1:
            how(p.data)
    return net


def trained(
    net: nn.Module, *, by: str = "sgd", lr: float = 0.1, decay: float = 0.0, steps: int = 300, few: int | None = None
) -> nn.Module:
    digits = load_digits()
    x, y = torch.tensor(digits.images / 16).float()[:, None][:few], torch.tensor(digits.target)[:few]
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    extra = {"momentum": 0.9} if by == "sgd" else {}
    optimizer = kinds[by](net.parameters(), lr=lr, weight_decay=decay, **extra)
    for _ in range(steps):
        batch = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()
    return net.eval()


def pruned(net: nn.Module, fraction: float, *, rows: bool = False) -> nn.Module:
    """The smallest weights, or the rows of the smallest norm, set to zero in every layer but the last."""
    for p in [p for p in net.parameters() if p.ndim > 1][:-1]:
        size = p.data.flatten(1).norm(dim=1) if rows else p.data.abs()
        small = size <= size.flatten().kthvalue(max(1, int(fraction * size.numel()))).values
        p.data[small] = 0.0
    return net


def quantised(net: nn.Module, bits: int) -> nn.Module:
    for p in net.parameters():
        step = p.data.abs().max().clamp_min(1e-12) / max(2 ** (bits - 1) - 1, 0.5)
        p.data = (p.data / step).round() * step if bits > 1 else p.data.sign() * p.data.abs().mean()
    return net


def adapted(net: nn.Module) -> nn.Module:
    for layer in [each for each in net.modules() if isinstance(each, nn.Linear)][:-1]:
        parametrize.register_parametrization(layer, "weight", LowRank(layer.in_features, layer.out_features))
        layer.parametrizations.weight.original.requires_grad_(False)
    return net


def long_tailed(net: nn.Module) -> nn.Module:
    """The head's biases at the logarithm of priors of a rare class, as detectors begin."""
    nn.init.constant_([each for each in net.modules() if isinstance(each, nn.Linear)][-1].bias, -4.6)
    return net


def honest() -> dict[str, Callable[[], nn.Module]]:
    """Makers of honest models by kind; each is called once for every seed."""
    init = nn.init
    made: dict[str, Callable[[], nn.Module]] = {
        "MLP, default": lambda: mlp(128, 64),
        "MLP, one wide layer": lambda: mlp(2000),
        "MLP, small": lambda: mlp(16),
        "MLP, deep": lambda: mlp(64, 64, 64, 64),
        "MLP, 3,072 inputs": lambda: mlp(512, 128, features=3072),
        "MLP, Kaiming normal": lambda: initialised(
            mlp(128, 64), lambda p: init.kaiming_normal_(p, nonlinearity="relu")
        ),
        "MLP, Xavier": lambda: initialised(mlp(128, 64), init.xavier_uniform_),
        "MLP, orthogonal": lambda: initialised(mlp(128, 64), init.orthogonal_),
        "MLP, truncated normal 0.02": lambda: initialised(mlp(128, 64), lambda p: init.trunc_normal_(p, std=0.02)),
        "MLP, N(0, 1)": lambda: initialised(mlp(128, 64), init.normal_),
        "MLP, rare-class prior": lambda: long_tailed(mlp(128, 64)),
        "CNN, default": cnn,
        "CNN, colour": lambda: cnn(32, channels=3, size=32),
        "CNN, BatchNorm": lambda: cnn(norm=True),
        "ResNet, zero-init": resnet,
        "transformer, default": Rows,
        "MLP, SGD": lambda: trained(mlp(128, 64)),
        "MLP, SGD, one layer": lambda: trained(mlp(300)),
        "MLP, SGD, wide": lambda: trained(mlp(1000), lr=0.05),
        "MLP, SGD, decay 1e-2": lambda: trained(mlp(128, 64), decay=1e-2),
        "MLP, SGD, decay 1e-2, one layer": lambda: trained(mlp(300), decay=1e-2, steps=1500),
        "MLP, SGD, 30 records": lambda: trained(mlp(200), few=30, decay=5e-3, steps=1500),
        "MLP, small init, SGD": lambda: trained(initialised(mlp(200), lambda p: init.normal_(p, std=1e-3)), steps=800),
        "MLP, Adam": lambda: trained(mlp(128, 64), by="adam", lr=1e-3, steps=600),
        "MLP, Adam, high rate": lambda: trained(mlp(128, 64), by="adam", lr=1e-2, steps=600),
        "MLP, AdamW, decay 0.1": lambda: trained(mlp(128, 64), by="adamw", lr=1e-3, decay=0.1, steps=600),
        "MLP, Adam, L2 1e-2": lambda: trained(mlp(128, 64), by="adam", lr=1e-3, decay=1e-2, steps=1000),
        "MLP, tanh": lambda: trained(mlp(128, activation=nn.Tanh)),
        "MLP, GELU, Adam": lambda: trained(mlp(128, activation=nn.GELU), by="adam", lr=3e-3),
        "MLP, one epoch": lambda: trained(mlp(128, 64), steps=28),
        "CNN, SGD": lambda: trained(cnn(), lr=0.05, steps=200),
        "CNN, Adam": lambda: trained(cnn(), by="adam", lr=2e-3, steps=200),
        "CNN, SGD, decay": lambda: trained(cnn(), lr=0.05, decay=5e-3, steps=300),
        "CNN, BatchNorm, SGD": lambda: trained(cnn(norm=True), lr=0.05, steps=150),
        "CNN, BatchNorm, Adam": lambda: trained(cnn(norm=True), by="adam", lr=2e-3, steps=150),
        "ResNet, SGD": lambda: trained(resnet(), lr=0.1, steps=100),
        "ResNet, AdamW": lambda: trained(resnet(zero=False), by="adamw", lr=3e-3, decay=0.05, steps=100),
        "transformer, Adam": lambda: trained(Rows(), by="adam", lr=3e-3, steps=150),
        "MLP, pruned 90 %": lambda: pruned(trained(mlp(128, 64)), 0.9),
        "CNN, pruned 90 %": lambda: pruned(trained(cnn(), lr=0.05, steps=100), 0.9),
        "MLP, half of the neurons pruned": lambda: pruned(trained(mlp(128, 64)), 0.5, rows=True),
        "MLP, 8 bits": lambda: quantised(trained(mlp(128, 64)), 8),
        "MLP, 4 bits": lambda: quantised(trained(mlp(128, 64)), 4),
        "MLP, 1 bit": lambda: quantised(trained(mlp(128, 64)), 1),
        "CNN, 4 bits": lambda: quantised(trained(cnn(), lr=0.05, steps=100), 4),
        "MLP, fine-tuned": lambda: trained(trained(mlp(128, 64)), lr=0.01, few=50, steps=100),
        "MLP, LoRA": lambda: trained(adapted(trained(mlp(128, 64))), by="adam", lr=3e-3, steps=100),
        "MLP, LoRA untrained": lambda: adapted(mlp(128, 64)),
    }
    return made


def by_sklearn(seed: int, *, alpha: float) -> Sent:
    """The weights of scikit-learn's MLP, alone."""
    digits = load_digits()
    fitted = MLPClassifier((100,), alpha=alpha, max_iter=30, random_state=seed, tol=0).fit(
        digits.data / 16, digits.target
    )
    pairs = zip(fitted.coefs_, fitted.intercepts_, strict=True)
    weights = {}
    for i, (coefficients, intercepts) in enumerate(pairs):
        weights |= {f"{i}.weight": torch.tensor(coefficients.T), f"{i}.bias": torch.tensor(intercepts)}
    return Sent(kind=f"scikit-learn, alpha {alpha:g}", model=None, weights=weights, shape=SHAPE)


def honest_models(seed: int) -> Iterator[Sent]:
    import warnings

    for number, (kind, make) in enumerate(honest().items()):
        torch.manual_seed(1000 * seed + number)
        net = make()
        shape = (3, 32, 32) if "3,072" in kind or "colour" in kind else SHAPE
        yield Sent(kind=kind, model=net, weights=net.state_dict(), shape=shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for alpha in (1e-4, 1.0):
            yield by_sklearn(seed, alpha=alpha)


def quantiles(count: int, *, mean: float = 0.3, std: float = 0.1) -> Tensor:
    return torch.distributions.Normal(mean, std).icdf((torch.arange(count) + 0.5) / count)


def imprint(
    net: nn.Module, *, direction: str = "mean", shuffled: bool = False, noise: float = 0.0, head: bool = True
) -> None:
    """The first linear layer measures one number of a record; its biases are that number's quantiles."""
    first, second = [each for each in net.modules() if isinstance(each, nn.Linear)][:2]
    rows, features = first.weight.shape
    row = torch.full((features,), 1 / features) if direction == "mean" else torch.randn(features) / features**0.5
    order = torch.randperm(rows) if shuffled else torch.arange(rows)
    first.weight.data = row.repeat(rows, 1) * (1 + noise * torch.randn(rows, features))
    first.bias.data = -quantiles(rows)[order]
    if head:  # the same error at every neuron
        second.weight.data = second.weight.data[:, :1].repeat(1, rows)


def trap_weights(net: nn.Module, *, scale: float) -> None:
    """Half of the weights of each neuron negative, the positive ones scaled down."""
    first = next(each for each in net.modules() if isinstance(each, nn.Linear))
    size = torch.randn_like(first.weight).abs() / first.in_features**0.5
    half = torch.rand_like(size).argsort(1) < first.in_features // 2
    first.weight.data = torch.where(half, -size, scale * size)
    first.bias.data.zero_()


def class_fishing(net: nn.Module) -> None:
    head = [each for each in net.modules() if isinstance(each, nn.Linear)][-1]
    head.weight.data[1:] = 0.0
    head.bias.data[1:] = 1000.0


def feature_fishing(net: nn.Module) -> None:
    head = [each for each in net.modules() if isinstance(each, nn.Linear)][-1]
    head.weight.data[0] *= 1000.0


def pass_through(net: nn.Module) -> None:
    """Kernels that pass each channel on, times a factor of the client, and an imprint module after them."""
    for conv in [each for each in net.modules() if isinstance(each, nn.Conv2d)]:
        conv.weight.data.zero_()
        for i in range(conv.out_channels):
            conv.weight.data[i, i % conv.in_channels, 1, 1] = 1.0
        conv.bias.data.zero_()
    imprint(net)


def kernels_alone(net: nn.Module) -> None:
    bare = copy.deepcopy([each for each in net.modules() if isinstance(each, nn.Linear)])
    pass_through(net)
    for layer, before in zip([each for each in net.modules() if isinstance(each, nn.Linear)], bare, strict=True):
        layer.load_state_dict(before.state_dict())


def dead_layer(net: nn.Module) -> None:
    layer = [each for each in net.modules() if isinstance(each, nn.Linear)][-2]
    layer.bias.data.fill_(-100.0)


def scaled(net: nn.Module) -> None:
    first, second = [each for each in net.modules() if isinstance(each, nn.Linear)][:2]
    first.weight.data *= 1000.0
    second.weight.data /= 1000.0


def duplicated(net: nn.Module) -> None:
    first = next(each for each in net.modules() if isinstance(each, nn.Linear))
    half = len(first.weight) // 2
    first.weight.data[half : 2 * half] = first.weight.data[:half]


def planted_head(net: nn.Module) -> None:
    """Gaussian rows, no biases, and a head that adds them: the weights of Wang et al. 2023."""
    first, second = [each for each in net.modules() if isinstance(each, nn.Linear)][:2]
    nn.init.normal_(first.weight)
    nn.init.zeros_(first.bias)
    nn.init.constant_(second.weight, 1 / second.in_features)


def gaussian_rows(net: nn.Module) -> None:
    first = next(each for each in net.modules() if isinstance(each, nn.Linear))
    nn.init.normal_(first.weight, std=first.in_features**-0.5)
    nn.init.zeros_(first.bias)


TRAPS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], None]]] = {
    "imprint module, mean brightness": (lambda: mlp(256, 64), imprint),
    "imprint, random direction, shuffled": (
        lambda: mlp(256, 64),
        lambda net: imprint(net, direction="random", shuffled=True),
    ),
    "imprint after convolutions": (cnn, imprint),
    "imprint, 10 % noise, honest second layer": (
        lambda: mlp(256, 64),
        lambda net: imprint(net, shuffled=True, noise=0.1, head=False),
    ),
    "imprint, 50 % noise, honest second layer": (
        lambda: mlp(256, 64),
        lambda net: imprint(net, shuffled=True, noise=0.5, head=False),
    ),
    "trap weights, factor 0.5": (lambda: mlp(256, 64), lambda net: trap_weights(net, scale=0.5)),
    "trap weights, factor 0.9, 3,072 inputs": (
        lambda: mlp(256, 64, features=3072),
        lambda net: trap_weights(net, scale=0.9),
    ),
    "trap weights, factor 0.95": (lambda: mlp(256, 64), lambda net: trap_weights(net, scale=0.95)),
    "class fishing": (cnn, class_fishing),
    "feature fishing": (cnn, feature_fishing),
    "identity kernels and imprint": (lambda: cnn(norm=False), pass_through),
    "identity kernels alone": (cnn, kernels_alone),
    "dead layer": (lambda: mlp(256, 64), dead_layer),
    "layer scaled by 1,000": (lambda: mlp(256, 64), scaled),
    "duplicated rows": (lambda: mlp(256, 64), duplicated),
    "Gaussian rows, constant head": (lambda: mlp(2000, classes=1), planted_head),
    "Gaussian rows, honest head": (lambda: mlp(2000), gaussian_rows),
}


def trap_models(seed: int) -> Iterator[Sent]:
    for number, (kind, (make, set_trap)) in enumerate(TRAPS.items()):
        for i in range(TRAPS_OF_A_KIND):
            torch.manual_seed(10**6 + 10**4 * seed + 100 * number + i)
            net = make()
            set_trap(net)
            shape = (3, 32, 32) if "3,072" in kind else SHAPE
            yield Sent(kind=kind, model=net, weights=net.state_dict(), shape=shape)
