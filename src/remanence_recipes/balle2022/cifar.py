"""CIFAR-10: the convolutional victim of table V, the reconstructor of tables VI and VII, and DP-GD (figure 14).

The paper trains 54,000 shadows of 4.2e12 operations each. At `paper` scale these recipes keep its victim, its fixed set
of 5,000 and its training, and train as many shadows as one H200 does in five minutes: 700, on the set's test part. In
float32: what TF32 rounds off is four to seventeen times what a record does to such a net (decision 0009).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch.nn.functional import interpolate

from remanence.attacks import Fitting, ImageLoss, RecoNN, WeightFeatures
from remanence.data import Split, load, split
from remanence.experiments import Claim, Experiment, Scale
from remanence.metrics import MSE
from remanence.models import cnn
from remanence.training import SGD, AdamW, Training
from remanence.types import Data
from remanence_recipes.balle2022.informed import cell, training
from remanence_recipes.balle2022.tables import private_cells

SIZES: dict[Scale, tuple[int, int, int, int]] = {  # private, fixed, public, test
    "smoke": (20, 60, 60, 500),
    "small": (100, 200, 1000, 2000),
    "full": (100, 5000, 700, 500),
}
PAPERS = RecoNN.paper_cifar10()
OURS = RecoNN(
    hidden=(1000,),
    features=WeightFeatures(digest=True),
    fitting=Fitting(optimizer=AdamW(lr=1e-3, weight_decay=1e-2), epochs=60, batch_size=64, dropout=0.2),
)


def cifar10(scale: Scale) -> Sequence[Experiment]:
    """Tables IV to VII: one unknown CIFAR-10 image of a convolutional net."""
    claim = Claim.mean(MSE, target=0.028, where="the nearest neighbour among 59,000 others")
    ours = _cell("our reconstructor", scale, claims=(claim,))
    papers = _reduced(PAPERS, scale)
    return [ours, replace(ours, label="the paper's reconstructor", attack=papers, tuned_on_truth=False)]


def figure14_dp(scale: Scale) -> Sequence[Experiment]:
    """Figure 14: DP-GD on CIFAR-10 with a clipping norm of 10."""
    epsilons = {"smoke": (1e5,), "small": (1e3, 1e5), "full": (1.0, 100.0, 1e4, 1e6)}[scale]
    usual = _cell("no privacy", scale)
    if scale == "full":  # each point needs shadows of its own: a fifth of the paper's fixed set
        usual = usual.with_victims(split=partial(cut, scale, sizes=(50, 1000, 400, 500)))
    return private_cells(usual, epsilons, clip=10.0)


def _cell(label: str, scale: Scale, *, claims: tuple[Claim, ...] = ()) -> Experiment:
    return cell(
        label,
        scale,
        split=partial(cut, scale),
        model=lambda data: cnn(data.shape, data.num_classes),
        training=victims_training(scale),
        attack=_reduced(OURS, scale),
        claims=claims,
        tuned_on_truth=True,  # the digest: by the error on targets of small banks of seeds 0 and 1
    )


def victims_training(scale: Scale) -> Training:
    if scale == "smoke":
        return training(scale, optimizer=SGD(lr=0.1, momentum=0.9), epochs=4)
    return training(scale, optimizer=SGD(lr=0.01, momentum=0.9), tf32=False)


def _reduced(attack: RecoNN, scale: Scale) -> RecoNN:
    if scale == "smoke":  # LPIPS needs a file of weights that a fresh clone lacks, the discriminator larger images
        return replace(
            attack,
            hidden=() if attack.head == "deconv" else (100,),
            features=_with_pca(attack.features, 40),
            fitting=replace(attack.fitting, epochs=5),
            loss=ImageLoss(),
        )
    if scale == "small":
        return replace(
            attack,
            features=_with_pca(attack.features, 200),
            fitting=replace(attack.fitting, epochs=min(100, attack.fitting.epochs)),
            loss=replace(attack.loss, lpips=0.0),
        )
    return attack


def _with_pca(features: WeightFeatures, axes: int) -> WeightFeatures:
    return features if features.digest else replace(features, pca=axes)


def cut(scale: Scale, seed: int, *, sizes: tuple[int, int, int, int] | None = None) -> Split:
    private, fixed, public, test = sizes or SIZES[scale]
    return split(_records(scale), private=private, fixed=fixed, public=public, test=test, seed=seed)


def _records(scale: Scale) -> Data:
    if scale != "smoke":
        return load("cifar10", part="test")
    digits = load("digits")
    return replace(digits, x=interpolate(digits.x, size=(12, 12)))  # large enough for two convolutions
