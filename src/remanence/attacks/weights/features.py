"""Training images from the stationary weights of a convolutional network. Ours, after Stationarity.

The fully connected layers after the convolutions are an MLP on features, and where training with weight decay has
converged  n wd theta = -sum_i grad l_i  holds of them: the rows of the first span the features of the records. The
convolutions are released too. So candidates are images, their features follow, and two conditions are met at once: the
features explain the weights of all fully connected layers, and lie in the span of the first one's rows.

The kernels of the convolutions are left alone: they hold few numbers, each a sum over records and positions, and other
images explain them as well (docs/methods/conv-stationarity.md).
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import linear

from remanence.attacks.weights import residual
from remanence.attacks.weights.row_space import RowSpace, likely_count
from remanence.bounds import centre, sample_about_centre, width
from remanence.engine import Surrogate
from remanence.errors import BadInput, check_between, check_min
from remanence.models import MLP, Backbone, parse
from remanence.releases import KnowsFinal, require
from remanence.releases.checks import check_outputs
from remanence.releases.heads import SplitRelease, split_release
from remanence.search import (
    LBFGS,
    Search,
    TotalVariation,
    Variable,
    Variables,
    checkpoint_path,
    minimise,
    total_variation,
)
from remanence.training import Adam, CrossEntropy, KnownLoss
from remanence.types import Reconstruction

_SHIFT_LR = 0.05
_MAX_SHIFT = 3.0  # in units of the width of the surrogate's sigmoid
_MIN_FACTOR = 1e-6  # of the multipliers: at zero every gradient would be zero


@final
@dataclass(frozen=True, kw_only=True)
class ConvStationarity:
    """For CNNs with two or more fully connected layers and ReLU between them, of which the first takes features.

    The defaults were chosen on true digits.
    """

    candidates: int | None = None  # None: rank of the first linear layer, or thrice its directions above noise
    labels: tuple[int, ...] | None = None  # None: as many of each class
    loss: KnownLoss = CrossEntropy()  # that the model was trained with
    search: Search = Search(optimizer=Adam(lr=0.03, eps=1e-20), steps=4000, restarts=4)  # over pixels
    init_std: float = 0.3  # of the initial candidates' pixels
    whitening: float = 0.5  # power of the singular values of the first fully connected layer
    span: float = 30.0  # weight of what features have outside the span of that layer's rows
    beta: tuple[float, float] = (2.0, 40.0)  # of the surrogate derivative, over the typical pre-activation
    prior: TotalVariation = TotalVariation(weight=0.0)  # in the second half of the search

    def __post_init__(self) -> None:
        check_min(self, candidates=1, labels=0, init_std=0, whitening=0, span=0)
        check_between(self, "beta", 0, torch.inf, count=2)
        if isinstance(self.search.optimizer, LBFGS):
            problem = "`optimizer` of ConvStationarity's search must take single steps, got LBFGS: give Adam(lr=0.03)"
            raise BadInput(problem, code="wrong-type", argument="optimizer")

    def run(self, release: KnowsFinal, *, seed: int) -> Reconstruction:
        require(release, KnowsFinal, by=type(self).__name__)
        problem, generator = self._problem(release), torch.Generator().manual_seed(seed)
        shape = self.search.restarts, len(problem.labels), *release.shape
        x = sample_about_centre(*shape, bounds=release.bounds, std=self.init_std, generator=generator)
        objective = replace(problem, initial=x.to(problem.initial))
        path = checkpoint_path(self.search.checkpoints, self, release, seed)
        solution = minimise(objective, self.search, checkpoint=path, label="images")
        found, index = solution.best()
        return Reconstruction(x=found["x"], y=problem.labels, objective=float(solution.value[index]))

    def objective(self, release: KnowsFinal, x: Tensor) -> "ExplainedHead":
        """What `run` minimises, with these initial images (restarts, n, *shape) of the classes of `labels`: an owner
        can see what the true images leave unexplained."""
        return replace(self._problem(release), initial=x)

    def _problem(self, release: KnowsFinal) -> "ExplainedHead":
        """The objective without initial images."""
        parts = self._split(release)
        layers = residual.layers_of(parts.head.model, parts.head.final, parts.head.shape)
        assert layers is not None
        like, outputs = layers[0].weight, len(layers[-1].weight)
        check_outputs(self.loss, outputs, release.num_classes)
        grey = parts.backbone(like.new_full((1, *release.shape), centre(release.bounds)))[0]
        count = self.candidates or likely_count(like)
        space = RowSpace.from_layers(layers, self.whitening, grey, max_rank=count, inner=float(outputs > 1))
        labels = space.labels(self.candidates, self.labels, release.num_classes)
        return ExplainedHead(
            attack=self,
            release=release,
            backbone=parts.backbone,
            space=space,
            labels=labels,
            initial=like.new_zeros(0, len(labels), *release.shape),
            beta=like.new_zeros(()),
            late=like.new_zeros(()),
        )

    def _split(self, release: KnowsFinal) -> SplitRelease:
        """The convolutions and the head; refused where the head is no MLP with ReLU and a hidden layer."""
        if isinstance(parse(release.model, release.shape), MLP):
            raise _unsupported("the net has no convolutions, use Stationarity")
        parts = split_release(release)
        head = parse(parts.head.model, parts.head.shape)
        if isinstance(head, MLP) and len(head.layers) == 1:
            classes, features = head.layers[0].out_features, head.layers[0].in_features
            raise _unsupported(
                f"after its convolutions the net has one linear layer, whose weights are {classes} combinations of the "
                f"records' {features} features (rank at most {classes}): one for each class, which do not tell the "
                "records of a class apart"
            )
        if why := residual.why_no_layers(parts.head.model, parts.head.shape):
            raise _unsupported(f"from its first fully connected layer on {why}: use KKT")
        return parts


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ExplainedHead:
    """What the features of candidates x (restarts, n, *shape) leave unexplained of the weights of the fully connected
    layers, with the best factor of all multipliers, and of the span of the first layer's rows; over pixels, and over
    shifts (restarts, n, neurons) of the derivatives at the boundary of each ReLU."""

    attack: ConvStationarity
    release: KnowsFinal
    backbone: Backbone
    space: RowSpace
    labels: Tensor
    initial: Tensor
    beta: Tensor  # in units of pre-activations; filled in place, as the next
    late: Tensor  # 1 in the second half of the search, where there are shifts and the prior
    capturable: bool = False  # any network may be a backbone

    def init(self) -> dict[str, Variable]:
        inner = self.space.layers[:-1]
        zeros = [self.initial.new_zeros(*self.initial.shape[:2], len(layer.weight)) for layer in inner]
        shifts = {f"shift {k}": Variable(init=each, lr=_SHIFT_LR, reset_at=0.5) for k, each in enumerate(zeros)}
        return {"x": Variable(init=self.initial, bounds=self.release.bounds, multiscale=True)} | shifts

    def set_progress(self, progress: float) -> None:
        self.beta.fill_(Surrogate(beta=self.attack.beta).beta_at(progress) * self.space.beta_scale)
        self.late.fill_(float(progress >= 0.5))

    def select(self, restarts: Tensor) -> "ExplainedHead":
        return replace(self, initial=self.initial[restarts])

    def value_and_grad(self, v: Variables) -> tuple[Tensor, Variables]:
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in v.items()}
            value = self.value(leaves)
            grads = torch.autograd.grad(value.sum(), list(leaves.values()))
        return value.detach(), dict(zip(leaves, grads, strict=True))

    def value(self, v: Variables) -> Tensor:
        """The objective of each restart, through which autograd goes."""
        layers, x = self.space.layers, v["x"]
        features = self.backbone(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        z, outside = coordinates(self.space, features)
        inputs, derivatives = [z], list[Tensor]()
        for k, (layer, _) in enumerate(pairwise(layers)):
            out = linear(inputs[-1], layer.weight, layer.bias)
            derivatives.append((self.beta * out + self.late * _MAX_SHIFT * v[f"shift {k}"].tanh()).sigmoid())
            inputs.append(out.relu())
        logits = linear(inputs[-1], layers[-1].weight, layers[-1].bias)
        deltas = [-self.attack.loss.grad_logits(logits, self.labels)]
        for layer, derivative in zip(reversed(layers[1:]), reversed(derivatives), strict=True):
            deltas.insert(0, deltas[0] @ layer.weight * derivative)
        value = unexplained(self.space, inputs, deltas, outside, span=self.attack.span)
        if self.attack.prior.weight:
            value = value + self.late * self.attack.prior.weight * vmap(total_variation)(x) / width(self.release.bounds)
        return value


def coordinates(space: RowSpace, features: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates of features (..., width) in the span of the first layer's rows, and what is outside of it."""
    inside = features if space.centre is None else features - space.centre
    z = inside @ (space.basis / space.basis.square().sum(1, keepdim=True)).T  # rows are orthogonal
    return z, inside - z @ space.basis


def unexplained(space: RowSpace, inputs: list[Tensor], deltas: list[Tensor], outside: Tensor, *, span: float) -> Tensor:
    """The squared residuals (restarts,) of all layers, each over its scale, with the best factor of all multipliers.

    What is `outside` the span of the rows would be explained too, as weights that the first layer does not have. They
    are as heavy as its weakest direction, times `span`.
    """
    first, zero = space.layers[0], deltas[0].new_zeros(len(deltas[0]))
    product, square, total = zero, zero, zero
    for layer, delta, into in zip(space.layers, deltas, inputs, strict=True):
        pairs = [(layer.target, layer.whiten_deltas(delta).mT @ layer.whiten_inputs(into), layer.scale)]
        if layer.bias_target is not None:
            pairs.append((layer.bias_target[None], delta.sum(1, keepdim=True), layer.bias_scale))
        for target, explained, scale in pairs:
            product = product + (target * explained).sum((1, 2)) / scale
            square = square + explained.square().sum((1, 2)) / scale
            total = total + target.square().sum() / scale
    weakest = first.scale * float(space.basis.square().sum(1).min())
    beyond = ((deltas[0] @ deltas[0].mT) * (outside @ outside.mT)).sum((1, 2))  # |deltas' outside|^2
    square = square + span / weakest * beyond
    factor = (product / square.clamp_min(torch.finfo(square.dtype).tiny)).clamp_min(_MIN_FACTOR)
    return total - 2 * factor * product + factor.square() * square


def _unsupported(why: str) -> BadInput:
    problem = f"ConvStationarity cannot reconstruct from this `model`: {why}"
    return BadInput(problem, code="unsupported-model", argument="release")
