"""What a federated client may do to a gradient before it sends it.

A defense is a pure map; what it draws, it draws from `seed`. The server knows the protocol, so a release states its
defenses, and an attack compares what was sent with its own gradients under `imitate`, which can be differentiated.
Larger batches defend as well, and are no map of a gradient: they are the size of the batch.
"""

from dataclasses import dataclass
from math import ceil, inf
from typing import Protocol, final

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.seeds import derive_seed
from remanence.training.clipping import clip_factors, scaled, squared_norms
from remanence.types import Params

_MOST_BITS = 16


class Defense(Protocol):
    def __call__(self, gradient: Params, *, seed: int) -> Params: ...

    def imitate(self, ours: Params, sent: Params) -> Params:
        """Of the server's own gradient what can be compared with what was sent."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class GaussianNoise:
    """Of so large a share of each tensor's norm: its standard deviation is that share of the root mean square entry."""

    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share < inf:
            raise BadInput(f"`share` of GaussianNoise must be 0 or more, got {self.share}: it is in units of the norm")

    def __call__(self, gradient: Params, *, seed: int) -> Params:
        generator = torch.Generator().manual_seed(seed)
        return {
            name: g + self.share * g.square().mean().sqrt() * torch.randn(g.shape, generator=generator).to(g)
            for name, g in gradient.items()
        }

    def imitate(self, ours: Params, sent: Params) -> Params:
        return ours


@final
@dataclass(frozen=True, kw_only=True)
class Clipping:
    """Of the whole gradient to a norm; DP-GD's acts on each record's."""

    norm: float

    def __post_init__(self) -> None:
        if not 0 < self.norm < inf:
            raise BadInput(f"`norm` of Clipping must be more than 0, got {self.norm}")

    def __call__(self, gradient: Params, *, seed: int) -> Params:
        return scaled(gradient, clip_factors(squared_norms(gradient, stacked=False), self.norm))

    def imitate(self, ours: Params, sent: Params) -> Params:
        return self(ours, seed=0)


@final
@dataclass(frozen=True, kw_only=True)
class TopK:
    """Of all entries of the gradient this share is sent, the largest by magnitude, and zeros for the others."""

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise BadInput(f"`share` of TopK must be more than 0 and at most 1, got {self.share}")

    def __call__(self, gradient: Params, *, seed: int) -> Params:
        sizes = torch.cat([g.flatten().abs() for g in gradient.values()])
        kept = torch.zeros_like(sizes)
        kept[sizes.topk(ceil(self.share * len(sizes)), sorted=False).indices] = 1
        masks = kept.split([g.numel() for g in gradient.values()])
        return {name: g * mask.view_as(g) for (name, g), mask in zip(gradient.items(), masks, strict=True)}

    def imitate(self, ours: Params, sent: Params) -> Params:
        """An entry that was not sent is no larger than the least that was: of ours only what is beyond that counts."""
        sizes = torch.cat([g.flatten().abs() for g in sent.values()])
        least = sizes.where(sizes > 0, inf).min()
        return {name: g.where(sent[name] != 0, g - g.clamp(-least, least)) for name, g in ours.items()}


@final
@dataclass(frozen=True, kw_only=True)
class Sign:
    """The sign of each entry, times the mean magnitude of its tensor."""

    def __call__(self, gradient: Params, *, seed: int) -> Params:
        return {name: g.sign() * g.abs().mean() for name, g in gradient.items()}

    def imitate(self, ours: Params, sent: Params) -> Params:
        """A sign without a jump."""
        means = {name: g.abs().mean().clamp_min(torch.finfo(g.dtype).tiny) for name, g in ours.items()}
        return {name: means[name] * torch.tanh(g / means[name]) for name, g in ours.items()}


@final
@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Of 2^bits levels, evenly spread from minus to plus the largest magnitude of a tensor, for each entry one of the
    two around it, drawn so that the mean over draws is the entry itself."""

    bits: int

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= _MOST_BITS:
            raise BadInput(f"`bits` of Quantization must be from 1 to {_MOST_BITS}, got {self.bits}")

    def __call__(self, gradient: Params, *, seed: int) -> Params:
        generator = torch.Generator().manual_seed(seed)
        return {name: self._levels(g, generator) for name, g in gradient.items()}

    def _levels(self, g: Tensor, generator: torch.Generator) -> Tensor:
        largest = g.abs().max().clamp_min(torch.finfo(g.dtype).tiny)
        step = 2 * largest / (2**self.bits - 1)
        place = (g + largest) / step + torch.rand(g.shape, generator=generator).to(g)
        levels: Tensor = place.floor().clamp(0, 2**self.bits - 1) * step - largest
        return levels

    def imitate(self, ours: Params, sent: Params) -> Params:
        return ours


def defended(gradient: Params, defenses: tuple[Defense, ...], *, seed: int) -> Params:
    """What is sent: the defenses one after the other, each with draws of its own."""
    for place, defense in enumerate(defenses):
        gradient = defense(gradient, seed=derive_seed(seed, "defense", place))
    return gradient
