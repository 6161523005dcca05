"""Training records from the weights in which training with weight decay comes to rest. Ours, after KKT.

Where the loss pulls as hard as the decay,  n wd theta = -sum_i sum_c (dl_i/dPhi_c) grad Phi_c(x_i)  for all classes at
once: the multipliers follow from the candidates but for one number, 1/(n wd), which least squares gives. The first
layer then is a sum of training records: its rows span them, and its rank is their number.

At a kink of ReLU every slope from 0 to 1 is a gradient, and training does rest there: of 40 digits in a net of 200
neurons one pair of record and neuron in eight. So the slope is a sigmoid that grows steep, with a shift of its own for
each pair that can matter at a kink alone. Without the shifts the truth explains the weights worse than others do.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import cos, inf, pi, prod
from typing import final

import torch
from torch import Tensor, nn
from torch.func import vmap

from remanence.attacks._reasons import why_no_mlp
from remanence.attacks.weights import residual
from remanence.attacks.weights.row_space import RowSpace
from remanence.engine.cuda import changed_by, precision, replayed, set_lr, torch_optimizer
from remanence.engine.surrogate import Surrogate
from remanence.errors import BadInput, Diverged, check_above, check_between, check_min
from remanence.progress import track
from remanence.releases import KnowsFinal, require
from remanence.releases.checks import check_outputs
from remanence.search.labels import balanced, given
from remanence.search.priors import total_variation
from remanence.training import Adam, CrossEntropy, KnownLoss
from remanence.types import Reconstruction

_MOST = 0.9  # of a layer's directions, that are said to hold the records
_SHIFT_LR = 0.05
_SLOWLY = 0.3  # candidates that are kept move by so much of what the others do
_EPS = 1e-20  # of Adam: at the start the slopes are tiny, and only their direction counts


@final
@dataclass(frozen=True, kw_only=True)
class Stationarity:
    """For MLPs with ReLU. The restart with the lowest objective is returned."""

    candidates: int | None = None  # None: as many as the rank of the first layer says
    labels: tuple[int, ...] | None = None  # None: as many of each class
    loss: KnownLoss = CrossEntropy()
    steps: int = 3000  # in each stage and round
    stages: int = 1  # of the first round: the directions that candidates move in grow from ten to all
    restarts: int = 2
    lr: float = 0.003  # of Adam, in units of pixels, falling on a half cosine
    spread: float = 0.005  # of the first candidates' pixels
    whitening: float = 0.5  # the first layer's singular values are divided by this power of themselves
    inner_whitening: float | None = None  # those of the layers between the first and the last; None: 1, of one output 0
    sharpness: tuple[float, float] = (2.0, 40.0)  # of the gates, at first and at the end, by distance from the kink
    kink: float = 3.0  # how far a gate can be shifted, in units of its width; 0: not at all
    box: float = 0.1  # weight of pixels outside [0, 1]
    tv: float = 0.0  # weight of how much neighbouring pixels differ, in the second half of the steps
    kept: tuple[float, ...] = ()  # shares of the candidates that further rounds keep; the others begin anew
    norm: float | None = None  # that the layers are scaled to; without weight decay their length says nothing
    mean: float | None = None  # added to every candidate; None: what the model takes off its records
    tf32: bool = False  # in float32, and on a CUDA device with factors of ten bits, whatever the release is in

    def __post_init__(self) -> None:
        check_min(self, candidates=1, labels=0, steps=1, stages=1, restarts=1, lr=0, spread=0, kink=0, box=0, tv=0)
        check_min(self, whitening=0, inner_whitening=0)
        check_above(self, norm=0)
        check_between(self, "sharpness", 0, inf, count=2)
        check_between(self, "kept", 0, 1)

    def run(self, release: KnowsFinal, *, seed: int) -> Reconstruction:
        require(release, KnowsFinal, by=type(self).__name__)
        model, shape = release.model, release.shape
        layers = residual.layers_of(model, residual.scaled(model, release.final, shape, self.norm), shape)
        if layers is None or len(layers) < 2:
            why = why_no_mlp(model, shape, standardised=False) or "the net has no hidden layer"
            raise BadInput(
                f"Stationarity cannot reconstruct from this `model`, use KKT: {why}",
                code="unsupported-model",
                argument="release",
            )
        check_outputs(self.loss, len(layers[-1].weight), release.num_classes)
        grey = 0.5 - residual.images(release, layers[0].weight.new_zeros(1, prod(release.shape)), self.mean)
        span = RowSpace.of(layers, self.whitening, grey.flatten(), most=self.candidates, inner=self._inner(layers))
        count = self.candidates or span.count
        if count is None:
            raise BadInput(
                "the rank of the first layer does not tell how many records there were (it was not trained with weight "
                "decay until it came to rest): set `candidates`"
            )
        classes = release.num_classes
        labels = balanced(count, classes) if self.labels is None else given(self.labels, count, classes)
        labels = labels.to(span.basis.device)
        with precision(tf32=self.tf32):
            z, objective = self._searched(release, span.single() if self.tf32 else span, labels, seed)
        best = int(objective.argmin())
        if not objective[best].isfinite():
            raise Diverged("every restart of Stationarity diverged: lower its `lr`")
        x = residual.images(release, span.records_at(z[best].to(span.basis)), self.mean).clamp(0, 1)
        return Reconstruction(x=x, y=labels, objective=float(objective[best]))

    def _inner(self, layers: Sequence[residual.Layer]) -> float:
        """With one output all records pull at inner layers in one direction, and the others are what training left."""
        if self.inner_whitening is not None:
            return self.inner_whitening
        return 1.0 if len(layers[-1].weight) > 1 else 0.0

    def _searched(self, release: KnowsFinal, span: RowSpace, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Coordinates (restart, candidate, direction) and the objective each restart reached."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.restarts, len(labels), prod(release.shape))
        free = [span.basis.new_zeros(*shape[:2], len(each.weight)) for each in span.layers[:-1]]
        z, anew = span.basis.new_zeros(*shape[:2], len(span.basis)), torch.ones_like(free[0][..., :1], dtype=torch.bool)
        total = (self.stages + len(self.kept)) * self.steps
        ticks = track(range(total), total=total, label="equilibrium")
        for share in (0.0, *self.kept):
            if share:
                place = self._doubt(span, z, free, labels).argsort(-1).argsort(-1)[..., None]
                anew = place >= share * len(labels)
            start = span.coordinates(torch.randn(shape, generator=generator).to(span.basis))
            z = torch.where(anew, self.spread * start, z)
            for part in span.growing(1 if share else self.stages):
                free = [torch.where(anew, 0.0, own) for own in free]
                leading, free, objective = self._round(
                    release, part, z[..., : len(part.basis)], free, anew, labels, ticks
                )
                z = torch.cat([leading, z[..., len(part.basis) :]], dim=-1)
        return z, objective.nan_to_num(nan=torch.inf)

    def _round(
        self,
        release: KnowsFinal,
        span: RowSpace,
        start: Tensor,
        shifts: Sequence[Tensor],
        anew: Tensor,
        labels: Tensor,
        ticks: Iterator[int],
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Candidates, their shifts and the objective. Those that begin `anew` have gates that grow steep; the others'
        are, and they move slowly."""
        z, free, unit = nn.Parameter(start.clone()), [nn.Parameter(own) for own in shifts], span.pixel
        mover = torch_optimizer(Adam(lr=self.lr * unit, eps=_EPS), [z])
        shifter = torch_optimizer(Adam(lr=_SHIFT_LR, eps=_EPS), free)
        objective, alpha, tv = start.new_zeros(self.restarts), torch.zeros_like(start[..., :1]), start.new_zeros(())
        before, held = start.clone(), torch.where(anew, 0.0, 1 - _SLOWLY).to(start)
        some_kept, shifted = not bool(anew.all()), ~anew
        moving = [mover, shifter] if some_kept and self.kink else [mover]

        @torch.no_grad()
        def step() -> None:
            reached, z.grad, of_free = self._slopes(release, span, z, free, labels, alpha, tv)
            objective.copy_(reached)
            for own, slope in zip(free, of_free, strict=True):
                own.grad = slope * shifted
            before.copy_(z)
            for optimizer in moving:
                optimizer.step()
            if some_kept:
                z.lerp_(before, held)

        def captured() -> Callable[[], None]:
            return replayed(step, lambda: changed_by(moving))

        begun, go = self.steps // 2, captured()  # gates that are still wide need no shift
        for place, _ in zip(range(self.steps), ticks, strict=False):
            if self.kink and place == begun:
                shifted.fill_(True)
                shifter = torch_optimizer(Adam(lr=_SHIFT_LR, eps=_EPS), free)
                moving = [mover, shifter]
                go = captured()
            done = place / self.steps
            fall = (1 + cos(pi * done)) / 2
            set_lr(mover, fall * self.lr * unit)
            set_lr(shifter, fall * _SHIFT_LR)
            alpha.copy_(
                torch.where(anew, Surrogate(beta=self.sharpness).beta_at(done), self.sharpness[1]) * span.steepness
            )
            tv.fill_(self.tv if place >= begun else 0.0)  # before, it would pull harder than all else and even them out
            go()
        return z.detach(), [own.detach() for own in free], objective

    @torch.no_grad()
    def _doubt(self, span: RowSpace, z: Tensor, free: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Of each candidate, whatever the others are: what enters a layer, and what its loss sends back to one, should
        lie in the rows and the columns of the layer's weights, as those of the true records do."""
        alpha = torch.full_like(z[..., :1], self.sharpness[1] * span.steepness)
        seen = residual.forward(span.layers, z, alpha, [self.kink * own.tanh() for own in free])
        deltas = residual.backward(span.layers, seen, -self.loss.grad_logits(seen.logits, labels))
        doubt, count = torch.zeros_like(z[..., 0]), len(labels)
        for place, layer in enumerate(span.layers[:-1]):
            bias = [] if layer.bias_target is None else [layer.bias_target[:, None]]
            doubt += _outside(deltas[place], torch.cat([layer.weight, *bias], 1), count).log()
            if place:
                doubt += _outside(seen.inputs[place], layer.weight.T, count).log()
        return doubt

    def _slopes(
        self,
        release: KnowsFinal,
        span: RowSpace,
        z: Tensor,
        free: Sequence[Tensor],
        labels: Tensor,
        alpha: Tensor,
        tv: Tensor,
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The objective of each restart, its slope by the coordinates, and by what shifts the gates."""
        seen = residual.forward(span.layers, z, alpha, [self.kink * own.tanh() for own in free])
        pull = -self.loss.grad_logits(seen.logits, labels)
        rest, factor = residual.fitted(span.layers, residual.left(span.layers, seen, pull))
        of_deltas = residual.by_deltas(span.layers, seen, rest)
        of_logits = -self.loss.hvp_logits(seen.logits, labels, factor[:, None, None] * of_deltas[-1])
        x = residual.images(release, span.records_at(z).flatten(0, 1), self.mean)
        unlike, of_x = self._priors(x.unflatten(0, z.shape[:2]), tv)
        of_z = of_x.flatten(2) @ span.basis.T
        residual.by_inputs(span.layers, seen, rest, of_deltas, of_logits=of_logits, onto=of_z)
        of_free = [
            of_delta * delta * (1 - slope) * self.kink * (1 - own.tanh().square())
            for of_delta, delta, slope, own in zip(of_deltas, rest.deltas, seen.slopes, free, strict=False)
        ]
        return rest.objective + unlike, of_z, of_free

    def _priors(self, x: Tensor, tv: Tensor) -> tuple[Tensor, Tensor]:
        """How far candidates (restart, i, ...) are from images, over all those of a restart, and its slope."""
        outside, share = x - x.clamp(0, 1), self.box / x.shape[1]
        value, slope = share * outside.square().flatten(1).sum(1), 2 * share * outside
        if not self.tv or x.ndim < 5:  # rows of a table have no neighbours
            return value, slope
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            rough = tv * vmap(total_variation)(leaf)
            (of_rough,) = torch.autograd.grad(rough.sum(), leaf)
        return value + rough.detach(), slope + of_rough


def _outside(rows: Tensor, weight: Tensor, rank: int) -> Tensor:
    """The share of each row's length outside the leading columns of a weight."""
    left: Tensor = torch.linalg.svd(weight, full_matrices=False)[0][:, : min(rank, int(_MOST * len(weight)))]
    lacking = (rows - rows @ left @ left.mT).square().sum(-1)
    return (lacking / rows.square().sum(-1).clamp_min(torch.finfo(rows.dtype).tiny)).sqrt()
