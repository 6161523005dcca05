"""How linear a training is: whether a record's gradient keeps its direction from epoch to epoch.

Tian et al., "Simulating Training Dynamics to Reconstruct Training Data from Deep Neural Networks" (ICLR 2025), call the
mean cosine M_lin. It takes the records, so only the owner can compute it.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from remanence.engine import engine_for, trajectory
from remanence.errors import BadInput
from remanence.progress import SOON, track
from remanence.releases import Victim
from remanence.types import Caveat, Params, concat

_LINEAR = 0.8  # MLPs of Tian et al. 2025 lie at 0.91 and above, their ResNet-18 at 0.60


def gradient_linearity(victim: Victim, *, seed: int = 0) -> Tensor:
    """(records,): the mean cosine of a private record's gradients at the beginnings of any two epochs (M_lin).

    At one, the gradients of all epochs agree, and an attack that linearises the training has a chance; well below, only
    one that simulates it. `seed` shuffles mini-batches, because the victim does not hold the order of its own.
    """
    data, training = victim.private, victim.training
    gradient = engine_for(victim.model, training, data.shape).gradient
    if training.epochs < 2:
        raise BadInput(
            f"gradient_linearity() compares epochs, and `victim` was trained for {training.epochs}: train for more",
            code="unsupported-training",
            argument="victim",
        )
    params = trajectory(training, victim.model, victim.initial, concat([victim.fixed, data]), seed=seed)
    beginnings = params[:: len(params) // training.epochs]
    pairs = zip(data.x.split(1), data.y.split(1), strict=True)
    each = track(pairs, total=len(data), label="how linear the training is", after=SOON)
    return torch.stack([_mean_cosine(gradient(at, x, y) for at in beginnings) for x, y in each])


def linearity_caveat(mean: float) -> Caveat | None:
    """A caveat where the mean of `gradient_linearity` says that Linearised is not expected to work."""
    if mean >= _LINEAR:
        return None
    text = (
        f"A record's gradients at two epochs have a mean cosine of {mean:.2f}: training is far from linear. Expect "
        "little of Linearised; SimuDy, which simulates it, has a chance."
    )
    return Caveat(code="gradients-turn", text=text)


def _mean_cosine(gradients: Iterable[Params]) -> Tensor:
    """The mean over all pairs: the sum of n unit vectors has the squared norm  n + 2 * (sum over pairs)."""
    count, total = 0, torch.zeros(())
    for each in gradients:
        flat = torch.cat([g.flatten() for g in each.values()])
        count, total = count + 1, total.to(flat) + flat / flat.norm().clamp_min(torch.finfo(flat.dtype).tiny)
    return (total.square().sum() - count) / (count * (count - 1))
