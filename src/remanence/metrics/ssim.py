"""Structural similarity under the two conventions that the papers use, for given pairs and for all pairs.

Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment", IEEE TIP 2004, equation 13:

    SSIM = (2 μa μb + C1)(2 cov + C2) / ((μa² + μb² + C1)(σa² + σb² + C2)),   C1 = (0.01 R)², C2 = (0.03 R)²

averaged over window positions and channels. SimuDy uses scikit-image's, Buzaglo et al. kornia's; the same pair
differs by 0.1 or more between them.

Given pairs take sums over windows, one axis after the other; in float64, as E[ab] - E[a]E[b] cancels. For all pairs,
with cov the inner product of the centred, weighted windows, both sides of the fraction are sums of products of a factor
of a and a factor of b: at one position two matrix products serve all pairs, and what is centred keeps its digits in
float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor

from remanence.errors import BadInput
from remanence.metrics.base import Metric, paired, pairwise
from remanence.progress import track

# Values of the pairs that are compared at a time where each truth record has its own candidate: what the inner cache of
# a CPU holds, one pair after the other where images are large.
_CPU_BLOCK, _DEVICE_BLOCK = 2**15, 2**24
_TILE = 1024  # images per side of a tile
# Scores at once. Batches of one position fit the inner caches but start and stop the CPU's threads more often: no
# faster on one thread, half as fast on two of a busy machine. Accelerators want more still.
_CPU_SCORES, _DEVICE_SCORES = 2**22, 2**24
_FLOOR = 1e-12  # C1 and C2 of a constant truth, R = 0: no 8-bit image comes near, and 0/0 takes its limit

_Factors: TypeAlias = tuple[Tensor, Tensor]  # of numerator and denominator: (positions, images, terms) each


@final
@dataclass(frozen=True, kw_only=True)
class Convention:
    """One published convention of SSIM."""

    name: str
    window: int
    sigma: float | None  # of the Gaussian weights; None: uniform weights
    sample: bool  # variances by N - 1 instead of N
    reflect: bool  # pad, so that every pixel has a window; otherwise only windows inside the image count
    peak: float | None  # R; None takes the range of each truth image
    eps: float = 0.0  # added to the denominator

    def paired(self, candidates: Tensor, truth: Tensor) -> Tensor:
        self._check_size(truth)
        values = _CPU_BLOCK if truth.device.type == "cpu" else _DEVICE_BLOCK
        size = max(1, values // max(1, truth[0].numel() if len(truth) else 1))
        blocks = zip(candidates.split(size), truth.split(size), strict=True)
        return torch.cat([self._block(a, b) for a, b in blocks])

    def pairwise(self, candidates: Tensor, truth: Tensor) -> Tensor:
        self._check_size(truth)
        scores = truth.new_empty(len(candidates), len(truth))
        for row, a in zip(scores.split(_TILE), candidates.split(_TILE), strict=True):
            for tile, b in zip(row.split(_TILE, dim=1), truth.split(_TILE), strict=True):
                tile.copy_(self._tile(a, b))
        return scores

    def _block(self, candidates: Tensor, truth: Tensor) -> Tensor:
        """(n,): equation 13 as printed."""
        c1, c2 = (c.double()[:, None, None, None] for c in self._constants(truth))
        a, b = candidates.double(), truth.double()
        centre_a, centre_b = (x.mean((1, 2, 3), keepdim=True) for x in (a, b))  # constant images have no variance
        a, b = a - centre_a, b - centre_b
        moments = self._smoothed(torch.cat([a, b, a.square(), b.square(), a * b])).chunk(5)
        mean_a, mean_b = moments[:2]
        squares = mean_a.square(), mean_b.square(), mean_a * mean_b
        unbiased = self.window**2 / (self.window**2 - 1) if self.sample else 1.0
        va, vb, cov = ((m - square) * unbiased for m, square in zip(moments[2:], squares, strict=True))
        mean_a, mean_b = mean_a + centre_a, mean_b + centre_b
        above = (2.0 * mean_a * mean_b + c1) * (2.0 * cov + c2)
        below = (mean_a.square() + mean_b.square() + c1) * (va + vb + c2) + self.eps
        return (above / below).mean((1, 2, 3)).to(truth)

    def _smoothed(self, x: Tensor) -> Tensor:
        """The weighted means of the windows at all positions, along one axis after the other."""
        margin = self.window // 2
        x = F.pad(x, (margin,) * 4, mode="reflect") if self.reflect else x
        for dim in (2, 3):
            extent = x.shape[dim] - self.window + 1
            shifted = [x.narrow(dim, offset, extent) for offset in range(self.window)]
            total = torch.zeros_like(shifted[0])
            for each, weight in zip(shifted, self._line(x).tolist(), strict=True):
                total.add_(each, alpha=weight)
            x = total
        return x

    def _tile(self, candidates: Tensor, truth: Tensor) -> Tensor:
        """(m, n): equation 13 expanded, numerator and denominator one matrix product each."""
        capacity = _CPU_SCORES if truth.device.type == "cpu" else _DEVICE_SCORES
        batch = max(1, min(capacity // max(1, len(candidates) * len(truth)), self._positions(truth)))
        total = truth.new_zeros(batch, len(candidates), len(truth))
        rows = zip(self._candidate_factors(candidates), self._truth_factors(truth), strict=True)
        for a, b in track(rows, total=self._extent(truth.shape[2]), label=f"{self.name} of all pairs"):
            parts = (t.split(batch) for t in (*a, *b))
            for above_a, below_a, above_b, below_b in zip(*parts, strict=True):
                above, below = torch.bmm(above_a, above_b.mT), torch.bmm(below_a, below_b.mT)
                total[: len(above)].addcdiv_(above, below)
        return total.sum(0).div_(self._positions(truth))

    def _candidate_factors(self, x: Tensor) -> Iterator[_Factors]:
        """The left factors; `_truth_factors` are the right ones, in the same order of terms."""
        for mean, variance, deviation in self._rows(x):
            structure = F.pad(2.0 * deviation, (0, 1), value=1.0)
            above = torch.cat((2.0 * mean.unsqueeze(2) * structure, structure), 2)
            luminance = mean.square()
            yield above, torch.stack((luminance * variance, luminance, variance, torch.ones_like(mean)), 2)

    def _truth_factors(self, x: Tensor) -> Iterator[_Factors]:
        c1, c2 = self._constants(x)
        for mean, variance, deviation in self._rows(x):
            structure = torch.cat((deviation, c2.expand_as(mean).unsqueeze(2)), 2)
            above = torch.cat((mean.unsqueeze(2) * structure, c1.unsqueeze(1) * structure), 2)
            luminance, contrast = mean.square() + c1, variance + c2
            below = (torch.ones_like(mean), contrast, luminance, luminance * contrast + self.eps)
            yield above, torch.stack(below, 2)

    def _rows(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Mean, variance and deviations of the windows, one row of positions after the other to bound the memory."""
        margin = self.window // 2
        padded = F.pad(x, (margin,) * 4, mode="reflect") if self.reflect else x
        weight = self._weight(x)
        # The unbiased moments of a box are the biased ones times N/(N - 1), variance and covariance alike.
        scale = (weight * self.window**2 / (self.window**2 - 1) if self.sample else weight).sqrt()
        for top in range(padded.shape[2] - self.window + 1):
            strip = padded[:, :, top : top + self.window].unfold(3, self.window, 1)  # n, channel, y, position, x
            windows = strip.permute(1, 3, 0, 2, 4).flatten(3).flatten(0, 1)
            mean = windows @ weight
            deviation = (windows - mean.unsqueeze(2)).mul_(scale)
            yield mean, deviation.square().sum(2), deviation

    def _weight(self, like: Tensor) -> Tensor:
        line = self._line(like).to(like.device)
        return torch.outer(line, line).flatten()

    def _line(self, like: Tensor) -> Tensor:
        """(window,): the weights along one axis, on the CPU."""
        offset = torch.arange(self.window, dtype=like.dtype) - self.window // 2
        line = torch.ones_like(offset) if self.sigma is None else (-offset.square() / (2 * self.sigma**2)).exp()
        return line / line.sum()

    def _constants(self, truth: Tensor) -> tuple[Tensor, Tensor]:
        flat = truth.flatten(1)
        r = flat.amax(1) - flat.amin(1) if self.peak is None else flat.new_full((len(flat),), self.peak)
        return (0.01 * r).square().clamp(min=_FLOOR), (0.03 * r).square().clamp(min=_FLOOR)

    def _positions(self, x: Tensor) -> int:
        channels, height, width = x.shape[1:]
        return int(channels * self._extent(height) * self._extent(width))

    def _extent(self, pixels: int) -> int:
        """The number of window positions along that many pixels."""
        return pixels if self.reflect else pixels - self.window + 1

    def _check_size(self, x: Tensor) -> None:
        if x.ndim != 4 or min(x.shape[2:]) < self.window:
            message = (
                f"the metric `{self.name}` needs images of at least {self.window}x{self.window} pixels, "
                f"got records of shape {tuple(x.shape[1:])}: score these with `mse` or `ncc`, "
                "match them with `nearest_ncc` or `hungarian`"
            )
            raise BadInput(message, code="shape-mismatch", argument="truth")


SKIMAGE = Convention(name="ssim", window=7, sigma=None, sample=True, reflect=False, peak=None)
KORNIA = Convention(name="ssim3", window=3, sigma=1.5, sample=False, reflect=True, peak=1.0, eps=1e-12)


@paired
def _ssim(candidates: Tensor, truth: Tensor) -> Tensor:
    return SKIMAGE.paired(candidates, truth)


@pairwise
def _ssim_matrix(candidates: Tensor, truth: Tensor) -> Tensor:
    return SKIMAGE.pairwise(candidates, truth)


@paired
def _ssim3(candidates: Tensor, truth: Tensor) -> Tensor:
    return KORNIA.paired(candidates, truth)


@pairwise
def _ssim3_matrix(candidates: Tensor, truth: Tensor) -> Tensor:
    return KORNIA.pairwise(candidates, truth)


SSIM = Metric(name="ssim", paired=_ssim, pairwise=_ssim_matrix, higher_is_better=True, needs_images=True)
SSIM3 = Metric(
    name="ssim3",
    paired=_ssim3,
    pairwise=_ssim3_matrix,
    higher_is_better=True,
    needs_images=True,
    good=0.4,  # Buzaglo et al. 2023 count a training image as reconstructed above this
)
