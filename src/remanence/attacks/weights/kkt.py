"""Training images from trained weights alone, by the conditions that training converges to.

Buzaglo, Haim, Yehudai, Vardi, Oz, Nikankin, Irani, "Deconstructing Data Reconstruction: Multiclass, Weight Decay and
General Losses" (NeurIPS 2023), after Haim et al., "Reconstructing Training Data from Trained Neural Networks" (NeurIPS
2022). A homogeneous net trained to zero error tends to a KKT point of its margin problem, where the weights are a sum
of gradients at training records on the margin; candidates and multipliers are optimised until they are one.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.functional import softshrink

from remanence.attacks.weights import residual
from remanence.attacks.weights.preprocessing import Preprocessing
from remanence.attacks.weights.residual_autograd import SurrogateReLU, value_and_grads
from remanence.bounds import clamp, is_finite, width
from remanence.engine import elementwise
from remanence.errors import BadInput, check_min
from remanence.models import apply, replace_relu
from remanence.releases import KnowsFinal, require
from remanence.search import LBFGS, SGD, Constant, Search, Variable, Variables, balanced, checkpoint_path, minimise
from remanence.types import Params, Reconstruction, float_like

Multipliers: TypeAlias = Literal["penalised", "squared", "projected"]
_PENALTY = 5.0  # on multipliers below the minimum
_PROJECTIONS = 20  # steps of the multipliers in each step of the candidates


@final
@dataclass(frozen=True, kw_only=True)
class KKTRun:
    """The hyper-parameters of one run. The defaults are the authors' second published multiclass run on CIFAR-10."""

    lr: float = 1.36235e-3  # of the candidates
    multiplier_lr: float = 0.479332  # of the multipliers
    min_multiplier: float = 0.203209  # below it multipliers are penalised
    alpha: float = 39.5174  # of the surrogate: sigmoid(alpha a) in place of ReLU's derivative
    init_std: float = 6.2277e-5  # of the initial candidates

    def __post_init__(self) -> None:
        check_min(self, lr=0, multiplier_lr=0, alpha=0, init_std=0)


@final
@dataclass(frozen=True, kw_only=True)
class KKT:
    """Runs with different hyper-parameters are restarts of one search; the one with the lowest objective is returned.

    With several outputs a record's margin is to its closest competitor, with one output y times the output.
    """

    candidates: int = 1000  # the authors: twice as many as records
    runs: tuple[KKTRun, ...] = (KKTRun(),)  # their learning rates are in units of the optimizer's
    search: Search = Search(optimizer=SGD(lr=1.0, momentum=0.9), steps=50_000, schedule=Constant())
    multipliers: Multipliers = "penalised"  # or "squared"; "projected" (ours): by least squares at every step
    signed: bool = False  # one output: the margin is the output, multipliers have either sign (regression)
    preprocessing: Preprocessing = Preprocessing()

    def __post_init__(self) -> None:
        check_min(self, candidates=1)
        if self.multipliers not in ("penalised", "squared", "projected"):
            message = f"`multipliers` of KKT must be penalised, squared or projected, got {self.multipliers!r}"
            raise BadInput(message, code="unknown-name", argument="multipliers")
        if not self.runs:
            raise BadInput("`runs` of KKT must hold one or more, got none", code="empty", argument="runs")

    @classmethod
    def paper(cls, *, candidates: int = 1000, runs: tuple[KKTRun, ...] = (KKTRun(),)) -> "KKT":
        """The authors' code: 50,000 steps of SGD with momentum, multipliers penalised below their minimum. Their paper
        writes "squared" multipliers, a² + minimum."""
        return cls(candidates=candidates, runs=runs)

    def run(self, release: KnowsFinal, *, seed: int) -> Reconstruction:
        require(release, KnowsFinal, by=type(self).__name__)
        objective = ExplainedWeights.from_release(self, release, seed=seed)
        checkpoint = checkpoint_path(self.search.checkpoints, self, release, seed)
        found = minimise(objective, self.search, checkpoint=checkpoint, label="KKT conditions")
        best, index = found.best()
        x = self.images(release, best["x"])
        return Reconstruction(x=x, y=objective.labels, objective=float(found.value[index]))

    def images(self, release: KnowsFinal, x: Tensor) -> Tensor:
        """Candidates (n, pixels) as the paper scores them, (n, *shape): with the mean, each rescaled to the box of the
        records; rows of a table, whose values have no common scale, and images in a box without sides are clamped."""
        x = self.preprocessing.records(release, x.to(float_like(release.final)))
        if x.ndim == 2 or not is_finite(release.bounds):
            return clamp(x, release.bounds)
        low, high = (v.view(-1, *[1] * (x.ndim - 1)) for v in torch.aminmax(x.flatten(1), dim=1))
        unit = (x - low) / (high - low).clamp_min(torch.finfo(x.dtype).tiny)
        return release.bounds[0] + width(release.bounds) * unit


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ExplainedWeights:
    """|weights - sum of multiplied gradients|^2 + |x outside [-1, 1]|^2, over candidates x (runs, n, pixels) as the
    first layer takes them, normalised, and multipliers (runs, n); in closed form for an MLP with ReLU. For records in
    another box than [0, 1] it is x outside of plus or minus its width, for one without sides nothing."""

    attack: KKT
    release: KnowsFinal
    runs: tuple[KKTRun, ...]  # that remain, of all restarts
    final: Params
    layers: tuple[residual.Layer, ...] | None  # None: by autograd, with these models
    surrogates: dict[float, nn.Module]  # by alpha
    labels: Tensor
    initial: Variables
    alpha: Tensor  # (runs, 1, 1)
    minimum: Tensor  # of the multipliers, (runs, 1)
    stds: Tensor | None  # (pixels,), what the model divides pixels by
    capturable: bool = True

    @classmethod
    def from_release(cls, attack: KKT, release: KnowsFinal, *, seed: int) -> "ExplainedWeights":
        generator, like = torch.Generator().manual_seed(seed), float_like(release.final)
        like, runs = like.float() if attack.search.tf32 else like, attack.runs * attack.search.restarts
        stack = (len(runs), attack.candidates)
        stds = torch.tensor([run.init_std for run in runs])[:, None, None]
        x = stds * torch.randn(*stack, prod(release.shape), generator=generator)
        multipliers = (torch.randn if attack.signed else torch.rand)(*stack, generator=generator)
        final = {name: p.to(like) for name, p in attack.preprocessing.scale(release).items()}
        layers = residual.layers_of(release.model, final, release.shape)
        if attack.multipliers == "projected" and layers is None:
            why = residual.why_no_layers(release.model, release.shape)
            problem = f'"projected" `multipliers` need the closed form of an MLP with ReLU: {why}'
            raise BadInput(problem, code="unsupported-model", argument="multipliers")
        alphas = set() if layers else {run.alpha for run in runs}
        return cls(
            attack=attack,
            release=release,
            runs=runs,
            final=final,
            layers=layers,
            surrogates={alpha: replace_relu(release.model, SurrogateReLU(alpha)) for alpha in alphas},
            labels=balanced(attack.candidates, release.num_classes).to(like.device),
            initial={"x": x.to(like), "multipliers": multipliers.to(like)},
            alpha=like.new_tensor([run.alpha for run in runs])[:, None, None],
            minimum=like.new_tensor([run.min_multiplier for run in runs])[:, None],
            stds=Preprocessing().stds(release, like),
        )

    def init(self) -> dict[str, Variable]:
        x, multipliers = self.initial["x"], self.initial["multipliers"]
        optimizer = self.attack.search.optimizer
        unit = 1.0 if isinstance(optimizer, LBFGS) else optimizer.lr
        lrs = torch.tensor([[run.lr, run.multiplier_lr] for run in self.runs], dtype=torch.float64) * unit
        return {"x": Variable(init=x, lr=lrs[:, 0]), "multipliers": Variable(init=multipliers, lr=lrs[:, 1])}

    def set_progress(self, progress: float) -> None:
        pass

    def select(self, restarts: Tensor) -> "ExplainedWeights":
        runs = tuple(self.runs[index] for index in restarts.tolist())
        initial = {name: value[restarts] for name, value in self.initial.items()}
        return replace(self, runs=runs, initial=initial, alpha=self.alpha[restarts], minimum=self.minimum[restarts])

    def value_and_grad(self, v: Variables) -> tuple[Tensor, Variables]:
        x, free = v["x"], v["multipliers"]
        multipliers = free.square() + self.minimum if self.attack.multipliers == "squared" else free
        explained = self._by_autograd if self.layers is None else self._in_closed_form
        value, grad_x, grad_multipliers = explained(x, multipliers)
        if is_finite(self.release.bounds) and self.stds is None and elementwise.applies(x, grad_x):
            value += elementwise.add_outside(x, grad_x, width(self.release.bounds))
        elif is_finite(self.release.bounds):
            outside = softshrink(self._pixels(x), width(self.release.bounds))
            residual.add_squares(value, outside)
            grad_x.add_(self._pixels(outside), alpha=2)
        if self.attack.multipliers == "projected":
            return value, {"x": grad_x}
        if self.attack.multipliers == "squared":
            grad_multipliers.mul_(free).mul_(2)
        elif not self.attack.signed:
            short = (self.minimum - free).relu_()
            grad_multipliers.sub_(short, alpha=2 * _PENALTY)
            residual.add_squares(value, short[..., None], _PENALTY)
        return value, {"x": grad_x, "multipliers": grad_multipliers}

    def _pixels(self, x: Tensor) -> Tensor:
        """Differences of candidates (..., pixels), as the first layer takes them, in units of pixels; or gradients by
        pixels as gradients by candidates."""
        return x if self.stds is None else x * self.stds

    def _in_closed_form(self, x: Tensor, multipliers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert self.layers is not None
        activations = residual.forward(self.layers, x, self.alpha)
        signs = self._signs(activations.logits)
        if self.attack.multipliers == "projected":
            deltas = residual.backward(self.layers, activations, signs)
            self._project(multipliers, *residual.gram(self.layers, activations, deltas))
        left = residual.unexplained(self.layers, activations, signs * multipliers[..., None])
        grad_deltas = residual.grad_deltas(self.layers, activations, left)
        grad_x = residual.grad_inputs(self.layers, activations, left, grad_deltas)
        return left.objective, grad_x, (grad_deltas[-1] * signs).sum(-1)

    def _project(self, multipliers: Tensor, gram: Tensor, target: Tensor) -> None:
        """Some steps in place of Nesterov's method down  l' gram l - 2 target' l,  from where the last ones ended."""
        lr = 1 / gram.abs().sum(-1).amax(-1, keepdim=True).clamp_min(torch.finfo(gram.dtype).tiny)
        ahead = multipliers
        for step in range(_PROJECTIONS):
            new = ahead + lr * (target - (gram @ ahead[..., None])[..., 0])
            new = new if self.attack.signed else torch.maximum(new, self.minimum)
            ahead = new + step / (step + 3) * (new - multipliers)
            multipliers.copy_(new)

    def _by_autograd(self, x: Tensor, multipliers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = []
        for run, candidates, factors in zip(self.runs, x, multipliers, strict=True):
            records = Preprocessing().records(self.release, candidates)
            signs = self._signs(apply(self.release.model, self.final, records))
            surrogate, top = self.surrogates[run.alpha], signs * factors[:, None]
            value, grad_x, grad_top = value_and_grads(surrogate, self.final, records, top)
            found.append((value, self._pixels(grad_x.flatten(1)), (grad_top * signs).sum(-1)))
        values, grads_x, grads_multipliers = (torch.stack(parts) for parts in zip(*found, strict=True))
        return values, grads_x, grads_multipliers

    def _signs(self, logits: Tensor) -> Tensor:
        """Over the number of candidates, as in the authors' code: their rates and minimal multipliers are meant so."""
        return residual.margin_signs(logits, self.labels, signed=self.attack.signed) / len(self.labels)
