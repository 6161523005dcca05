"""Convolutional clients that send one gradient at fresh weights: Flower's quickstart CNN, LeNet, ResNet-18, BatchNorm.

remanence run fedavg.convolutions         scale small, two CPU cores: about fifteen minutes
expected      LeNet's images are photographs, and exact layer by layer, those of Flower's CNN faint; of ResNet-18 shapes
              and few colours with frozen BatchNorm, nothing with BatchNorm in training mode; features from the fully
              connected layers tell the records of a batch apart
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks import RGAP, FirstLayer, GradientMatching, TotalVariation, with_search
from remanence.experiments import Experiment, Scale
from remanence.models import lenet, resnet18
from remanence.releases import Case, Gradient, KnowsUpdate, Victim, gradient_at_initial
from remanence.releases.releases import BatchNormMode
from remanence.seeds import derive_seed
from remanence.training import SGD, Adam, Training
from remanence.types import Data, Params
from remanence_recipes.fedavg.rounds import Attempt, Round, experiment, torch_weights

STEPS: dict[Scale, int] = {"smoke": 20, "small": 600, "full": 1200}
DEEP_STEPS: dict[Scale, int] = {"smoke": 5, "small": 500, "full": 500}  # of ResNet-18
WIDTH: dict[Scale, int] = {"smoke": 2, "small": 32, "full": 64}  # of ResNet-18
DEEP: dict[Scale, dict[int, int]] = {"smoke": {1: 1}, "small": {1: 3, 4: 1}, "full": {1: 3, 4: 1, 16: 1}}  # clients
ONE_STEP = Training(optimizer=SGD(lr=0.1), epochs=1)


@final
@dataclass(frozen=True, kw_only=True)
class Matching:
    """One gradient by gradient matching with images at several scales, and what else the server uses of it."""

    steps: int
    restarts: int = 2
    lr: float = 0.03
    variation: float = 0.01  # weight of the total variation
    label_rounds: int = 2  # searches that refine inferred labels
    features: bool = True  # match what the gradient of the fully connected layers says of each record
    batch_norm: BatchNormMode = "frozen"
    statistics: bool = False  # of BatchNorm, sent and matched

    def __call__(self, each: Round, client: Victim, seed: int) -> tuple[KnowsUpdate, Tensor | None]:
        case: Case[Gradient] = gradient_at_initial(client, batch_norm=self.batch_norm, statistics=self.statistics)
        features = FirstLayer(guesses=False) if self.features else None
        prior = TotalVariation(weight=self.variation)
        attack = GradientMatching(prior=prior, features=features, label_rounds=self.label_rounds)
        scales = 1 if each.scale == "smoke" else 4
        settings = {"steps": self.steps, "restarts": self.restarts, "scales": scales, "optimizer": Adam(lr=self.lr)}
        return case.release, with_search(attack, **settings).run(case.release, seed=derive_seed(seed, "attack")).x


def layer_by_layer(each: Round, client: Victim, seed: int) -> tuple[KnowsUpdate, Tensor | None]:
    """One gradient of one record in closed form."""
    release = gradient_at_initial(client).release
    return release, RGAP().run(release, seed=derive_seed(seed, "attack")).x


def convolutions(scale: Scale) -> Sequence[Experiment]:
    """One gradient of Flower's quickstart CNN, of a LeNet and of ResNet-18 at fresh weights: batches of 1, 4 and 16."""
    steps = STEPS[scale]
    # with frozen BatchNorm all distances are below 0.02, and the prior must be small beside them
    deep = Matching(steps=DEEP_STEPS[scale], restarts=1, lr=0.1, variation=5e-4, label_rounds=0, features=False)
    training = replace(deep, batch_norm="training")
    rows: list[tuple[str, Attempt, dict[Scale, dict[int, int]]]] = [
        ("Flower's CNN", Matching(steps=steps), _batches({1: 10, 4: 5, 16: 3})),
        ("Flower's CNN, gradients alone", Matching(steps=steps, features=False), _batches({4: 5, 16: 3})),
        ("LeNet", Matching(steps=steps), _batches({1: 5, 4: 3, 16: 1})),
        ("LeNet, layer by layer", layer_by_layer, _batches({1: 5})),
        ("ResNet-18, BatchNorm frozen", deep, DEEP),
        ("ResNet-18, BatchNorm in training mode", training, _batches({4: 1, 1: 1}) | {"full": {4: 1, 1: 1}}),
    ]
    return [
        _experiment(f"{name}, batches of {n}", scale, name.partition(",")[0], n, count, attempt)
        for name, attempt, batches in rows
        for n, count in batches[scale].items()
    ]


def batch_norm(scale: Scale) -> Sequence[Experiment]:
    """Flower's quickstart CNN with BatchNorm in training mode: its running statistics sent with the gradient or not."""
    batches: dict[Scale, dict[int, int]] = {"smoke": {2: 1}, "small": {4: 3, 16: 2}, "full": {4: 12, 16: 6}}
    return [
        _experiment(
            f"batches of {n}, statistics {'sent' if sent else 'not sent'}",
            scale,
            "Flower's CNN with BatchNorm",
            n,
            count,
            Matching(steps=STEPS[scale], features=False, batch_norm="training", statistics=sent),
        )
        for n, count in batches[scale].items()
        for sent in (False, True)
    ]


def _batches(small: dict[int, int]) -> dict[Scale, dict[int, int]]:
    """The number of clients by the size of their batches."""
    return {"smoke": dict.fromkeys(list(small)[:1], 1), "small": small, "full": {n: 3 * c for n, c in small.items()}}


def _experiment(label: str, scale: Scale, network: str, records: int, count: int, attempt: Attempt) -> Experiment:
    networks: dict[str, tuple[Callable[[Data], nn.Module], str]] = {
        "Flower's CNN": (quickstart_cnn, "Two convolutions with max pooling and three linear layers"),
        "Flower's CNN with BatchNorm": (
            partial(quickstart_cnn, norm=True),
            "Two convolutions, each with BatchNorm in training mode and max pooling, and three linear layers",
        ),
        "LeNet": (_lenet, "Three convolutions with sigmoids and a linear layer, weights uniform within 1/2"),
        "ResNet-18": (
            partial(_resnet18, WIDTH[scale]),
            f"ResNet-18 of width {WIDTH[scale]}, "
            + (
                "BatchNorm in training mode, statistics not sent"
                if isinstance(attempt, Matching) and attempt.batch_norm == "training"
                else "BatchNorm frozen"
            ),
        ),
    }
    make, about = networks[network]
    weights: Callable[[nn.Module, int], Params] = _uniform_weights if network == "LeNet" else torch_weights
    each = Round(scale=scale, records=records, training=ONE_STEP, network=make, weights=weights)
    return experiment(label, f"{about}; labels are not known.", each, count, attempt)


def quickstart_cnn(data: Data, *, norm: bool = False) -> nn.Module:
    """The network of Flower's quickstart for PyTorch, LeNet's layers for colour images; digits have smaller kernels.
    With `norm` a BatchNorm follows each convolution."""
    kernel, side = (5, 5) if data.shape[-1] == 32 else (3, 2)
    pad = 0 if kernel == 5 else 1
    with torch.device("meta"):
        norms = [[nn.BatchNorm2d(channels)] if norm else [] for channels in (6, 16)]
        return nn.Sequential(
            *(nn.Conv2d(data.shape[0], 6, kernel, padding=pad), *norms[0], nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, kernel, padding=pad), *norms[1], nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(16 * side * side, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
            nn.Linear(84, data.num_classes),
        )


def _lenet(data: Data) -> nn.Module:
    return lenet(data.shape, data.num_classes)


def _resnet18(width: int, data: Data) -> nn.Module:
    return resnet18(data.shape, data.num_classes, width=width)


def _uniform_weights(model: nn.Module, seed: int) -> Params:
    """Weights and biases uniform within 1/2, with which sigmoids of fresh networks have gradients (Zhu et al. 2019)."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(p.shape, generator=generator) - 0.5 for name, p in model.named_parameters()}
