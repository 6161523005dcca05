"""The attack on CIFAR-10: tables IV to VII and DP-GD (figure 14).

The paper trains 54,000 shadow models of 4.2e12 operations each. At full scale these recipes keep its victim, its 5,000
fixed records and its training, and train as many shadow models as one H200 does in five minutes; in float32, as TF32
rounds off four to seventeen times what one record changes in such a network (decision 0009).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import nn

from remanence.attacks import Fitting, ImageLoss, RecoNN, WeightFeatures
from remanence.data import load, split
from remanence.experiments import Budget, Claim, Experiment, Scale, Victims
from remanence.metrics import MSE
from remanence.models import cnn
from remanence.releases import all_but_one
from remanence.training import SGD, AdamW
from remanence.types import Data
from remanence_recipes.balle2022.on_mnist import SCORES, mnist_training, with_dp
from remanence_recipes.records import repeated

CIFAR10: Mapping[Scale, Mapping[str, int]] = {
    "smoke": {"private": 20, "fixed": 60, "public": 60, "test": 500},
    "small": {"private": 100, "fixed": 200, "public": 1000, "test": 2000},
    "full": {"private": 100, "fixed": 5000, "public": 700, "test": 500},
}
OURS_CIFAR10 = RecoNN(
    hidden=(1000,),
    features=WeightFeatures(digest=True),
    fitting=Fitting(optimizer=AdamW(lr=1e-3, weight_decay=1e-2), epochs=60, batch_size=64, dropout=0.2),
)


def cifar10_victims(scale: Scale, *, activation: Callable[[], nn.Module] = nn.ELU, **sizes: int) -> Victims:
    """The convolutional victims of table V; `sizes` replace those of the scale."""
    counts = {**CIFAR10[scale], **sizes}
    training = mnist_training(scale, optimizer=SGD(lr=0.01, momentum=0.9), tf32=False)
    if scale == "smoke":
        training = mnist_training(scale, optimizer=SGD(lr=0.1, momentum=0.9), epochs=4)
    return Victims(
        split=lambda seed: split(_color_images(scale), **counts, seed=seed),
        model=lambda data: cnn(data.shape, data.num_classes, activation=activation),
        training=training,
        reveal=all_but_one,
        per_victim=1,
    )


def _color_images(scale: Scale) -> Data:
    """The test part of CIFAR-10; digits at smoke scale, large enough for two convolutions."""
    return repeated(load("digits"), 12) if scale == "smoke" else load("cifar10", part="test")


def cifar10(scale: Scale) -> Sequence[Experiment]:
    """Tables IV to VII: one unknown CIFAR-10 image of a convolutional network, by our reconstructor and the paper's.

    By the paper what its reconstructor finds in networks with ReLU is farther from the target than a neighbour.
    """
    ours = Experiment(
        label="our reconstructor",
        victims=cifar10_victims(scale),
        attack=_reduced_cifar10(OURS_CIFAR10, scale),
        evaluations=(SCORES,),
        claims=(Claim.mean(MSE, target=0.028, where="the nearest neighbour among 59,000 others"),),
        budget=Budget(shadows=(700, 54_000), victims=(100, 1000)) if scale == "full" else None,
        tuned_on_truth=True,  # the digest was chosen by the error on targets of small banks of seeds 0 and 1
    )
    attack = _reduced_cifar10(RecoNN.paper_cifar10(), scale)
    papers = replace(ours, label="the paper's reconstructor", attack=attack, tuned_on_truth=False)
    relu = cifar10_victims(scale, activation=nn.ReLU)
    others = [replace(each, label=f"ReLU, {each.label}", victims=relu, claims=()) for each in (ours, papers)]
    return [ours, papers, *others]


def _reduced_cifar10(attack: RecoNN, scale: Scale) -> RecoNN:
    """Without LPIPS, which needs a file of weights, and at smoke scale without the discriminator of larger images."""
    if scale == "full":
        return attack
    axes, epochs = (40, 5) if scale == "smoke" else (200, min(100, attack.fitting.epochs))
    features = attack.features if attack.features.digest else replace(attack.features, pca=axes)
    attack = replace(attack, features=features, fitting=replace(attack.fitting, epochs=epochs))
    if scale == "small":
        return replace(attack, loss=replace(attack.loss, lpips=0.0))
    return replace(attack, hidden=() if attack.head == "deconv" else (100,), loss=ImageLoss())


def figure14_dp(scale: Scale) -> Sequence[Experiment]:
    """Figure 14: DP-GD on CIFAR-10 with a clipping norm of 10: error and test accuracy at each epsilon."""
    epsilons = {"smoke": (1e5,), "small": (1e3, 1e5), "full": (1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6)}[scale]
    usual = replace(cifar10(scale)[0], label="no privacy", claims=())
    if scale == "full":  # each epsilon needs shadow models of its own: four chunks of 140 models
        victims = cifar10_victims(scale, private=140, fixed=1000, public=420, test=2000)
        budget = Budget(shadows=(420, 54_000), victims=(140, 1000), records=(1000, 5000))
        usual = replace(usual, victims=victims, budget=budget)
    return with_dp(usual, epsilons, clip=10.0)
