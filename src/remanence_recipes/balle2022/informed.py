"""What the recipes of this paper share: the parts of MNIST, the victims, the reconstructors, one cell."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from remanence.attacks import RecoNN
from remanence.data import Split, load, split
from remanence.experiments import Experiment, Reconstructed, Scale, Victims
from remanence.metrics import MAE, MAE_MSE, MSE, PSNR, SSIM, identity
from remanence.models import mlp
from remanence.releases import all_but_one
from remanence.training import Training
from remanence.types import Data

SIZES: dict[Scale, tuple[int, int, int, int]] = {  # private, fixed, public, test
    "smoke": (20, 100, 100, 500),
    "small": (200, 1000, 2000, 2000),
    "full": (1000, 10_000, 58_000, 1000),  # the paper takes 59,000 shadows; a thousand records are our nulls
}
PAPERS = RecoNN.paper()
OURS = RecoNN()


def cell(label: str, scale: Scale, **changes: Any) -> Experiment:
    """Table IV on MNIST: 784-10-10, ELU, full batch, 100 epochs; all records but one are known. On digits in a smoke
    test. `changes` are fields of the experiment or of its victims."""
    usual = Experiment(
        label=label,
        victims=Victims(
            split=partial(cut, scale), model=net(nn.ELU), training=training(scale), reveal=all_but_one, per_victim=1
        ),
        attack=reduced(OURS, scale),
        tuned_on_truth=True,  # the gates, the clip, the falling rate and AdamW's values: by the error on MNIST targets
        evaluations=(Reconstructed(matching=identity, metrics=(MSE, MAE, MAE_MSE, PSNR, SSIM)),),
    )
    assert usual.victims
    victims = {name: changes.pop(name) for name in [*changes] if hasattr(usual.victims, name)}
    return replace(usual, victims=replace(usual.victims, **victims), **changes)


def cut(scale: Scale, seed: int, *, sizes: Sequence[int] | None = None) -> Split:
    private, fixed, public, test = sizes or SIZES[scale]
    return split(records(scale), private=private, fixed=fixed, public=public, test=test, seed=seed)


def records(scale: Scale) -> Data:
    return load("digits" if scale == "smoke" else "mnist")


def net(activation: Callable[[], nn.Module]) -> Callable[[Data], nn.Module]:
    return lambda data: mlp(data.shape, data.num_classes, activation=activation)


def training(scale: Scale, **changes: Any) -> Training:
    usual = Training(epochs=20 if scale == "smoke" else 100, tf32=scale == "full")
    return replace(usual, **changes)


def reduced(attack: RecoNN, scale: Scale) -> RecoNN:
    """A smaller one for a smoke test; on a laptop ours need not be as wide as for 58,000 shadows."""
    if scale == "smoke":
        return replace(attack, hidden=(100, 100), fitting=replace(attack.fitting, epochs=60, batch_size=16))
    return replace(attack, hidden=(300, 300)) if scale == "small" and attack.head == "gated" else attack


def for_shadows(attack: RecoNN, count: int, *, of: int) -> RecoNN:
    """As many steps on `count` shadows as `attack` takes on `of`, up to twenty times its epochs."""
    epochs = attack.fitting.epochs
    return replace(attack, fitting=replace(attack.fitting, epochs=min(20 * epochs, round(epochs * of / count))))
