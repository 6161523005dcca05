"""Defenses: what a federated client may do to a gradient before it sends it.

A defense is a pure function of the gradient and `seed`. It computes in float64, and what it sends is rounded to the
dtype of the gradient, after the noise, so that rounding spends no privacy. The server knows the protocol, so a release
states its defenses, and an attack compares what was sent with its own gradients under `imitate`, which is
differentiable. Larger batches defend as well; they are set by the size of the batch.
"""

from dataclasses import dataclass
from math import ceil, inf, sqrt
from typing import Protocol, final

import torch
from torch import Tensor

from remanence.errors import BadInput, check_above, check_min
from remanence.seeds import derive_seed
from remanence.training.clipping import clip_factors, scaled, squared_norms
from remanence.training.dp import DELTA, check_delta, noise_for
from remanence.types import Params

__all__ = ["Clipping", "Defense", "GaussianNoise", "LocalDP", "Quantization", "Sign", "TopK", "defended"]

_MAX_BITS = 16


class Defense(Protocol):
    """A transformation of a gradient by the client, and a differentiable model of it for the attacker."""

    def __call__(self, gradient: Params, *, seed: int) -> Params: ...

    def imitate(self, ours: Params, sent: Params) -> Params:
        """The attacker's gradient `ours`, transformed so that it can be compared with what was `sent`."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class GaussianNoise:
    """Additive noise whose standard deviation is `relative_std` times the root mean square entry of each tensor."""

    relative_std: float

    def __post_init__(self) -> None:
        check_min(self, relative_std=0)

    def __call__(self, gradient: Params, *, seed: int) -> Params:
        generator = torch.Generator().manual_seed(seed)
        exact = _double(gradient)
        stds = {name: self.relative_std * float(g.square().mean().sqrt()) for name, g in exact.items()}
        noisy = {name: g + stds[name] * torch.randn(g.shape, generator=generator).to(g) for name, g in exact.items()}
        return _rounded(noisy, gradient)

    def imitate(self, ours: Params, sent: Params) -> Params:
        return ours


@final
@dataclass(frozen=True, kw_only=True)
class Clipping:
    """Clipping of the gradient of the batch to `norm`; that of DP-GD acts on the gradient of each record instead."""

    norm: float

    def __post_init__(self) -> None:
        check_above(self, norm=0)

    def __call__(self, gradient: Params, *, seed: int) -> Params:
        return _rounded(self.imitate(_double(gradient), gradient), gradient)

    def imitate(self, ours: Params, sent: Params) -> Params:
        return scaled(ours, clip_factors(squared_norms(ours, stacked=False), self.norm))


@final
@dataclass(frozen=True, kw_only=True)
class LocalDP:
    """Local differential privacy: the update is clipped to `norm` and the Gaussian mechanism makes any two updates of
    one client (epsilon, delta)-indistinguishable, which differ by twice that norm at the most."""

    epsilon: float
    norm: float | None = None  # of clipping; None: the update's own, which the guarantee takes for public
    delta: float = DELTA

    def __post_init__(self) -> None:
        check_above(self, epsilon=0)
        check_delta(self.delta)
        if self.norm is not None:
            check_above(self, norm=0)

    def __call__(self, gradient: Params, *, seed: int) -> Params:
        generator = torch.Generator().manual_seed(seed)
        exact = _double(gradient)
        std = self._noise * (float(squared_norms(exact, stacked=False).sqrt()) if self.norm is None else self.norm)
        clipped = self.imitate(exact, exact)
        noisy = {name: g + std * torch.randn(g.shape, generator=generator).to(g) for name, g in clipped.items()}
        return _rounded(noisy, gradient)

    def imitate(self, ours: Params, sent: Params) -> Params:
        return ours if self.norm is None else Clipping(norm=self.norm).imitate(ours, sent)

    def noise_std(self, sent: Params) -> float:
        """The standard deviation of the noise in what was `sent`; of an update's own norm it is estimated."""
        if self.norm is not None:
            return self._noise * self.norm
        entries = sum(g.numel() for g in sent.values())
        return self._noise * sqrt(float(squared_norms(_double(sent), stacked=False)) / (1 + entries * self._noise**2))

    @property
    def _noise(self) -> float:
        """The standard deviation of the noise over the norm."""
        return 2 * noise_for(self.epsilon, steps=1, delta=self.delta)


@final
@dataclass(frozen=True, kw_only=True)
class TopK:
    """Sparsification: this `fraction` of all entries is sent, the largest by magnitude, and zeros for the others."""

    fraction: float

    def __post_init__(self) -> None:
        check_above(self, fraction=0)
        if self.fraction > 1:
            raise BadInput(
                f"`fraction` of TopK must be at most 1, got {self.fraction}", code="out-of-range", argument="fraction"
            )

    def __call__(self, gradient: Params, *, seed: int) -> Params:
        sizes = torch.cat([g.flatten().abs() for g in gradient.values()])
        selected = torch.zeros_like(sizes)
        selected[sizes.topk(ceil(self.fraction * len(sizes)), sorted=False).indices] = 1
        masks = selected.split([g.numel() for g in gradient.values()])
        return {name: g * mask.view_as(g) for (name, g), mask in zip(gradient.items(), masks, strict=True)}

    def imitate(self, ours: Params, sent: Params) -> Params:
        """Soft thresholding: an entry that was not sent is no larger than the smallest that was, so only what exceeds
        that threshold differs."""
        sizes = torch.cat([g.flatten().abs() for g in sent.values()])
        threshold = sizes.where(sizes > 0, inf).min()
        return {name: g.where(sent[name] != 0, g - g.clamp(-threshold, threshold)) for name, g in ours.items()}


@final
@dataclass(frozen=True, kw_only=True)
class Sign:
    """The sign of each entry, times the mean magnitude of its tensor."""

    def __call__(self, gradient: Params, *, seed: int) -> Params:
        return _rounded({name: g.sign() * g.abs().mean() for name, g in _double(gradient).items()}, gradient)

    def imitate(self, ours: Params, sent: Params) -> Params:
        """A smooth sign, so that the comparison has a gradient."""
        means = {name: (mean := g.abs().mean()).where(mean > 0, 1) for name, g in ours.items()}
        return {name: means[name] * torch.tanh(g / means[name]) for name, g in ours.items()}


@final
@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Unbiased stochastic rounding of each entry to 2^bits levels, evenly spaced from minus to plus the largest
    magnitude of its tensor but for their rounding to its dtype; what `TopK` did not send before stays zero."""

    bits: int

    def __post_init__(self) -> None:
        check_min(self, bits=1)
        if self.bits > _MAX_BITS:
            message = f"`bits` of Quantization must be at most {_MAX_BITS}, got {self.bits}"
            raise BadInput(message, code="out-of-range", argument="bits")

    def __call__(self, gradient: Params, *, seed: int) -> Params:
        generator = torch.Generator().manual_seed(seed)
        return {name: self._levels(g, generator) for name, g in gradient.items()}

    def _levels(self, g: Tensor, generator: torch.Generator) -> Tensor:
        uniform = torch.rand(g.shape, generator=generator).to(g.device, torch.float64)
        if not bool(g.any()):
            return g.clone()
        exact = g.double().contiguous()
        levels = torch.linspace(-1, 1, 2**self.bits, dtype=torch.float64).to(g.device) * exact.abs().max()
        levels = levels.to(g.dtype).double().unique()  # those that can be sent
        below = (torch.searchsorted(levels, exact, right=True) - 1).clamp(0, len(levels) - 2)
        low, high = levels[below], levels[below + 1]
        return torch.where((exact - low) / (high - low) + uniform >= 1, high, low).to(g.dtype)

    def imitate(self, ours: Params, sent: Params) -> Params:
        return ours


def _double(gradient: Params) -> Params:
    return {name: g.double() for name, g in gradient.items()}


def _rounded(exact: Params, gradient: Params) -> Params:
    """In the dtypes of the `gradient`."""
    return {name: exact[name].to(g.dtype) for name, g in gradient.items()}


def defended(gradient: Params, defenses: tuple[Defense, ...], *, seed: int) -> Params:
    """The gradient after all `defenses`, one after the other, each with a seed of its own. Of a sparse gradient the
    client quantises the entries that it sends, for there is no level at zero."""
    for index, defense in enumerate(defenses):
        before, gradient = gradient, defense(gradient, seed=derive_seed(seed, "defence", index))
        if isinstance(defense, Quantization) and any(isinstance(each, TopK) for each in defenses[:index]):
            gradient = {name: g.where(before[name] != 0, 0) for name, g in gradient.items()}
    return gradient
