"""What is measured of one layer: a number that is small for honest weights and large for those of a known trap.

Each function returns None where the layer is too small, or lacks what it needs, for the number to mean anything.
"""

from hashlib import blake2b

import torch
from torch import Tensor

from remanence.diagnostics.inspection.layers import Layer
from remanence.seeds import derive_seed

_MIN_ROWS = 8
_MIN_COLUMNS = 8  # rows of fewer are parallel by chance
_MIN_GRADED = 16
_MIN_NEURONS = 32
_MAX_ROWS = 2048  # all compared with one another; of more rows, fewer are compared with all
_MIN_SAMPLED = 512  # an error of a few percent
_AT_ONCE = 2048
_PARALLEL = 0.99  # cosine
_SINGLE = 0.99  # of a kernel's squared norm in one weight


def parallel_rows(layer: Layer) -> float | None:
    """The fraction of the rows that are parallel to another row, up to sign: an imprint module has one direction
    (Fowl et al. 2022). Of a wide layer it is that of a sample of the rows, compared with all."""
    rows = _nonzero(layer.rows)
    if len(rows) < _MIN_ROWS or rows.shape[1] < _MIN_COLUMNS:
        return None
    sampled = _unit(rows if len(rows) <= _MAX_ROWS else rows[_sample(rows)])
    parallel = torch.zeros(len(sampled), dtype=torch.int64, device=rows.device)
    for block in rows.split(_AT_ONCE):
        parallel += ((sampled @ _unit(block).T).abs() > _PARALLEL).sum(1)
    return float((parallel > 1).double().mean())  # each is parallel to itself


def _sample(rows: Tensor) -> Tensor:
    """The indices of random rows. The seed is of the weights: a server cannot arrange its rows around the sample, for
    it changes with them."""
    largest = rows.abs().amax(1).cpu()
    digest = blake2b(largest.numpy().tobytes(), digest_size=8).hexdigest()
    generator = torch.Generator().manual_seed(derive_seed(0, "rows", digest))
    count = max(_MIN_SAMPLED, _MAX_ROWS**2 // len(rows))
    return torch.randperm(len(rows), generator=generator)[:count].to(rows.device)


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows / rows.abs().amax(1, keepdim=True), dim=1)


def graded_biases(layer: Layer) -> float | None:
    """The rank correlation of the biases with their position: an imprint module's are quantiles in order. Of the last
    layer, whose classes may be sorted by how frequent they are, it means nothing."""
    if layer.bias is None or layer.is_last or len(layer.bias) < _MIN_GRADED:
        return None
    if len(layer.bias.unique()) < len(layer.bias) / 2:
        return None
    from scipy.stats import spearmanr

    return abs(float(spearmanr(layer.bias.numpy(), range(len(layer.bias))).statistic))


def equal_columns(layer: Layer) -> float | None:
    """The fraction of the inputs in the largest group that the layer treats alike: neurons with one and the same error
    share nothing but the record (Fowl et al. 2022, Wang et al. 2023)."""
    columns = _nonzero(layer.columns)
    if len(columns) < _MIN_ROWS:
        return None
    counts = columns.unique(dim=0, return_counts=True)[1]
    return float(counts.max()) / len(columns)


def rare_activation(layer: Layer) -> float | None:
    """How far, in standard deviations over the neurons of the first layer, their pre-activation of a grey record is
    below zero on average: trap weights fire for few records (Boenisch et al. 2023)."""
    rows = layer.rows
    if not layer.is_first or len(rows) < _MIN_NEURONS:
        return None
    norms = rows.norm(dim=1)
    bias = 0.0 if layer.bias is None else layer.bias
    depth = ((rows.sum(1) / 2 + bias) / norms)[norms > 0]
    std = float(depth.std()) if len(depth) >= _MIN_NEURONS else 0.0
    return -float(depth.mean()) / std if std > 0 else None


def dead_neurons(layer: Layer) -> float | None:
    """The fraction of the neurons that no input in [-1, 1] activates, for their bias is below minus the sum of their
    absolute weights: layers that let no gradient of other clients through (Pasquini et al. 2022)."""
    if layer.bias is None or layer.is_last or len(layer.bias) < _MIN_ROWS:
        return None
    return float((layer.bias < -layer.rows.abs().sum(1)).double().mean())


def gain(layer: Layer) -> float | None:
    """The root mean square norm of the rows: by how much the layer amplifies standardised inputs."""
    return float(layer.rows.square().sum(1).mean().sqrt())


def largest_bias(layer: Layer) -> float | None:
    """The largest absolute bias in units of the median norm of the rows that are not zero (class fishing, Wen et al.
    2022: the biases of all classes but one decide)."""
    rows = _nonzero(layer.rows)
    if layer.bias is None or not len(rows):
        return None
    return float(layer.bias.abs().max() / rows.norm(dim=1).median())


def outlier_row(layer: Layer) -> float | None:
    """The largest norm of a row over the second largest (feature fishing, Wen et al. 2022: one output is amplified)."""
    norms = _nonzero(layer.rows).norm(dim=1).sort(descending=True).values
    return float(norms[0] / norms[1]) if len(norms) > 2 else None


def identity_kernels(layer: Layer) -> float | None:
    """The fraction of the kernels that are one weight at one and the same position: convolutions that pass images on as
    they are (LOKI, Zhao et al. 2024)."""
    if layer.weight.ndim < 4 or layer.weight[0, 0].numel() < _MIN_COLUMNS or len(layer.weight) < 3:
        return None
    kernels = layer.weight.flatten(2).square()  # (outputs, inputs, kernel)
    total = kernels.sum((1, 2))
    kernels, total = kernels[total > 0], total[total > 0]
    if len(total) < 3:
        return None
    largest, index = kernels.flatten(1).max(1)
    positions = (index % kernels.shape[2])[largest > _SINGLE * total]
    return float(positions.bincount().max()) / len(total) if len(positions) else 0.0


def _nonzero(rows: Tensor) -> Tensor:
    return rows[rows.abs().amax(1) > 0]
