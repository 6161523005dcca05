"""Clipping of gradients by their norm: for each record, for a step, or for each model of a stack."""

import torch
from torch import Tensor

from remanence.types import Params


def clip_factors(squared_norms: Tensor, clip: float) -> Tensor:
    """The factors min(1, clip / norm) that clip gradients with these squared norms."""
    return (clip / squared_norms.clamp_min(torch.finfo(squared_norms.dtype).tiny).sqrt()).clamp_max(1.0)


def squared_norms(grads: Params, *, stacked: bool) -> Tensor:
    """The squared norm over all parameters, of shape (1,), or (models,) for gradients that are stacked; that of half
    precision in float32, whose range it is sure to lie in."""
    rows = [g[..., None].flatten(1) if stacked else g.reshape(1, -1) for g in grads.values()]
    return torch.stack([_single(row).square().sum(1) for row in rows]).sum(0)


def scaled(grads: Params, factors: Tensor) -> Params:
    """The gradients times `factors`, of shape (1,), or (models,) for gradients that are stacked."""
    return {name: (g.reshape(len(factors), -1) * factors[:, None]).view_as(g).to(g.dtype) for name, g in grads.items()}


def _single(g: Tensor) -> Tensor:
    return g.to(torch.promote_types(g.dtype, torch.float32))
