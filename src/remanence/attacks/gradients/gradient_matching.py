"""Gradient matching: find the batch whose gradient is the one that was sent.

Zhu, Liu, Han, "Deep Leakage from Gradients" (NeurIPS 2019), with the cosine distance and total-variation prior of
Geiping et al., "Inverting Gradients" (NeurIPS 2020), and labels read off the last layer's bias gradient as in Zhao,
Mopuri, Bilen, "iDLG" (2020).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any, final

import torch
from torch import Tensor
from torch.func import vmap

from remanence.attacks.base import Attack
from remanence.attacks.gradients.labels import infer_labels
from remanence.errors import NotEnoughKnowledge, check_min
from remanence.releases import KnowsUpdate, require
from remanence.search.distances import Cosine, Distance
from remanence.search.priors import total_variation
from remanence.search.solver import LBFGS, search
from remanence.seeds import derive_seed
from remanence.training import Adam, Optimizer
from remanence.types import Params, Reconstruction

_NOISE = 256  # records that the first guess of the labels is made with


@final
@dataclass(frozen=True, kw_only=True)
class GradientMatching:
    """Of a client that took several steps these are simulated, and what they would send is compared.

    Zhu et al. use L-BFGS and no box, Geiping et al. the sign of the gradient and a rate that falls in steps.
    """

    distance: Distance = Cosine()
    tv: float = 1e-3
    steps: int = 1000
    optimizer: Optimizer | LBFGS = Adam(lr=0.1)
    restarts: int = 2
    label_rounds: int = 2  # not in the papers: short searches that sharpen the inferred labels, each a fifth of `steps`
    start: Attack[Any] | None = None  # whose estimate the first restart begins with; others begin at random

    def __post_init__(self) -> None:
        check_min(self, steps=1, restarts=1, label_rounds=0, tv=0)

    def run(self, release: KnowsUpdate, *, seed: int) -> Reconstruction:
        require(release, KnowsUpdate, by=type(self).__name__)
        generator = torch.Generator().manual_seed(seed)
        if self.start is not None:
            estimate = self.start.run(release, seed=derive_seed(seed, "start"))
            labels = _labels_beside(release, estimate, generator).expand(self.restarts, -1)
        elif release.labels is not None:
            labels = release.labels.expand(self.restarts, -1)
        else:
            labels = self._inferred(release, generator)
        starts = _random(release, labels, generator)
        if self.start is not None:
            starts[0, : len(estimate.x)] = estimate.x
        x, reached = self._search(release, starts, labels, self.steps)
        best = int(reached.nan_to_num(nan=inf).argmin())  # NaN, of a restart that diverged, would be the least
        return Reconstruction(x=x[best], y=labels[best], objective=float(reached[best]))

    def _inferred(self, release: KnowsUpdate, generator: torch.Generator) -> Tensor:
        noise = torch.rand(self.restarts, _NOISE, *release.shape, generator=generator)
        labels = torch.stack([infer_labels(release, each) for each in noise])
        for _ in range(self.label_rounds):
            starts = _random(release, labels, generator)
            x, _ = self._search(release, starts, labels, self.steps // 5)
            labels = torch.stack([infer_labels(release, each) for each in x])
        return labels

    def _search(self, release: KnowsUpdate, starts: Tensor, labels: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Candidates (restart, record, ...) for `labels` (restart, record), and the objective each restart reached."""
        names = [name for name, _ in release.model.named_parameters()]
        sent = _flat(release.sent, names)

        def objective(candidates: Tensor, labels: Tensor) -> Tensor:
            ours = _flat(release.simulate(candidates, labels), names)
            return self.distance(sent, ours) + self.tv * total_variation(candidates)

        x = search(objective, starts, labels, optimizer=self.optimizer, steps=steps, label="gradient matching")
        return x, vmap(objective)(x, labels)


def _random(release: KnowsUpdate, labels: Tensor, generator: torch.Generator) -> Tensor:
    like = next(iter(release.sent.values()))
    return torch.rand(*labels.shape, *release.shape, generator=generator).to(like)


def _labels_beside(release: KnowsUpdate, estimate: Reconstruction, generator: torch.Generator) -> Tensor:
    """One for each record of the batch, those of the estimate first; the estimate may hold fewer."""
    if estimate.y is None:
        raise NotEnoughKnowledge("`start` must be an attack that tells labels: use `FirstLayer()` or `Stein()`")
    if release.batch_size in (None, len(estimate.x)) and release.labels is None:
        return estimate.y
    noise = torch.rand(_NOISE, *release.shape, generator=generator)
    of_batch = infer_labels(release, noise) if release.labels is None else release.labels
    labels = estimate.y.tolist()
    left = Counter(of_batch.tolist())
    left.subtract(labels)
    others = (+left).elements()
    if release.labels is not None:
        for i, label in enumerate(labels):
            if left[label] < 0:  # a label that the batch does not have, or not as often
                left[label] += 1
                labels[i] = next(others)
    return estimate.y.new_tensor([*labels, *islice(others, len(of_batch) - len(labels))])


def _flat(params: Params, names: Sequence[str]) -> Tensor:
    return torch.cat([params[name].flatten() for name in names])
