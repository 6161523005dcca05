"""Training inversion: the one record with which the known training ends at the released weights.

The informed adversary of Balle, Cherubin, Hayes, "Reconstructing Training Data with Informed Adversaries" (IEEE S&P
2022) knows all records but one, the initial weights and the training. For them the released weights are a function of
that record alone, of which there are far more than the record has values. Instead of learning its inverse from shadow
models, as they do, it is inverted here, by simulating the training as Tian et al. (SimuDy, ICLR 2025) do: L-BFGS on

    |theta(fixed + record) - theta released|² / |theta(fixed) - theta released|²,

from the mean record of each class with its label; after a few steps the labels that explain less are dropped. With
ReLU the distance jumps where the record switches a neuron, at which line searches stall: there Adam goes on.
"""

from dataclasses import dataclass, replace
from math import ceil, inf
from typing import final

import torch
from torch import Tensor

from remanence.bounds import Bounds, clamp
from remanence.engine import Unrolled
from remanence.engine.unroll import GenericDynamics, segment_length
from remanence.errors import BadInput, Diverged, check_min
from remanence.progress import track
from remanence.releases import KnowsAllButOne, require
from remanence.releases.checks import check_endpoints
from remanence.search import L2, LBFGS, Adam, Search, Variable, Variables, between, given, minimise
from remanence.types import Data, Reconstruction, float_like

_HISTORY = 30  # of L-BFGS: a step costs several trainings, so that its memory is not what to save on
_DESCENT = Search(optimizer=Adam(lr=0.03, beta1=0.8, beta2=0.99))
_STALLED = 1e-3  # objective


@final
@dataclass(frozen=True, kw_only=True)
class TrainingInversion:
    """The record, and its label, whose training with the fixed records ends at the released weights.

    The objective is the squared distance from the released weights, in units of what the record changed: rounding where
    the record is found. A low one alone is no proof: other records may explain most of the change.
    """

    labels: tuple[int, ...] | None = None  # that the record may have; None: any
    rounds: tuple[int, ...] = (3, 6)  # steps for each label, after each of which the better quarter of them goes on
    steps: int = 60  # of L-BFGS, for the last label
    descent_steps: int = 200  # of Adam, where L-BFGS stalls, as it does with ReLU; 0: none

    def __post_init__(self) -> None:
        check_min(self, labels=0, rounds=1, steps=1, descent_steps=0)
        if self.labels is not None and not self.labels:
            message = "`labels` of TrainingInversion must hold those that the record may have, got none: None is any"
            raise BadInput(message, code="out-of-range", argument="labels")

    def run(self, release: KnowsAllButOne, *, seed: int) -> Reconstruction:
        require(release, KnowsAllButOne, by=type(self).__name__)
        check_endpoints(release)
        like = float_like(release.final)
        fixed = _checked(release.fixed.to(like.device, like.dtype))
        start = _Candidate.from_release(release, fixed, seed=seed)
        classes = release.num_classes
        labels = range(classes) if self.labels is None else given(self.labels, len(self.labels), classes).tolist()
        found = [start.with_label(label, fixed) for label in labels]
        rounds = [*(self.rounds if len(found) > 1 else ()), self.steps]
        for steps in track(rounds, total=len(rounds), label="rounds of labels", may_stop=True):
            tried = track(found, total=len(found), label="labels of the record", may_stop=True)
            found = sorted((each.improved(_by_lbfgs(steps)) for each in tried), key=_objective)
            found = found[: ceil(len(found) / 4)]
        best = found[0]
        if self.descent_steps and best.objective > _STALLED:
            best = min(best, best.improved(replace(_DESCENT, steps=self.descent_steps)), key=_objective)
        if best.objective == inf:
            message = "the simulated training diverges with every record that was tried: is it that of the victim?"
            raise Diverged(message, code="diverged", argument="training")
        return Reconstruction(x=best.x, y=best.label, objective=best.objective)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Candidate:
    """A record x (1, *shape) with a label (1,), and as `Objective`

    |simulated - released weights|² over |those without the record - released weights|².
    """

    unrolled: Unrolled
    scale: Tensor  # the denominator, in units of the released update
    bounds: Bounds
    x: Tensor
    label: Tensor
    objective: float = inf  # of `x`, once it was searched for
    capturable: bool = False  # on a CUDA device every step is launched: its segments are run again in the backward pass

    @classmethod
    def from_release(cls, release: KnowsAllButOne, fixed: Data, *, seed: int) -> "_Candidate":
        """The mean of the fixed records."""
        unrolled = _unrolled(release, fixed, seed)
        batches = tuple(batch if batch is None else batch[batch < len(fixed)] for batch in unrolled.batches)
        without = replace(unrolled, batches=batches, known=len(fixed) + 1)
        return cls(
            unrolled=unrolled,
            scale=_scale(without, fixed),
            bounds=release.bounds,
            x=clamp(fixed.x.mean(0, keepdim=True), release.bounds),
            label=fixed.y[:1],
        )

    def with_label(self, label: int, fixed: Data) -> "_Candidate":
        """The mean of the fixed records with this label, or of all where there is none."""
        of_label = fixed.x[fixed.y == label]
        x = clamp(of_label.mean(0, keepdim=True), self.bounds) if len(of_label) else self.x
        return replace(self, x=x, label=torch.full_like(self.label, label))

    def improved(self, search: Search) -> "_Candidate":
        """The candidate where a search from this one ends; this one where it diverges."""
        try:
            found = minimise(self, search, label=f"training inversion ({self.unrolled.describe()})")
        except Diverged:
            return self
        variables, _ = found.best()
        return replace(self, x=clamp(variables["x"], self.bounds).detach(), objective=float(found.value.min()))

    def init(self) -> dict[str, Variable]:
        return {"x": Variable(init=self.x[None], bounds=self.bounds)}

    def set_progress(self, progress: float) -> None:
        pass

    def select(self, restarts: Tensor) -> "_Candidate":
        return self

    @torch.enable_grad()
    def value_and_grad(self, v: Variables) -> tuple[Tensor, Variables]:
        x = v["x"][0].detach().requires_grad_()
        value = _distance(self.unrolled, x, self.label) / self.scale
        if not value.requires_grad:
            message = (
                "the final weights have no derivative with respect to the record: records of whole numbers, such as "
                "tokens or categories alone, or no steps, cannot be searched for by descent"
            )
            raise BadInput(message, code="unsupported-model", argument="model")
        (grad,) = torch.autograd.grad(value, x)
        return value.detach()[None], {"x": grad[None]}


def _checked(fixed: Data) -> Data:
    if not len(fixed):
        message = "`fixed` must hold the other training records, got none: where they are unknown, use SimuDy"
        raise BadInput(message, code="out-of-range", argument="fixed")
    return fixed


def _unrolled(release: KnowsAllButOne, fixed: Data, seed: int) -> Unrolled:
    """The training of the release on the `fixed` records, and on a record after them."""
    training, like = release.training.expected, float_like(release.final)
    records = len(fixed) + 1
    batches = tuple(b if b is None else b.to(like.device) for b in training.batches(records, seed))
    endpoints = release.model, training, release.initial, release.final
    dynamics = GenericDynamics.from_release(*endpoints, fixed=fixed)
    segment = segment_length(
        release.model,
        release.shape,
        steps=len(batches),
        batch=min(training.batch_size or records, records),
        copies=1 + len(training.optimizer.init({})),
        like=like,
    )
    return Unrolled(training=training, dynamics=dynamics, batches=batches, segment=segment, known=len(fixed))


@torch.no_grad()
def _scale(without: Unrolled, fixed: Data) -> Tensor:
    """What the record changed, by the training without it."""
    scale = _distance(without, fixed.x[:0], fixed.y[:0])
    if not scale.isfinite():
        message = "the simulated training diverges on the fixed records: is its learning rate that of the victim?"
        raise Diverged(message, code="diverged", argument="training")
    if not scale:
        message = (
            "the training on the `fixed` records alone ends at the released weights: the record left no trace in "
            "them, or is it among `fixed`?"
        )
        raise BadInput(message, code="conflict", argument="fixed")
    return scale


def _distance(unrolled: Unrolled, x: Tensor, y: Tensor) -> Tensor:
    """The squared distance of the simulated weights from the released ones, in units of the released update."""
    weights, inputs = unrolled(x, y)
    return between(L2(), unrolled.dynamics.compare(weights, inputs))


def _by_lbfgs(steps: int) -> Search:
    return Search(optimizer=LBFGS(history=_HISTORY), steps=steps)


def _objective(candidate: _Candidate) -> float:
    return candidate.objective
