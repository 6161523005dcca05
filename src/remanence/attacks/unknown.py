"""What SimuDy's attacker may not know: the learning rate, and how many records there were (Tian et al. 2025)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import ceil, floor, inf
from typing import final

import torch
from torch import Tensor

from remanence.attacks.simudy import SimuDy
from remanence.errors import BadInput, Diverged
from remanence.release import KnowsTraining
from remanence.types import Data, Reconstruction

_SAMPLES = 1000


@final
@dataclass(frozen=True, kw_only=True)
class Count:
    value: int
    low: int
    high: int


def find_rate(attack: SimuDy, release: KnowsTraining, rates: Sequence[float], *, seed: int) -> float:
    """The learning rate with the lowest objective; the release's own is not used.

    Successive halving: each rate gets `attack.steps`, then the better half twice as many, until one is left. The
    distance should tell lengths, as `L2()` does: the direction alone says less about the rate.
    """
    left, steps = list(dict.fromkeys(rates)), attack.steps
    if not left:
        raise BadInput("`rates` is empty: give the learning rates to choose from")
    while len(left) > 1:
        reached = {rate: _reached(replace(attack, steps=steps), release, rate, seed) for rate in left}
        left, steps = sorted(left, key=lambda rate: reached[rate])[: ceil(len(left) / 2)], 2 * steps
    return left[0]


def _reached(attack: SimuDy, release: KnowsTraining, rate: float, seed: int) -> float:
    training = attack.training or release.training
    guess = replace(attack, training=replace(training, optimizer=replace(training.optimizer, lr=rate)))
    try:
        found = guess.run(release, seed=seed).objective
    except Diverged:
        return inf
    return inf if found is None else found


def contributions(release: KnowsTraining, found: Reconstruction, *, seed: int = 0) -> Tensor:
    """How much each candidate pulls: the norm of the sum of its gradients over a training on all of them. Where there
    are more candidates than records, those that no record needs pull least."""
    if found.y is None:
        raise BadInput("the candidates must come with labels: a gradient needs them")
    training, data = release.training, Data(x=found.x, y=found.y, num_classes=release.num_classes)
    passed = training.trajectory(release.model, release.initial, data, seed=seed)
    gradient = training.gradient_of(release.model)
    norms = []
    for x, y in zip(found.x.split(1), found.y.split(1), strict=True):
        pulls = (gradient(params, x, y) for params in passed)
        total = reduce(lambda one, other: {name: g + other[name] for name, g in one.items()}, pulls)
        norms.append(torch.stack([g.square().sum() for g in total.values()]).sum().sqrt())
    return torch.stack(norms)


def count_needed(pulls: Tensor, labels: Tensor, *, seed: int = 0) -> "Count":
    """How many candidates are in the upper of two groups, by the logarithms of their pulls over the largest of their
    class: what records pull differs more between classes than between records that are needed and those that are not.

    The groups are those that explain most of the variance (Otsu 1979); 95 % of the samples drawn from the candidates
    with replacement lie within the bounds.
    """
    whole = len(pulls)
    if whole < 2:
        raise BadInput(f"`pulls` must be those of 2 candidates or more to fall into groups, got {whole}")
    tops = pulls.new_zeros(int(labels.max()) + 1).scatter_reduce(0, labels, pulls, "amax", include_self=False)
    relative = (pulls / tops[labels]).double().clamp_min(torch.finfo(torch.float64).tiny).log().cpu()
    generator = torch.Generator().manual_seed(seed)
    drawn = relative[torch.randint(whole, (_SAMPLES, whole), generator=generator)]
    low, high = _upper(drawn).double().quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    value = int(_upper(relative[None]))
    return Count(value=value, low=min(value, floor(low)), high=max(value, ceil(high)))


def _upper(values: Tensor) -> Tensor:
    """The size of the upper group, of each row."""
    falling = values.sort(descending=True).values
    above = torch.arange(1, falling.shape[1])
    sums, below = falling.cumsum(1), falling.shape[1] - above
    apart = sums[:, :-1] / above - (sums[:, -1:] - sums[:, :-1]) / below
    return (above * below * apart.square()).argmax(1) + 1
