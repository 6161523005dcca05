"""Images from embeddings: a decoder that is learnt on public images, then a search for the image with the embedding.

The decoder is that of Dosovitskiy and Brox, "Inverting Visual Representations with Convolutional Networks" (CVPR 2016):
transposed convolutions, trained on pairs of an embedding and its image. The search is that of Mahendran and Vedaldi,
"Understanding Deep Image Representations by Inverting Them" (CVPR 2015): an image whose embedding matches, with a small
total variation; it starts from the decoder's image. As RecoNN's reconstructor is fitted on shadow
models, the decoder is fitted on public images, and knows nothing of the private ones.
"""

from dataclasses import dataclass, replace
from math import ceil, cos, pi
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from remanence.attacks.one_unknown.losses import ImageLoss
from remanence.attacks.one_unknown.network import materialise
from remanence.engine.cuda import precision, set_lr, torch_optimizer, update
from remanence.errors import BadInput, Diverged, check_min
from remanence.models import Backbone, initial_params, transposed_cnn
from remanence.progress import track
from remanence.search import Adam, Search, TotalVariation, Variable, Variables, minimise
from remanence.seeds import derive_seed
from remanence.training import Optimizer
from remanence.types import Data

_MIN_STD = 0.1  # of a feature over that of all: an error in one that is nearly constant must not count for much
_LIMIT = 10.0  # of standardised features
_AT_ONCE = 256  # images


@final
@dataclass(frozen=True, kw_only=True)
class DecoderFitting:
    """The decoder from embeddings to images, and its training on public images."""

    width: int = 64  # channels at the sides of the image; each halving of the sides doubles them
    loss: ImageLoss = ImageLoss()
    consistency: float = 0.1  # weight of the distance between the embeddings of the decoded image and its target
    noise: float = 0.1  # std of noise on the embeddings over that of each feature: reconstructed ones are not exact
    optimizer: Optimizer = Adam(lr=1e-3)
    epochs: int = 30
    batch_size: int = 256
    tf32: bool = True  # on a CUDA device

    def __post_init__(self) -> None:
        check_min(self, width=1, consistency=0, noise=0, epochs=1, batch_size=1)


@final
@dataclass(frozen=True, kw_only=True)
class EmbeddingInversion:
    """A decoder, and a search that starts from its images; `fit` trains the decoder on public images.

    The defaults of search and prior were chosen on 12 public CIFAR-10 images by AlexNet. Without coarser scales, with
    little total variation the search finds embeddings that match better, and images that match worse.
    """

    decoder: DecoderFitting = DecoderFitting()
    search: Search = Search(optimizer=Adam(lr=0.005), steps=300, scales=3, tf32=True)  # over pixels
    prior: TotalVariation = TotalVariation(weight=3.0)  # of photographs; small images of few strokes need less
    anchor: float = 0.0  # weight of the mean squared difference from the decoder's image

    def __post_init__(self) -> None:
        check_min(self, anchor=0)
        if self.search.restarts != 1:
            message = (
                f"`search` of EmbeddingInversion starts from the decoder's images alone, got {self.search.restarts} "
                "restarts: give 1"
            )
            raise BadInput(message, code="conflict", argument="search")

    def fit(self, backbone: Backbone, public: Data, *, seed: int) -> "FittedInversion":
        """Train the decoder on the device of the backbone, on public images and their embeddings."""
        if tuple(public.shape) != backbone.shape:
            message = f"`public` must hold images {backbone.shape} of the backbone, got {public.shape}: resize them"
            raise BadInput(message, code="shape-mismatch", argument="public")
        if len(public) < 2:
            message = f"`public` must hold two images or more to learn a decoder from, got {len(public)}"
            raise BadInput(message, code="too-few", argument="public")
        like = next(filter(Tensor.is_floating_point, backbone.params.values()), public.x)
        x = public.x.to(like)
        embeddings = backbone.embed(x)
        features = Features.from_embeddings(embeddings)
        net = transposed_cnn(embeddings.shape[1], backbone.shape, width=self.decoder.width)
        materialise(net, initial_params(net, seed=derive_seed(seed, "decoder")), like)
        fitted = FittedInversion(attack=self, backbone=backbone, features=features, net=net)
        with precision(tf32=self.decoder.tf32):
            _train(fitted, self.decoder, x, embeddings, seed)
        return fitted


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """The mean and standard deviation (width,) of public embeddings, by which they enter the decoder."""

    mean: Tensor
    std: Tensor

    @classmethod
    def from_embeddings(cls, embeddings: Tensor) -> "Features":
        std = embeddings.std(0)
        return cls(mean=embeddings.mean(0), std=std.clamp_min(_MIN_STD * float(std.square().mean().sqrt()) or 1.0))

    def __call__(self, embeddings: Tensor) -> Tensor:
        return ((embeddings - self.mean) / self.std).clamp(-_LIMIT, _LIMIT)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FittedInversion:
    """A trained decoder of the embeddings of one backbone, and the search that follows it."""

    attack: EmbeddingInversion
    backbone: Backbone
    features: Features
    net: nn.Module

    @torch.no_grad()
    def decode(self, embeddings: Tensor) -> Tensor:
        """Images (n, *shape) in [0, 1] by the decoder alone."""
        self._check(embeddings)
        some = [self.decoded(part.to(self.features.mean)).to(embeddings) for part in embeddings.split(_AT_ONCE)]
        return torch.cat(some)

    def images(self, embeddings: Tensor) -> Tensor:
        """Images (n, *shape) in [0, 1] whose embeddings are these, by the search from the decoder's images."""
        self._check(embeddings)
        found = []
        for part in embeddings.split(_AT_ONCE):
            target = part.to(self.features.mean)
            objective = MatchedEmbeddings(inversion=self, target=target, initial=self.decode(target)[None])
            solution = minimise(objective, self.attack.search, label="images from embeddings")
            found.append(solution.best()[0]["x"].to(embeddings))
        return torch.cat(found)

    def decoded(self, embeddings: Tensor) -> Tensor:
        """Images by the decoder, through which autograd goes."""
        logits: Tensor = self.net(self.features(embeddings))
        return logits.sigmoid()

    def _check(self, embeddings: Tensor) -> None:
        expected = len(self.features.mean)
        if embeddings.ndim != 2 or embeddings.shape[1] != expected or not len(embeddings):
            message = f"`embeddings` must be (n, {expected}) with one row or more, got {tuple(embeddings.shape)}"
            raise BadInput(message, code="shape-mismatch", argument="embeddings")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class MatchedEmbeddings:
    """The mismatch of embeddings + prior + anchor, over images x (restarts, n, *shape)."""

    inversion: FittedInversion
    target: Tensor  # embeddings (n, width)
    initial: Tensor  # images of the decoder (restarts, n, *shape)
    capturable: bool = False  # any network may be a backbone

    def init(self) -> dict[str, Variable]:
        return {"x": Variable(init=self.initial, bounds=(0.0, 1.0), multiscale=True)}

    def set_progress(self, progress: float) -> None:
        """Nothing depends on it."""

    def select(self, restarts: Tensor) -> "MatchedEmbeddings":
        return replace(self, initial=self.initial[restarts])

    def value_and_grad(self, v: Variables) -> tuple[Tensor, Variables]:
        attack, backbone = self.inversion.attack, self.inversion.backbone
        with torch.enable_grad():
            x = v["x"].detach().requires_grad_()
            found = backbone(x.flatten(0, 1)).unflatten(0, x.shape[:2])
            rough = torch.stack([attack.prior(each) for each in x])
            away = (x - self.initial).square().flatten(1).mean(1)
            value = mismatch(found, self.target).mean(1) + rough + attack.anchor * away
            (grad,) = torch.autograd.grad(value.sum(), x)
        return value.detach(), {"x": grad}


def mismatch(found: Tensor, target: Tensor) -> Tensor:
    """1 - cosine, and the squared distance over the squared norm of the target, of embeddings (..., width)."""
    floor = torch.finfo(target.dtype).tiny
    squared = (found - target).square().sum(-1) / target.square().sum(-1).clamp_min(floor)
    return 1 - cosine_similarity(found, target, dim=-1) + squared


def _train(fitted: FittedInversion, settings: DecoderFitting, x: Tensor, embeddings: Tensor, seed: int) -> None:
    """Train the decoder in place by mini-batches, with a learning rate that is annealed to zero by half a cosine."""
    criterion, params = settings.loss.load(x), list(fitted.net.parameters())
    optimizer = torch_optimizer(settings.optimizer, params)
    order = torch.Generator().manual_seed(derive_seed(seed, "batches"))
    noise = torch.Generator(x.device).manual_seed(derive_seed(seed, "noise"))
    size = min(settings.batch_size, len(x))
    steps = settings.epochs * ceil(len(x) / size)
    done = 0
    for _ in track(range(settings.epochs), total=settings.epochs, label="decoder of embeddings"):
        for batch in torch.randperm(len(x), generator=order).to(x.device).split(size):
            set_lr(optimizer, settings.optimizer.lr * (1 + cos(pi * done / steps)) / 2)
            target, exact = x[batch], embeddings[batch]
            disturbed = exact
            if settings.noise:
                std = settings.noise * fitted.features.std
                disturbed = exact + std * torch.randn(exact.shape, generator=noise, device=x.device, dtype=x.dtype)
            image = fitted.decoded(disturbed)
            loss = criterion(image, target)
            if settings.consistency:
                loss = loss + settings.consistency * mismatch(fitted.backbone(image), exact).mean()
            update(optimizer, loss)
            done += 1
    if not all(bool(p.isfinite().all()) for p in params):
        message = f"the decoder diverged with {settings.optimizer}: lower its learning rate"
        raise Diverged(message, code="diverged", argument="optimizer")
    for p in params:
        p.grad = None
        p.requires_grad_(False)
