"""RecoNN: a network reconstructs the one unknown record from the released weights.

Balle, Cherubin, Hayes, "Reconstructing Training Data with Informed Adversaries" (IEEE S&P 2022), tables IV, VI and VII:
shadow models are trained as the victim was, each with another public record in place of the unknown one; a network from
their standardised weights to that record is trained with MSE + MAE, on CIFAR-10 also with LPIPS and a discriminator.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import final, get_args

import torch
from torch import Tensor

from remanence.attacks.one_unknown.fitting import Fitting
from remanence.attacks.one_unknown.losses import ImageLoss
from remanence.attacks.one_unknown.network import Head, Reconstructor, build_network, materialise
from remanence.errors import BadInput, check_min, unknown_name
from remanence.models import initial_params
from remanence.models.operations import Activation, Conv
from remanence.releases import KnowsFixed, require
from remanence.seeds import derive_seed
from remanence.shadow import Rows, ShadowBank, stack_weights
from remanence.shadow.features import FittedFeatures, Scaler, WeightFeatures
from remanence.training import AdamW, RMSProp
from remanence.types import Reconstruction


@final
@dataclass(frozen=True, kw_only=True)
class RecoNN:
    """A reconstructor and its training; the default is our best on MNIST, `RecoNN.paper()` the published method.

    `fit` trains it on a bank of shadow models; the `FittedRecoNN` that it returns is the attack on a release.
    """

    hidden: tuple[int, ...] = (1000, 1000, 1000)  # widths of the hidden layers
    head: Head = "gated"  # "gated" is ours, "dense" that of table IV, "deconv" that of table VI
    features: WeightFeatures = WeightFeatures()
    loss: ImageLoss = ImageLoss()
    fitting: Fitting = Fitting()

    @classmethod
    def paper(cls) -> "RecoNN":
        """The published method on MNIST: table IV."""
        return cls(
            hidden=(1000, 1000),
            head="dense",
            features=WeightFeatures(clip=None),
            fitting=Fitting(optimizer=RMSProp(lr=1e-3), cosine=False, epochs=100, validation_fraction=0.0),
        )

    @classmethod
    def paper_cifar10(cls) -> "RecoNN":
        """The published method on CIFAR-10: tables IV, VI and VII. The paper does not print the weights of its four
        losses; its weight decay acts here on the parameters, not through the gradient."""
        return cls(
            hidden=(),
            head="deconv",
            features=WeightFeatures(clip=None),
            loss=ImageLoss(lpips=1.0, adversarial=0.01),
            fitting=Fitting(
                optimizer=AdamW(lr=1e-4, weight_decay=1e-4),
                cosine=False,
                epochs=1000,
                validation_fraction=0.0,
                tf32=False,
            ),
        )

    def __post_init__(self) -> None:
        if self.head not in get_args(Head):
            raise unknown_name("head", self.head, get_args(Head), argument="head")
        check_min(self, hidden=1)
        if self.features.digest and self.head != "gated":
            message = (
                f'`features` with `digest` predict the gates of `head="gated"`, got head="{self.head}": '
                "leave one of them out"
            )
            raise BadInput(message, code="conflict", argument="features")

    def fit(self, bank: ShadowBank, *, seed: int) -> "FittedRecoNN":
        """Train a reconstructor on the bank and select the epoch with the lowest validation loss."""
        validation, training = self.fitting.split(bank, seed=derive_seed(seed, "held out"))
        layer = self._gated_layer(bank)
        features = self.features.fit(bank.weights, training, layer=layer, seed=derive_seed(seed, "axes"))
        net = build_network(self.head, self.hidden, len(features.active), bank.targets, layer)
        materialise(net, initial_params(net, seed=derive_seed(seed, "start")), bank.weights)
        self.fitting.train(net, features, self.loss, bank, training=training, validation=validation, seed=seed)
        return FittedRecoNN(attack=self, features=features, net=net)

    def refine(self, fitted: "FittedRecoNN", bank: ShadowBank, *, seed: int) -> "FittedRecoNN":
        """Fine-tune `fitted` on a bank of another fixed set (figure 11); `fitted.run` there is the zero-shot attack."""
        old = fitted.attack
        for name, ours, theirs in (
            ("hidden", self.hidden, old.hidden),
            ("head", self.head, old.head),
            ("features", (self.features.digest, self.features.pca), (old.features.digest, old.features.pca)),
        ):
            if ours != theirs:
                raise BadInput(
                    f"`{name}` must be that of the reconstructor to refine, {theirs}, got {ours}: change others only",
                    code="conflict",
                    argument=name,
                )
        validation, training = self.fitting.split(bank, seed=derive_seed(seed, "held out"))
        # Another fixed set moves the mean by far more than one record moves a model, and a few shadows estimate it.
        # They do not estimate thousands of standard deviations: those, and the axes, stay what the network has learnt.
        mean = Scaler.fit(bank.weights, clip=self.features.clip, rows=training).mean
        features = fitted.features.recentred(mean, clip=self.features.clip)
        net = deepcopy(fitted.net).requires_grad_()
        self.fitting.train(net, features, self.loss, bank, training=training, validation=validation, seed=seed)
        return FittedRecoNN(attack=self, features=features, net=net)

    def _gated_layer(self, bank: ShadowBank) -> Rows | None:
        """The layer whose rows a gated head adds up."""
        if self.head != "gated":
            return None
        layer = bank.first_layer()
        if layer is None or not all(isinstance(each, Conv | Activation) for each in layer.encoder):
            raise BadInput(
                '`head="gated"` needs a model of convolutions, if any, and fully connected layers: use `head="dense"`',
                code="unsupported-model",
                argument="head",
            )
        return layer


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FittedRecoNN:
    """A trained reconstructor: it attacks any model trained as the shadows were, from the same initial weights on the
    same fixed set."""

    attack: RecoNN
    features: FittedFeatures
    net: Reconstructor

    def run(self, release: KnowsFixed, *, seed: int) -> Reconstruction:
        require(release, KnowsFixed, by=type(self.attack).__name__)
        weights = stack_weights({name: p[None] for name, p in release.final.items()})
        return Reconstruction(x=self.reconstruct(weights))

    @torch.no_grad()
    def reconstruct(self, weights: Tensor) -> Tensor:
        """Records (models, *shape) from flat parameter vectors (models, parameters)."""
        found: Tensor = self.net(self.features(weights))
        return found
