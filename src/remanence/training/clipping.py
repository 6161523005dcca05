"""Gradients that are made shorter: a record's, a step's, or those of each model in a stack."""

import torch
from torch import Tensor

from remanence.types import Params


def clip_factors(squares: Tensor, clip: float) -> Tensor:
    """What to multiply gradients with, given the squares of their norms."""
    return (clip / squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()).clamp_max(1.0)


def squared_norms(grads: Params, *, stacked: bool) -> Tensor:
    """Of all weights together, in a stack one for each model."""
    rows = [g[..., None].flatten(1) if stacked else g.reshape(1, -1) for g in grads.values()]
    return torch.stack([row.square().sum(1) for row in rows]).sum(0)


def times(grads: Params, factors: Tensor) -> Params:
    """A factor for each model; without a stack it is one."""
    return {name: (g.reshape(len(factors), -1) * factors[:, None]).view_as(g) for name, g in grads.items()}
