"""What SimuDy's attacker may not know: the training, the labels and the number of records (Tian et al. 2025)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import ceil, floor, inf
from typing import final

import torch
from torch import Tensor

from remanence.attacks.finetuning.simudy import SimuDy
from remanence.attacks.gradients.labels import infer_labels
from remanence.bounds import sample
from remanence.engine import engine_for, trajectory
from remanence.errors import BadInput, Diverged
from remanence.releases import KnowsTraining, LocalUpdate, require
from remanence.training import Training
from remanence.types import Data, Reconstruction

_SAMPLES = 1000  # of the candidates with replacement, for an interval
_NOISE = 256  # random records by which labels are inferred where none are given


@final
@dataclass(frozen=True, kw_only=True)
class Count:
    """An estimated number of records, with a 95 % interval."""

    value: int
    low: int
    high: int


def find_training(attack: SimuDy, release: KnowsTraining, trainings: Sequence[Training], *, seed: int) -> Training:
    """The training with the lowest objective, of those that differ in what is not known: the learning rate, the batch
    size, the epochs. The release's own is not used.

    Successive halving: each gets the steps of `attack.search`, then the better half twice as many, until one remains.
    The distance should depend on lengths, as `L2()` does: the direction alone says less. Epochs are identified only as
    far as the learning rate does not make up for them.
    """
    left, steps = list(dict.fromkeys(trainings)), attack.search.steps
    if not left:
        raise BadInput("there is no training to choose from: give one or more", code="empty", argument="trainings")
    while len(left) > 1:
        search = replace(
            attack,
            search=replace(attack.search, steps=steps),
            start=None,
            simulation=replace(attack.simulation, training=None),
        )
        reached = {each: _reached(search, replace(release, training=each), seed) for each in left}
        left, steps = sorted(left, key=lambda each: reached[each])[: ceil(len(left) / 2)], 2 * steps
    return left[0]


def find_rate(attack: SimuDy, release: KnowsTraining, rates: Sequence[float], *, seed: int) -> float:
    """The learning rate with the lowest objective, by `find_training`."""
    usual = attack.simulation.training or release.training
    trainings = [replace(usual, optimizer=replace(usual.optimizer, lr=rate)) for rate in rates]
    return find_training(attack, release, trainings, seed=seed).optimizer.lr


def _reached(attack: SimuDy, release: KnowsTraining, seed: int) -> float:
    try:
        found = attack.run(release, seed=seed).objective
    except Diverged:
        return inf
    return inf if found is None else found


def find_labels(
    release: KnowsTraining, count: int, *, looks_like: Tensor | None = None, seed: int = 0
) -> tuple[int, ...]:
    """The labels of `count` records that were trained on at full batch by SGD, by how far the last bias moved: as from
    the update of a federated client, see `infer_labels`. `looks_like` may be candidates that a search has found with
    other labels; noise is taken where there are none."""
    require(release, KnowsTraining, by="find_labels")
    sent = LocalUpdate(
        model=release.model,
        at=release.initial,
        update={name: end - release.initial[name] for name, end in release.final.items()},
        labels=None,
        batch_size=count,
        shape=release.shape,
        bounds=release.bounds,
        training=release.training,
    )
    if looks_like is None:
        generator = torch.Generator().manual_seed(seed)
        looks_like = sample(_NOISE, *release.shape, bounds=release.bounds, generator=generator)
    return tuple(infer_labels(sent, looks_like).tolist())


def contributions(release: KnowsTraining, found: Reconstruction, *, seed: int = 0) -> Tensor:
    """The contribution (n,) of each candidate: the norm of the sum of its gradients over a training on all of them.
    Where there are more candidates than records, those that match no record contribute least."""
    if found.y is None:
        problem = "the candidates must come with labels: a gradient needs them"
        raise BadInput(problem, code="not-enough-knowledge", argument="found")
    training, classes = release.training, release.num_classes
    data = Data(x=found.x, y=found.y, num_classes=classes, bounds=release.bounds)
    steps = trajectory(training, release.model, release.initial, data, seed=seed)
    gradient = engine_for(release.model, training, release.shape).gradient
    norms = []
    for x, y in zip(found.x.split(1), found.y.split(1), strict=True):
        gradients = (gradient(params, x, y) for params in steps)
        total = reduce(lambda one, other: {name: g + other[name] for name, g in one.items()}, gradients)
        norms.append(torch.stack([g.square().sum() for g in total.values()]).sum().sqrt())
    return torch.stack(norms)


def count_needed(norms: Tensor, labels: Tensor, *, seed: int = 0) -> "Count":
    """The number of candidates in the upper of two groups, by the logarithms of their `contributions` over the largest
    of their class: these differ more between classes than between candidates that match a record and others.

    The groups are those that explain most of the variance (Otsu 1979); the interval is a bootstrap's.
    """
    total = len(norms)
    if total < 2:
        problem = f"`norms` must be those of 2 candidates or more to fall into groups, got {total}"
        raise BadInput(problem, code="empty", argument="norms")
    largest = norms.new_zeros(int(labels.max()) + 1).scatter_reduce(0, labels, norms, "amax", include_self=False)
    relative = (norms / largest[labels]).double().clamp_min(torch.finfo(torch.float64).tiny).log().cpu()
    generator = torch.Generator().manual_seed(seed)
    samples = relative[torch.randint(total, (_SAMPLES, total), generator=generator)]
    low, high = _upper(samples).double().quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    value = int(_upper(relative[None]))
    return Count(value=value, low=min(value, floor(low)), high=max(value, ceil(high)))


def _upper(values: Tensor) -> Tensor:
    """The size of the upper group in each row."""
    falling = values.sort(descending=True).values
    above = torch.arange(1, falling.shape[1])
    sums, below = falling.cumsum(1), falling.shape[1] - above
    difference = sums[:, :-1] / above - (sums[:, -1:] - sums[:, :-1]) / below
    return (above * below * difference.square()).argmax(1) + 1
