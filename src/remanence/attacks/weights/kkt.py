"""Training images from trained weights alone, by the conditions that training ends in.

Buzaglo, Haim, Yehudai, Vardi, Oz, Nikankin, Irani, "Deconstructing Data Reconstruction: Multiclass, Weight Decay and
General Losses" (NeurIPS 2023), after Haim et al., "Reconstructing Training Data from Trained Neural Networks" (NeurIPS
2022). A homogeneous net trained to zero error tends to a KKT point of its margin problem, where the weights are a sum
of gradients at training records on the margin; candidates and multipliers are moved until they are one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import softshrink

from remanence.attacks._reasons import why_no_mlp
from remanence.attacks.weights import residual
from remanence.attacks.weights.residual_autograd import slopes, with_surrogate
from remanence.engine.cuda import precision, replayed
from remanence.errors import BadInput, check_above, check_min
from remanence.models import apply
from remanence.progress import track
from remanence.releases import KnowsFinal, require
from remanence.search.labels import balanced
from remanence.types import Reconstruction

_PENALTY = 5.0  # on multipliers below the least
_LOOK = 100  # iterations between two looks at which runs have diverged: each is a wait for the device
_PROJECTIONS = 20  # steps of the multipliers in each step of the candidates
_CHANGED = ("x", "free", "moved", "moved_free", "objective")  # by a step


@final
@dataclass(frozen=True, kw_only=True)
class KKTRun:
    """The numbers of one run. The defaults are the authors' second published multiclass run on CIFAR-10."""

    lr: float = 1.36235e-3
    multiplier_lr: float = 0.479332
    least_multiplier: float = 0.203209
    alpha: float = 39.5174  # of the surrogate activation
    spread: float = 6.2277e-5  # of the first candidates

    def __post_init__(self) -> None:
        check_min(self, lr=0, multiplier_lr=0, alpha=0, spread=0)


@final
@dataclass(frozen=True, kw_only=True)
class KKT:
    """Runs are stacked; one that diverges is dropped, and the one with the lowest objective is returned. It also says
    which half of them goes on (successive halving, Jamieson and Talwalkar 2016): no record is looked at.

    Several outputs: a record's margin is to its closest competitor. One output: y times the output, or with `signed`
    the output itself, with multipliers of either sign (regression).
    """

    candidates: int = 1000
    runs: tuple[KKTRun, ...] = (KKTRun(),)
    iterations: int = 50_000
    halvings: int = 0  # so often, last at 1/2 of the iterations, before at 1/4 ..., the better half of the runs goes on
    momentum: float = 0.9
    squared: bool = False  # the paper's multipliers a² + least; the authors' code has free ones and a penalty
    projected: bool = False  # multipliers by least squares at every step, none below the least: variable projection
    signed: bool = False
    norm: float | None = None  # that the layers are scaled to: rates of runs suit weights of one length
    mean: float | None = None  # added to every candidate; None: what the model takes off its records
    tf32: bool = False  # in float32, and on a CUDA device with factors of ten bits, whatever the release is in

    def __post_init__(self) -> None:
        check_min(self, candidates=1, iterations=1, halvings=0, momentum=0)
        check_above(self, norm=0)
        if self.projected and self.squared:
            raise BadInput("multipliers of KKT cannot be `projected` and `squared`: leave one out")
        if not self.runs:
            raise BadInput("`runs` of KKT must hold one or more, got none")

    def run(self, release: KnowsFinal, *, seed: int) -> Reconstruction:
        require(release, KnowsFinal, by=type(self).__name__)
        if self.projected and residual.layers_of(release.model, release.final, release.shape) is None:
            why = why_no_mlp(release.model, release.shape, standardised=False)
            raise BadInput(f"`projected` multipliers need the closed form of an MLP with ReLU: {why}")
        with precision(tf32=self.tf32):
            search = Search.begun(self, release, seed)
            go, cuts = search.replayed(), {self.iterations >> k for k in range(1, self.halvings + 1)}
            for done in track(range(1, self.iterations + 1), total=self.iterations, label="KKT conditions"):
                go()
                looks = done % _LOOK == 0 or done in cuts or done == self.iterations
                if looks and search.shrunk(halved=done in cuts):
                    go = search.replayed()
        best = int(search.objective.argmin())
        x = residual.images(release, search.x[best].to(next(iter(release.final.values()))), self.mean)
        low, high = (v.view(-1, *[1] * (x.ndim - 1)) for v in torch.aminmax(x.flatten(1), dim=1))
        x = (x - low) / (high - low).clamp_min(torch.finfo(x.dtype).tiny)  # as the paper scores them
        return Reconstruction(x=x, y=search.labels, objective=float(search.objective[best]))


class Search:
    """The stack: candidates (run, i, pixel), multipliers (run, i), their momenta and the objectives, all in place."""

    def __init__(self, attack: KKT, release: KnowsFinal, labels: Tensor, x: Tensor, free: Tensor) -> None:
        self.attack, self.release, self.labels = attack, release, labels
        self.x, self.free = x, free
        self.moved, self.moved_free = torch.zeros_like(x), torch.zeros_like(free)
        self.objective = x.new_zeros(len(x))
        self.runs = list(attack.runs)
        final = residual.scaled(release.model, release.final, release.shape, attack.norm)
        self.final = {name: p.to(x) for name, p in final.items()}
        self.layers = residual.layers_of(release.model, self.final, release.shape)
        self.surrogates = {run.alpha: with_surrogate(release.model, run.alpha) for run in attack.runs}
        self._set_numbers()

    @classmethod
    def begun(cls, attack: KKT, release: KnowsFinal, seed: int) -> "Search":
        generator, like = torch.Generator().manual_seed(seed), next(iter(release.final.values()))
        like = like.float() if attack.tf32 else like
        stack = (len(attack.runs), attack.candidates)
        width = prod(release.shape)
        spread = torch.tensor([run.spread for run in attack.runs])[:, None, None]
        x = spread * torch.randn(*stack, width, generator=generator)
        draw = torch.randn if attack.signed else torch.rand
        free = draw(*stack, generator=generator)
        labels = balanced(attack.candidates, release.num_classes).to(like.device)
        return cls(attack, release, labels, x.to(like), free.to(like))

    def _set_numbers(self) -> None:
        def column(name: str) -> Tensor:
            return self.x.new_tensor([getattr(run, name) for run in self.runs])[:, None]

        self.lr, self.alpha = column("lr")[..., None], column("alpha")[..., None]
        self.multiplier_lr, self.least = column("multiplier_lr"), column("least_multiplier")

    def replayed(self) -> Callable[[], None]:
        return replayed(self.step, lambda: [getattr(self, name) for name in _CHANGED])

    def step(self) -> None:
        """One step of SGD with momentum on candidates and multipliers, or on candidates alone."""
        attack = self.attack
        multipliers = self.free.square() + self.least if attack.squared else self.free
        objective, of_free = (self._written_out if self.layers else self._by_autograd)(multipliers)
        outside = softshrink(self.x, 1.0)
        self.moved.add_(outside, alpha=2)
        residual.with_squares(objective, outside)
        self.x.addcmul_(self.lr, self.moved, value=-1)
        if attack.squared:
            of_free.mul_(self.free).mul_(2)
        elif not attack.signed and not attack.projected:
            short = (self.least - self.free).relu_()
            of_free.sub_(short, alpha=2 * _PENALTY)
            residual.with_squares(objective, short[..., None], _PENALTY)
        self.objective.copy_(objective)
        if not attack.projected:
            torch.add(of_free, self.moved_free, alpha=attack.momentum, out=self.moved_free)
            self.free.addcmul_(self.multiplier_lr, self.moved_free, value=-1)

    def _written_out(self, multipliers: Tensor) -> tuple[Tensor, Tensor]:
        """The objective and the slope by the multipliers; that by the candidates is added to what has `moved` them."""
        assert self.layers is not None
        seen = residual.forward(self.layers, self.x, self.alpha)
        signs = self._signs(seen.logits)
        if self.attack.projected:  # in place: `multipliers` are then those
            self._project(*residual.gram(self.layers, seen, residual.backward(self.layers, seen, signs)))
        rest = residual.left(self.layers, seen, signs * multipliers[..., None])
        of_deltas = residual.by_deltas(self.layers, seen, rest)
        residual.by_inputs(self.layers, seen, rest, of_deltas, onto=self.moved, times=self.attack.momentum)
        return rest.objective, (of_deltas[-1] * signs).sum(-1)

    def _project(self, gram: Tensor, along: Tensor) -> None:
        """Some steps of Nesterov's method down  l' gram l - 2 along' l,  from where the last ones ended."""
        rate = 1 / gram.abs().sum(-1).amax(-1, keepdim=True).clamp_min(torch.finfo(gram.dtype).tiny)
        ahead = self.free
        for place in range(_PROJECTIONS):
            new = ahead + rate * (along - (gram @ ahead[..., None])[..., 0])
            new = new if self.attack.signed else torch.maximum(new, self.least)
            ahead = new + place / (place + 3) * (new - self.free)
            self.free.copy_(new)

    def _by_autograd(self, multipliers: Tensor) -> tuple[Tensor, Tensor]:
        found = []
        for run, x, moved, own in zip(self.runs, self.x, self.moved, multipliers, strict=True):
            records = residual.images(self.release, x, None)
            with torch.no_grad():
                signs = self._signs(apply(self.release.model, self.final, records))
            top = signs * own[:, None]
            value, of_x, of_top = slopes(self.surrogates[run.alpha], self.final, records, top)
            moved.mul_(self.attack.momentum).add_(of_x.flatten(1))
            found.append((value, (of_top * signs).sum(-1)))
        values, of_multipliers = (torch.stack(parts) for parts in zip(*found, strict=True))
        return values, of_multipliers

    def _signs(self, logits: Tensor) -> Tensor:
        """Over the number of candidates, as in the authors' code: their rates and least multipliers are meant so."""
        return residual.margin_signs(logits, self.labels, signed=self.attack.signed) / len(self.labels)

    def shrunk(self, *, halved: bool) -> bool:
        """Drops what diverged, and the worse half of the others; whether there was any."""
        whole = self.objective.isfinite() & self.x.isfinite().all(-1).all(-1)
        left = int(whole.sum())
        if not left:
            raise BadInput("every run of KKT diverged: lower `lr` and `multiplier_lr` of its `runs`")
        left = (left + 1) // 2 if halved else left
        if left == len(self.runs):
            return False
        best = self.objective.where(whole, torch.inf).argsort()[:left].sort().values
        self.runs = [self.runs[place] for place in best.tolist()]
        for name in _CHANGED:
            setattr(self, name, getattr(self, name)[best])
        self._set_numbers()
        return True
