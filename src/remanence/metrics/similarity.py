"""The similarities by which a reconstruction is recognised, each for all pairs of candidates and records.

One score misses what another sees: noise hides from SSIM, a shift by two pixels from both SSIM and the squared error,
a mirror image from all of them, half a face from whole-image scores. The test of a leak (`exchangeability`) takes the
best of them, for private and held-out records alike, which keeps its level. Larger is more similar.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from math import cos, radians, sin
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from remanence.metrics.base import Metric
from remanence.metrics.lpips import LPIPS
from remanence.metrics.ssim import SKIMAGE, SSIM
from remanence.types import Data

_FLOOR = 1e-7  # of a squared error, which one matrix product in float32 does not resolve any finer
_NEARLY_ONE = 1 - 1e-6  # of a correlation
_SIDE = 48  # pixels at most of images that are aligned
_SHIFT = 2  # pixels at most
_DEGREES = (-10.0, 0.0, 10.0)
_EQUAL = 0.005  # of the range of a column: values no further apart are equal


@final
@dataclass(frozen=True, kw_only=True)
class Similarity:
    """A score of every candidate (m, ...) with every record (n, ...): (m, n), larger is more similar."""

    name: str
    pairwise: Callable[[Tensor, Tensor], Tensor] = field(repr=False)


def similarities(data: Data, *, perceptual: bool = False) -> tuple[Similarity, ...]:
    """The similarities for records like `data`: of pixels, structure, aligned images and halves, or of table rows;
    with `perceptual` LPIPS too, which needs a file. In another box than [0, 1] no value is on a scale of its own."""
    if not data.is_unit:
        return (STANDARDISED, ALIGNED, HALVES) if data.is_image else (STANDARDISED, DIRECTION, BY_COLUMN)
    if not data.is_image:
        return (PIXELS, COLUMNS)
    fits = min(data.shape[1:]) >= SKIMAGE.window
    structure = (of_metric(SSIM),) if fits else ()
    return (PIXELS, *structure, ALIGNED, HALVES, *((of_metric(LPIPS),) if perceptual else ()))


def of_metric(metric: Metric) -> Similarity:
    """A metric as a similarity."""

    def pairwise(candidates: Tensor, records: Tensor) -> Tensor:
        scores = metric.pairwise(candidates, records)
        return scores if metric.higher_is_better else -scores

    return Similarity(name=metric.name, pairwise=pairwise)


def _pixels(candidates: Tensor, records: Tensor) -> Tensor:
    """PSNR in dB, by one matrix product: it need not tell errors below 1e-7 apart."""
    centre = records.mean(0)
    a, b = (candidates - centre).flatten(1), (records - centre).flatten(1)
    squared = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    return -10 * (squared / a.shape[1]).clamp_min(_FLOOR).log10()


def _aligned(candidates: Tensor, records: Tensor) -> Tensor:
    """Fisher's z of the correlation, the largest over shifts, rotations and the mirror image of the candidate.

    A correlation does not change with brightness and contrast.
    """
    candidates, records = (_small(x) for x in (candidates, records))
    units, best = _unit(records).T, candidates.new_full((len(candidates), len(records)), -1.0)
    for mirrored, degrees in product((False, True), _DEGREES):
        for shifted in _shifted(turned(candidates, mirrored=mirrored, degrees=degrees)):
            torch.maximum(best, _unit(shifted) @ units, out=best)
    return _fisher(best)


def _halves(candidates: Tensor, records: Tensor) -> Tensor:
    """Fisher's z of the correlation of one half of the image, the largest of its four halves."""
    height, width = records.shape[2:]
    rows = (slice(0, height // 2), slice(height - height // 2, height))
    columns = (slice(0, width // 2), slice(width - width // 2, width))
    parts = [(row, slice(None)) for row in rows] + [(slice(None), column) for column in columns]
    best = candidates.new_full((len(candidates), len(records)), -1.0)
    for row, column in parts:
        a, b = (_unit(x[:, :, row, column]) for x in (candidates, records))
        torch.maximum(best, a @ b.T, out=best)
    return _fisher(best)


def _columns(candidates: Tensor, records: Tensor) -> Tensor:
    """The fraction of the values that are equal."""
    a, b = candidates.flatten(1), records.flatten(1)
    rows = [((row - b).abs() <= _EQUAL).to(b).mean(1) for row in a]
    return torch.stack(rows) if rows else b.new_empty(0, len(b))


def _standardised(candidates: Tensor, records: Tensor) -> Tensor:
    """Minus the mean squared error in dB, each column in units of its range."""
    a, b = _in_column_units(candidates, records)
    squared = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    return -10 * (squared / a.shape[1]).clamp_min(_FLOOR).log10().to(candidates)


def _direction(candidates: Tensor, records: Tensor) -> Tensor:
    """Fisher's z of the cosine between the deviations from a typical record, each column in units of its range: however
    far a candidate goes, it is the same."""
    a, b = (F.normalize(each, dim=1) for each in _in_column_units(candidates, records))
    return _fisher((a @ b.T).to(candidates))


def _by_column(candidates: Tensor, records: Tensor) -> Tensor:
    """Minus the squared error of each column in dB, in units of its range and no finer than 0.005 of it, averaged over
    the columns: some that are equal count, however wrong others are. How many are equal would be too coarse a score, in
    which one more by chance stands far out where nearly all pairs have none."""
    a, b = _in_column_units(candidates, records)
    rows = [-20 * ((row - b).abs() + _EQUAL).log10().mean(1) for row in a]
    return (torch.stack(rows) if rows else b.new_empty(0, len(b))).to(candidates)


def _in_column_units(candidates: Tensor, records: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates and records (n, columns) less the median of all records, over `column_ranges`; in float64, as outliers
    would leave nothing of the small differences of the others."""
    a, b = candidates.flatten(1).double(), records.flatten(1).double()
    centre, scale = b.median(0).values, column_ranges(b)
    return (a - centre) / scale, (b - centre) / scale


def column_ranges(records: Tensor) -> Tensor:
    """(columns,): the range of nine in ten of the records (n, ...) in each column, as outliers would make all others
    alike. Of columns where so many are equal it is the full range, and one where all are."""
    flat = records.flatten(1)
    tail = len(flat) // 20
    low, high = (flat.kthvalue(k, dim=0).values for k in (tail + 1, len(flat) - tail))
    usual, full = high - low, flat.amax(0) - flat.amin(0)
    ranges = torch.where(usual > 0, usual, full)
    return torch.where(ranges > 0, ranges, torch.ones_like(ranges))


def turned(x: Tensor, *, mirrored: bool = False, degrees: float = 0.0) -> Tensor:
    """Images (n, channels, height, width) mirrored left to right, then rotated; their borders are continued."""
    x = x.flip(3) if mirrored else x
    if not degrees:
        return x
    angle = radians(degrees)
    matrix = x.new_tensor([[cos(angle), -sin(angle), 0.0], [sin(angle), cos(angle), 0.0]])
    grid = F.affine_grid(matrix[None], [1, *x.shape[1:]], align_corners=False)
    return F.grid_sample(x, grid.expand(len(x), -1, -1, -1), padding_mode="border", align_corners=False)


def _shifted(x: Tensor) -> Iterator[Tensor]:
    """The images shifted by up to two pixels in each direction; their borders are continued."""
    height, width = x.shape[2:]
    padded = F.pad(x, (_SHIFT,) * 4, mode="replicate")
    for top, left in product(range(2 * _SHIFT + 1), repeat=2):
        yield padded[:, :, top : top + height, left : left + width]


def _small(x: Tensor) -> Tensor:
    """Images of at most 48 pixels a side."""
    scale = _SIDE / max(x.shape[2:])
    if scale >= 1:
        return x
    size = [max(1, round(side * scale)) for side in x.shape[2:]]
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False, antialias=True)


def _unit(x: Tensor) -> Tensor:
    """(n, values), centred and of norm 1: inner products are correlations; 0 where all values are equal."""
    flat = x.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    norm = centred.square().sum(1, keepdim=True).sqrt()
    return centred / norm.masked_fill(norm <= 1e-5 * flat.shape[1] ** 0.5, torch.inf)


def _fisher(correlation: Tensor) -> Tensor:
    """Fisher's z, which spreads the correlations near one."""
    return correlation.clamp(-_NEARLY_ONE, _NEARLY_ONE).atanh()


PIXELS = Similarity(name="pixels", pairwise=_pixels)
ALIGNED = Similarity(name="aligned", pairwise=_aligned)
HALVES = Similarity(name="halves", pairwise=_halves)
COLUMNS = Similarity(name="columns", pairwise=_columns)
STANDARDISED = Similarity(name="standardised", pairwise=_standardised)
DIRECTION = Similarity(name="direction", pairwise=_direction)
BY_COLUMN = Similarity(name="columns", pairwise=_by_column)
