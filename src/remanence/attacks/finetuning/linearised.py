"""Training records from the weights before and after training, by linear theories of it: what SimuDy is compared with.

Loo, Hasani, Lechner, Rus, "Dataset Distillation Fixes Dataset Reconstruction Attacks" (2023), take the weights' way for
a sum of gradients at its start and its end; Buzaglo et al. 2023 for one at its end. Both as Tian et al. (ICLR 2025)
compare them: gradients of the loss, multipliers of either sign, any net.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from remanence.attacks._ends import check_ends
from remanence.errors import check_min
from remanence.models import apply
from remanence.releases import KnowsTraining, require
from remanence.search.checkpoint import file_of
from remanence.search.distances import Cosine, Distance
from remanence.search.labels import balanced
from remanence.search.priors import total_variation
from remanence.search.solver import search_in_place
from remanence.training import Adam, Loss, Optimizer
from remanence.types import Params, Reconstruction


@final
@dataclass(frozen=True, kw_only=True)
class Linearised:
    """Candidates and a multiplier of each at each end are moved together. Tian et al. take twice as many candidates as
    records, squared distances at first, and 100,000 steps of other rates for the multipliers."""

    candidates: int = 200
    at_start: bool = True  # False: gradients at the end alone
    distance: Distance = Cosine()
    tv: float = 0.005
    steps: int = 5000
    optimizer: Optimizer = Adam(lr=0.01, beta1=0.8, beta2=0.9)  # its rate falls on a half cosine
    spread: float = 0.1  # of the first candidates' pixels, around the middle
    octaves: int = 0  # coarser parts of the images that are moved beside their pixels
    checkpoints: Path | None = field(default=None, repr=False, compare=False)  # where a stopped search goes on

    def __post_init__(self) -> None:
        check_min(self, candidates=1, tv=0, steps=1, spread=0, octaves=0)

    def run(self, release: KnowsTraining, *, seed: int) -> Reconstruction:
        require(release, KnowsTraining, by=type(self).__name__)
        check_ends(release)
        generator, like = torch.Generator().manual_seed(seed), next(iter(release.final.values()))
        labels = balanced(self.candidates, release.num_classes).to(like.device)
        start = 0.5 + self.spread * torch.randn(self.candidates, *release.shape, generator=generator)
        ends = (release.final, release.initial) if self.at_start else (release.final,)
        multipliers = nn.Parameter((torch.rand(len(ends), self.candidates, generator=generator) - 0.5).to(like))
        x, names = nn.Parameter(start.clamp(0, 1).to(like)), [name for name, _ in release.model.named_parameters()]
        moved = torch.cat([(release.initial[name] - release.final[name]).flatten() for name in names])

        def objective(x: Tensor) -> Tensor:
            explained = pulls(release.model, release.training.loss, names, ends, multipliers, x, labels)
            return self.distance(moved, explained) + self.tv * total_variation(x)

        search_in_place(
            objective,
            x,
            [multipliers],
            optimizer=self.optimizer,
            steps=self.steps,
            octaves=self.octaves,
            label="linearised training",
            kept=file_of(self.checkpoints, self, release, release.training, seed),
        )
        with torch.no_grad():
            return Reconstruction(x=x.detach().clone(), y=labels, objective=float(objective(x)))


def pulls(
    model: nn.Module,
    loss: Loss,
    names: Sequence[str],
    ends: Sequence[Params],
    multipliers: Tensor,
    x: Tensor,
    labels: Tensor,
) -> Tensor:
    """The sum of each record's gradient of the loss at each of `ends`, times its multiplier there."""

    def weighted(trained: Params, end: Params, multipliers: Tensor) -> Tensor:
        logits = apply(model, end | trained, x)
        return (multipliers * vmap(lambda z, y: loss(z[None], y[None]))(logits, labels)).sum()

    gradients = [
        grad(weighted)({name: end[name] for name in names}, end, own)
        for end, own in zip(ends, multipliers, strict=True)
    ]
    return torch.stack([torch.cat([each[name].flatten() for name in names]) for each in gradients]).sum(0)
