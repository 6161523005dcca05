"""Training records from the stationary weights of a training with weight decay. Ours, after KKT.

Where the gradient of the loss balances the decay,  n wd theta = -sum_i sum_c (dl_i/dPhi_c) grad Phi_c(x_i)  for all
classes at once: the multipliers follow from the candidates but for one factor, 1/(n wd), which least squares gives. The
first layer then is a sum of training records: its rows span them, and its rank is their number.

At the boundary of a ReLU every derivative from 0 to 1 is a subgradient, and training does converge there: of 40 digits
in a net of 200 neurons for one pair of record and neuron in eight. So the derivative is a sigmoid that sharpens, with a
shift for each pair that can matter at the boundary alone. Without the shifts the truth explains the weights worse than
others do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import final

import torch
from torch import Tensor
from torch.func import vmap

from remanence.attacks.weights import residual
from remanence.attacks.weights.preprocessing import Preprocessing
from remanence.attacks.weights.row_space import RowSpace, likely_count
from remanence.engine import Surrogate, precision
from remanence.engine.decompositions import svd
from remanence.errors import BadInput, check_between, check_min
from remanence.releases import KnowsFinal, require
from remanence.releases.checks import check_outputs
from remanence.search import (
    LBFGS,
    ImagePrior,
    Search,
    Variable,
    Variables,
    checkpoint_path,
    minimise,
    total_variation,
)
from remanence.training import Adam, CrossEntropy, KnownLoss
from remanence.types import Reconstruction

_MAX_FRACTION = 0.9  # of a layer's directions, that are taken to hold the records
_SHIFT_LR = 0.05
_DAMPING = 0.7  # fraction of their updates that selected candidates take back


@final
@dataclass(frozen=True, kw_only=True)
class Powers:
    """Powers of their singular values by which layers are whitened: the first, and those between first and last."""

    first: float = 0.5  # of the first layer
    inner: float | None = None  # None: 1, with one output 0

    def __post_init__(self) -> None:
        check_min(self, first=0, inner=0)


@final
@dataclass(frozen=True, kw_only=True)
class ShiftedSurrogate:
    """sigmoid(beta a + shift) in place of ReLU's derivative, with a shift for each pair of record and neuron."""

    beta: tuple[float, float] = (2.0, 40.0)  # initial and final, over the typical pre-activation
    max_shift: float = 3.0  # in units of the sigmoid's width; 0: none

    def __post_init__(self) -> None:
        check_between(self, "beta", 0, inf, count=2)
        check_min(self, max_shift=0)


@final
@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Searches in turn: over more and more directions, then with the less plausible candidates re-initialised."""

    levels: int = 1  # of the first round: the directions of candidates grow from ten to all
    keep_fractions: tuple[float, ...] = ()  # of the candidates, that each further round keeps
    returned: int = 1  # restarts whose candidates are returned, those with the lowest objective

    def __post_init__(self) -> None:
        check_min(self, levels=1, returned=1)
        check_between(self, "keep_fractions", 0, 1)


@final
@dataclass(frozen=True, kw_only=True)
class Stationarity:
    """For MLPs. The learning rate is in units of pixels; the optimizer's eps is tiny, because at first
    gradients are, and only their direction counts. The defaults were chosen on true digits and CIFAR-10 images."""

    candidates: int | None = None  # None: the rank of the first layer, or thrice its directions above noise
    labels: tuple[int, ...] | None = None  # None: as many of each class
    loss: KnownLoss = CrossEntropy()  # that the model was trained with
    search: Search = Search(optimizer=Adam(lr=0.003, eps=1e-20), steps=3000, restarts=2)  # of each round and level
    init_std: float = 0.005  # of the initial candidates' pixels
    whitening: Powers = Powers()
    surrogate: ShiftedSurrogate = ShiftedSurrogate()
    prior: ImagePrior = ImagePrior(box=0.1)
    rounds: Rounds = Rounds()
    preprocessing: Preprocessing = Preprocessing()

    def __post_init__(self) -> None:
        check_min(self, candidates=1, labels=0, init_std=0)
        if isinstance(self.search.optimizer, LBFGS):
            problem = "`optimizer` of Stationarity's search must take single steps, got LBFGS: give Adam(lr=0.003)"
            raise BadInput(problem, code="wrong-type", argument="optimizer")

    def run(self, release: KnowsFinal, *, seed: int) -> Reconstruction:
        require(release, KnowsFinal, by=type(self).__name__)
        scaled = self.preprocessing.scale(release)
        layers = residual.layers_of(release.model, scaled, release.shape, relu_only=False)
        if layers is None or len(layers) < 2:
            why = residual.why_no_layers(release.model, release.shape, relu_only=False) or "the net has no hidden layer"
            problem = f"Stationarity cannot reconstruct from this `model`, use KKT: {why}"
            raise BadInput(problem, code="unsupported-model", argument="release")
        residual.check_layers(layers)
        outputs = len(layers[-1].weight)
        check_outputs(self.loss, outputs, release.num_classes)
        grey = self.preprocessing.grey(release, layers[0].weight)
        # with one output all records change inner layers in one direction, and the others are what training left
        inner = (1.0 if outputs > 1 else 0.0) if self.whitening.inner is None else self.whitening.inner
        count = self.candidates or likely_count(layers[0].weight)
        space = RowSpace.from_layers(layers, self.whitening.first, grey, max_rank=count, inner=inner)
        labels, tf32 = space.labels(self.candidates, self.labels, release.num_classes), self.search.tf32
        with precision(tf32=tf32):
            z, value = self._search(release, space.to_float32() if tf32 else space, labels, seed)
        x = self.preprocessing.records(release, space.records(z.to(space.basis))).clamp(*release.bounds)
        return Reconstruction(x=x, y=labels.repeat(len(x) // len(labels)), objective=value)

    def _search(self, release: KnowsFinal, space: RowSpace, labels: Tensor, seed: int) -> tuple[Tensor, float]:
        """Coordinates (candidates, directions) of the best restarts, and the lowest objective."""
        generator, checkpoint = torch.Generator().manual_seed(seed), self.search.checkpoints
        restarts, n = torch.arange(self.search.restarts), len(labels)
        z, std = space.basis.new_zeros(len(restarts), n, len(space.basis)), self.init_std * self._unit(release, space)
        shifts = [space.basis.new_zeros(len(restarts), n, len(layer.weight)) for layer in space.layers[:-1]]
        for k, keep in enumerate((0.0, *self.rounds.keep_fractions)):
            reset = torch.ones_like(z[..., :1], dtype=torch.bool)
            if keep:
                ranks = self._implausibility(space, z, shifts, labels).argsort(-1).argsort(-1)[..., None]
                reset = ranks >= keep * n
            noise = torch.randn(self.search.restarts, n, prod(release.shape), generator=generator)
            z = torch.where(reset, std * space.coordinates(noise.to(space.basis))[restarts], z)
            for level, part in enumerate(space.curriculum(1 if keep else self.rounds.levels)):
                directions = len(part.basis)
                shifts = [torch.where(reset, 0.0, shift) for shift in shifts]
                objective = self._objective(release, part, z[..., :directions], shifts, reset, labels)
                path = checkpoint_path(checkpoint, self, release, seed, k, level)
                found = minimise(objective, self.search, checkpoint=path, label="stationarity")
                index = found.restarts.to(z.device)
                restarts, reset = restarts[found.restarts], reset[index]
                z = torch.cat([found.variables["z"], z[index, :, directions:]], dim=-1)
                shifts = [found.variables[name] for name in objective.shift_names]
        best = found.value.argsort()[: self.rounds.returned]
        return z[best].flatten(0, 1), float(found.value.min())

    def _unit(self, release: KnowsFinal, space: RowSpace) -> float:
        return self.preprocessing.unit(release, space.basis)

    def _objective(
        self, release: KnowsFinal, space: RowSpace, z: Tensor, shifts: Sequence[Tensor], reset: Tensor, labels: Tensor
    ) -> "BalancedWeights":
        assert not isinstance(self.search.optimizer, LBFGS)
        return BalancedWeights(
            attack=self,
            release=release,
            stds=self.preprocessing.stds(release, z),
            space=space,
            labels=labels,
            lr=self.search.optimizer.lr * space.pixel * self._unit(release, space),
            second_half=(self.search.steps // 2) / self.search.steps,
            initial={"z": z} | {f"shift {k}": shift for k, shift in enumerate(shifts)},
            reset=reset,
            alpha=torch.zeros_like(z[..., :1]),
            shifted=~reset,
            tv=z.new_zeros(()),
            tempering=z.new_ones(()),
        )

    @torch.no_grad()
    def _implausibility(self, space: RowSpace, z: Tensor, shifts: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Implausibility of each candidate, shape (restarts, n), whatever the others are: the inputs of a layer and the
        errors that are backpropagated to one should lie in the rows and the columns of the layer's weights, as those of
        the true records do."""
        alpha = torch.full_like(z[..., :1], self.surrogate.beta[1] * space.beta_scale)
        bounded = [self.surrogate.max_shift * shift.tanh() for shift in shifts]
        activations = residual.forward(space.layers, z, alpha, bounded)
        deltas = residual.backward(space.layers, activations, -self.loss.grad_logits(activations.logits, labels))
        total, count = torch.zeros_like(z[..., 0]), len(labels)
        for index, layer in enumerate(space.layers[:-1]):
            bias = [] if layer.bias_target is None else [layer.bias_target[:, None]]
            total += _outside(deltas[index], torch.cat([layer.weight, *bias], 1), count).log()
            if index:
                total += _outside(activations.inputs[index], layer.weight.T, count).log()
        return total


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class BalancedWeights:
    """|weights - factor * gradient of the loss|^2 + prior with the best factor, over coordinates z (restarts, n,
    directions) of candidates and the shifts of their derivatives (restarts, n, neurons).

    Candidates that are not `reset` come from another search: their surrogate is sharp, and they move slowly.

    The multipliers of a record are its error by the logits, whose norm is tempered, from one for all records to what
    the loss says: while candidates are far from records, one that the model misclassifies has an error that is
    thousands of times larger than those of all others, and the search would stop there.
    """

    attack: Stationarity
    release: KnowsFinal
    stds: Tensor | None  # (pixels,), what the model divides pixels by
    space: RowSpace
    labels: Tensor
    lr: float
    second_half: float  # progress from which on all shifts are optimised: a wide surrogate needs none
    initial: Variables
    reset: Tensor  # (restarts, n, 1)
    alpha: Tensor  # beta in units of pre-activations, (restarts, n, 1); filled in place, as the next three
    shifted: Tensor  # whose shifts are optimised
    tv: Tensor  # weight of the total variation
    tempering: Tensor  # 0: all multipliers have one norm; 1: those of the loss
    capturable: bool = True

    @property
    def shift_names(self) -> list[str]:
        return [name for name in self.initial if name != "z"]

    def init(self) -> dict[str, Variable]:
        damping = None if bool(self.reset.all()) else torch.where(self.reset, 0.0, _DAMPING).to(self.initial["z"])
        shifts = {name: Variable(init=self.initial[name], lr=_SHIFT_LR, reset_at=0.5) for name in self.shift_names}
        return {"z": Variable(init=self.initial["z"], lr=self.lr, damping=damping)} | shifts

    def set_progress(self, progress: float) -> None:
        late = progress >= self.second_half
        beta = Surrogate(beta=self.attack.surrogate.beta).beta_at(progress)
        self.alpha.copy_(torch.where(self.reset, beta, self.attack.surrogate.beta[1]) * self.space.beta_scale)
        self.shifted.copy_(~self.reset | late)
        self.tempering.fill_(1.0 if late else progress / self.second_half)
        self.tv.fill_(self.attack.prior.total_variation if late else 0.0)  # before, it would outweigh all else

    def select(self, restarts: Tensor) -> "BalancedWeights":
        return replace(
            self,
            initial={name: value[restarts] for name, value in self.initial.items()},
            reset=self.reset[restarts],
            alpha=self.alpha[restarts],
            shifted=self.shifted[restarts],
        )

    def value_and_grad(self, v: Variables) -> tuple[Tensor, Variables]:
        layers, z, shifts = self.space.layers, v["z"], [v[name].tanh() for name in self.shift_names]
        reach = self.attack.surrogate.max_shift
        activations = residual.forward(layers, z, self.alpha, [reach * shift for shift in shifts])
        errors = -self.attack.loss.grad_logits(activations.logits, self.labels)
        # a smaller floor would overflow below, where gradients are divided by the norms
        norms = errors.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(errors.dtype).tiny ** 0.5)
        unit, power = errors / norms, self.tempering
        left, factor = residual.fit_scale(layers, residual.unexplained(layers, activations, norms**power * unit))
        grad_deltas = residual.grad_deltas(layers, activations, left)
        direction = factor[:, None, None] * norms ** (power - 1) * grad_deltas[-1]
        direction = direction + (power - 1) * unit * (unit * direction).sum(-1, keepdim=True)
        grad_logits = -self.attack.loss.hvp_logits(activations.logits, self.labels, direction)
        flat = self.space.records(z).flatten(0, 1)
        x = self.attack.preprocessing.records(self.release, flat).unflatten(0, z.shape[:2])
        penalty, grad_x = self._prior(x)
        grad_inputs = grad_x.flatten(2) if self.stds is None else grad_x.flatten(2) * self.stds
        grad_z = grad_inputs @ self.space.basis.T
        residual.grad_inputs(layers, activations, left, grad_deltas, grad_logits=grad_logits, out=grad_z)
        grads = {"z": grad_z}
        if reach:
            grad_shifts = residual.grad_shifts(layers, activations, left, grad_deltas)
            for name, grad, shift in zip(self.shift_names, grad_shifts, shifts, strict=True):
                if grad is not None:
                    grads[name] = grad * reach * (1 - shift.square()) * self.shifted
        return left.objective + penalty, grads

    def _prior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The penalty of candidates (restarts, n, ...) that are no images, for each restart, and its gradient."""
        outside, weight = x - x.clamp(*self.release.bounds), self.attack.prior.box / x.shape[1]
        value, grad = weight * outside.square().flatten(1).sum(1), 2 * weight * outside
        if not self.attack.prior.total_variation or x.ndim < 5:  # rows of a table have no neighbours
            return value, grad
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            rough = self.tv * vmap(total_variation)(leaf)
            (grad_rough,) = torch.autograd.grad(rough.sum(), leaf)
        return value + rough.detach(), grad + grad_rough


def _outside(rows: Tensor, weight: Tensor, rank: int) -> Tensor:
    """The fraction of each row's norm outside the leading columns of a weight."""
    left = svd(weight)[0][:, : min(rank, int(_MAX_FRACTION * len(weight)))]
    remaining = (rows - rows @ left @ left.mT).square().sum(-1)
    return (remaining / rows.square().sum(-1).clamp_min(torch.finfo(rows.dtype).tiny)).sqrt()
