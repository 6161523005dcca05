"""Gradient matching: find the batch whose gradient is the one that was sent.

Zhu, Liu, Han, "Deep Leakage from Gradients" (NeurIPS 2019), with the cosine distance and total-variation prior of
Geiping et al., "Inverting Gradients" (NeurIPS 2020), and labels read off the last layer's bias gradient as in Zhao,
Mopuri, Bilen, "iDLG" (2020).
"""

from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cosine_similarity

from remanence.errors import NotEnoughKnowledge
from remanence.nets import apply
from remanence.progress import track
from remanence.release import KnowsGradient, require
from remanence.training import CrossEntropy
from remanence.types import Params, Reconstruction


class Distance(Protocol):
    def __call__(self, sent: Tensor, ours: Tensor) -> Tensor: ...


@final
@dataclass(frozen=True, kw_only=True)
class Cosine:
    """1 - cos: only the direction counts (Geiping et al.)."""

    def __call__(self, sent: Tensor, ours: Tensor) -> Tensor:
        return 1 - cosine_similarity(sent, ours, dim=0)


@final
@dataclass(frozen=True, kw_only=True)
class L2:
    """Squared distance in units of the sent gradient's squared norm (Zhu et al.; the unit makes one rate fit all)."""

    def __call__(self, sent: Tensor, ours: Tensor) -> Tensor:
        return (sent - ours).square().sum() / sent.square().sum()


@final
@dataclass(frozen=True, kw_only=True)
class GradientMatching:
    """Adam on the pixels, clamped to [0, 1] after each step, its rate on a half cosine.

    Zhu et al. use L-BFGS and no box, Geiping et al. the sign of the gradient and a rate that falls in steps.
    """

    distance: Distance = Cosine()
    tv: float = 1e-3
    steps: int = 1000
    lr: float = 0.1
    restarts: int = 2
    label_rounds: int = 2  # not in the papers: short searches that sharpen the inferred labels, each a fifth of `steps`

    def run(self, release: KnowsGradient, *, seed: int) -> Reconstruction:
        require(release, KnowsGradient, by=type(self).__name__)
        generator = torch.Generator().manual_seed(seed)
        if release.labels is not None:
            labels = release.labels.expand(self.restarts, -1)
        else:
            noise = torch.rand(self.restarts, 256, *release.shape, generator=generator)
            labels = infer_labels(release, noise)
            labels = infer_labels(release, noise, shrunk=_shrunk(release, noise, labels))
            for _ in range(self.label_rounds):
                x = self._search(release, labels, self.steps // 5, generator)[0]
                labels = infer_labels(release, x, shrunk=_shrunk(release, x, labels))
        x, reached = self._search(release, labels, self.steps, generator)
        best = int(reached.argmin())
        return Reconstruction(x=x[best], y=labels[best], objective=float(reached[best]))

    def _search(
        self, release: KnowsGradient, labels: Tensor, steps: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Candidates (restart, record, ...) for `labels` (restart, record), and the objective each restart reached."""
        sent = _flat({name: release.gradient[name] for name in release.at})

        def objective(candidates: Tensor, labels: Tensor) -> Tensor:
            ours = _imitated(release, _gradient(release, candidates, labels))
            return self.distance(sent, _flat(ours)) + self.tv * total_variation(candidates)

        # restarts are independent problems: one stacked gradient serves them all, and Adam works on each element alone
        slope = vmap(grad(objective))
        x = torch.rand(*labels.shape, *release.shape, generator=generator).to(sent)
        optimizer = torch.optim.Adam([x], lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in track(range(steps), total=steps, label="gradient matching"):
            x.grad = slope(x, labels)
            optimizer.step()
            schedule.step()
            x.clamp_(0, 1)
        return x, vmap(objective)(x, labels)


def _gradient(release: KnowsGradient, candidates: Tensor, labels: Tensor) -> Params:
    def loss(params: Params) -> Tensor:
        return release.loss(apply(release.model, params, candidates), labels)

    gradient: Params = grad(loss)(release.at)
    return gradient


def _imitated(release: KnowsGradient, ours: Params) -> Params:
    for defence in release.defences:
        ours = defence.imitate(ours, release.gradient)
    return ours


def _shrunk(release: KnowsGradient, x: Tensor, labels: Tensor) -> Tensor:
    """For each restart, how much smaller the defences make what is sent of its candidates' last bias gradient."""
    last, count = _last(release), min(x.shape[1], labels.shape[1])

    def factor(candidates: Tensor, labels: Tensor) -> Tensor:
        ours = _gradient(release, candidates, labels)
        made = _imitated(release, ours)[last]
        ratio: Tensor = made.norm() / (ours[last] * (made != 0)).norm()
        return ratio.nan_to_num(nan=1.0)

    factors: Tensor = vmap(factor)(x[:, :count].to(release.gradient[last]), labels[:, :count])
    return factors


def infer_labels(release: KnowsGradient, looks_like: Tensor, *, shrunk: Tensor | None = None) -> Tensor:
    """The labels of the batch from the last layer's bias gradient, which is mean(softmax) - (labels' frequencies).

    A class with a negative entry is in the batch for certain, whatever the weights; for one record that is the answer.
    The places left go to the classes with the largest remaining counts, the mean softmax being taken over the records
    `looks_like` (restart, record, ...), with one answer for each restart. A defence may have `shrunk` the entries.
    """
    if release.batch_size is None:
        raise NotEnoughKnowledge("GradientMatching needs `batch_size` to know how many records to look for")
    bias = release.gradient[_last(release)]
    if bias.ndim != 1 or not isinstance(release.loss, CrossEntropy):
        raise NotEnoughKnowledge(
            "GradientMatching reads labels off the gradient of the last layer's bias under cross-entropy, "
            "which this release lacks: it must show `labels`"
        )
    logits = apply(release.model, release.at, looks_like.flatten(0, 1).to(bias))
    softmax = logits.unflatten(0, looks_like.shape[:2]).softmax(dim=-1).mean(dim=1)
    counts = (softmax - (bias if shrunk is None else bias / shrunk[:, None])) * release.batch_size
    certain = bias.argsort()[: int((bias < 0).sum())][: release.batch_size]
    labels = [label.expand(len(counts)) for label in certain]
    counts[:, certain] -= 1
    while len(labels) < release.batch_size:
        labels.append(counts.argmax(dim=1))
        counts.scatter_add_(1, labels[-1][:, None], -counts.new_ones(len(counts), 1))
    return torch.stack(labels, dim=1).sort(dim=1).values


def _last(release: KnowsGradient) -> str:
    return [name for name, _ in release.model.named_parameters()][-1]


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels; zero for table rows, which have no neighbours."""
    if x.ndim < 4:
        return x.new_zeros(())
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()


def _flat(params: Params) -> Tensor:
    return torch.cat([p.flatten() for p in params.values()])
