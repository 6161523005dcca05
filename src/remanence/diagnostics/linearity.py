"""How linear a training is: whether a record's gradient keeps its direction from epoch to epoch.

Tian et al., "Simulating Training Dynamics to Reconstruct Training Data from Deep Neural Networks" (ICLR 2025), call the
mean cosine M_lin. It takes the records, so only the owner can compute it.
"""

from functools import partial
from math import inf

import torch
from torch import Tensor
from torch.func import vmap

from remanence.engine import loss_gradient, trajectory
from remanence.errors import BadInput
from remanence.progress import SOON, track
from remanence.releases import Victim
from remanence.types import Caveat, concat

_LINEAR = 0.8  # MLPs of Tian et al. 2025 lie at 0.91 and above, their ResNet-18 at 0.60
_VALUES = 1 << 27  # of per-example gradients at a time


def gradient_linearity(victim: Victim, *, seed: int = 0) -> Tensor:
    """(records,): the mean cosine of a private record's gradients at the beginnings of any two epochs (M_lin).

    At one, the gradients of all epochs agree, and an attack that linearises the training has a chance; well below, only
    one that simulates it. `seed` shuffles mini-batches, because the victim does not hold the order of its own.
    """
    data, training = victim.private, victim.training
    if training.epochs < 2:
        raise BadInput(
            f"gradient_linearity() compares epochs, and `victim` was trained for {training.epochs}: train for more",
            code="unsupported-training",
            argument="victim",
        )
    params = trajectory(training, victim.model, victim.initial, concat([victim.fixed, data]), seed=seed)
    beginnings = params[:: len(params) // training.epochs]
    per_example = vmap(partial(loss_gradient, victim.model, loss=training.loss), in_dims=(None, 0, 0))
    size = max(1, _VALUES // sum(p.numel() for p in victim.model.parameters()))
    parts = list(zip(data.x.split(size), data.y.split(size), strict=True))
    found = []
    for x, y in track(parts, total=len(parts), label="how linear the training is", after=SOON):
        total = torch.zeros(())
        for at in beginnings:
            gradients = per_example(at, x[:, None], y[:, None])
            flat = torch.cat([g.flatten(1) for g in gradients.values()], dim=1)
            total = total.to(flat) + _unit(_unit(flat, inf), 2)  # the squares of tiny gradients would vanish
        # the sum of n unit vectors has the squared norm  n + 2 * (sum over pairs)
        found.append((total.square().sum(1) - len(beginnings)) / (len(beginnings) * (len(beginnings) - 1)))
    return torch.cat(found)


def linearity_caveat(mean: float) -> Caveat | None:
    """A caveat where the mean of `gradient_linearity` says that Linearised is not expected to work."""
    if mean >= _LINEAR:
        return None
    text = (
        f"A record's gradients at two epochs have a mean cosine of {mean:.2f}: training is far from linear. Expect "
        "little of Linearised; SimuDy, which simulates it, has a chance."
    )
    return Caveat(code="gradients-turn", text=text)


def _unit(vectors: Tensor, p: float) -> Tensor:
    """Rows of norm one; zero where a row is zero."""
    norms: Tensor = torch.linalg.vector_norm(vectors, p, dim=1, keepdim=True)
    return vectors / norms.clamp_min(torch.finfo(vectors.dtype).tiny)
