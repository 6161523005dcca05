"""Pixelwise metrics: mean squared and absolute error, PSNR, normalised cross-correlation and cosine similarity.

They serve images (n, channels, height, width) and table rows (n, features); a row counts as one channel.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from remanence.metrics.base import Metric, paired, pairwise

PSNR_CAP = 100.0  # dB: identical records would score infinity, and one of them would dominate every mean


@paired
def _mse(candidates: Tensor, truth: Tensor) -> Tensor:
    return (candidates - truth).square().flatten(1).mean(1)


@pairwise
def _mse_matrix(candidates: Tensor, truth: Tensor) -> Tensor:
    a, b = candidates.flatten(1), truth.flatten(1)
    # |a|² + |b|² - 2ab by one matrix product is faster but loses the small errors, the ones an audit looks for.
    root = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    return root.square_().div_(a.shape[1])


@paired
def _mae(candidates: Tensor, truth: Tensor) -> Tensor:
    return (candidates - truth).abs().flatten(1).mean(1)


@pairwise
def _mae_matrix(candidates: Tensor, truth: Tensor) -> Tensor:
    a, b = candidates.flatten(1), truth.flatten(1)
    return torch.cdist(a, b, p=1.0).div_(a.shape[1])


@paired
def _mae_mse(candidates: Tensor, truth: Tensor) -> Tensor:
    return _mae(candidates, truth) + _mse(candidates, truth)


@pairwise
def _mae_mse_matrix(candidates: Tensor, truth: Tensor) -> Tensor:
    return _mae_matrix(candidates, truth) + _mse_matrix(candidates, truth)


@paired
def _psnr(candidates: Tensor, truth: Tensor) -> Tensor:
    return _decibel(_mse(candidates, truth))


@pairwise
def _psnr_matrix(candidates: Tensor, truth: Tensor) -> Tensor:
    return _decibel(_mse_matrix(candidates, truth))


def _decibel(mse: Tensor) -> Tensor:
    return -10.0 * mse.clamp(min=10.0 ** (-PSNR_CAP / 10.0)).log10()


@paired
def _ncc(candidates: Tensor, truth: Tensor) -> Tensor:
    products = _unit_channels(candidates) * _unit_channels(truth)
    return products.sum(2).mean(1).clamp(-1.0, 1.0)


@pairwise
def _ncc_matrix(candidates: Tensor, truth: Tensor) -> Tensor:
    a, b = _unit_channels(candidates), _unit_channels(truth)
    return (a.flatten(1) @ b.flatten(1).T).div_(a.shape[1]).clamp_(-1.0, 1.0)


@paired
def _cosine(candidates: Tensor, truth: Tensor) -> Tensor:
    return (_unit_records(candidates) * _unit_records(truth)).sum(1).clamp(-1.0, 1.0)


@pairwise
def _cosine_matrix(candidates: Tensor, truth: Tensor) -> Tensor:
    return (_unit_records(candidates) @ _unit_records(truth).T).clamp_(-1.0, 1.0)


def _unit_records(x: Tensor) -> Tensor:
    """(n, values), each of norm 1; a record of zeros has no direction, and stays."""
    flat = x.flatten(1)
    norm: Tensor = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return flat / norm.masked_fill(norm == 0, torch.inf)


def _unit_channels(x: Tensor) -> Tensor:
    """(n, channels, pixels), each channel centred and of norm 1: their inner products are correlations."""
    channels = _channels(x)
    centred = channels - channels.mean(2, keepdim=True)
    norm = centred.square().sum(2, keepdim=True).sqrt()
    # A constant channel has no direction; what rounding leaves of it must not be blown up to one.
    peak = channels.abs().amax(2, keepdim=True)
    rounding = 8.0 * torch.finfo(x.dtype).eps * channels.shape[2] ** 0.5 * peak
    return centred / norm.masked_fill(norm <= rounding, torch.inf)


def _channels(x: Tensor) -> Tensor:
    return x.flatten(2) if x.ndim == 4 else x.unsqueeze(1)


@pairwise
def ncc_distance(candidates: Tensor, truth: Tensor) -> Tensor:
    """Squared distance between records standardised per channel (ddof 1), for every pair: (m, n).

    Written through the correlation, d = 2(N - C)(1 - ncc). For a constant channel, where the reference gives NaN,
    this counts the correlation as 0. Standardising it to zeros would put a blank candidate at N - C from everything,
    nearer than most images are to each other, and it would win every search for the nearest.
    """
    channels = _channels(truth)
    freedom = channels.shape[1] * (channels.shape[2] - 1)
    return (1.0 - _ncc_matrix(candidates, truth)).mul_(2.0 * freedom)


def half(x: Tensor) -> Tensor:
    """Images at half resolution as the papers' "ncc2" takes it: bicubic (a = -0.75), without antialiasing."""
    return F.interpolate(x, scale_factor=0.5, mode="bicubic", align_corners=False, antialias=False)


MSE = Metric(name="mse", paired=_mse, pairwise=_mse_matrix, higher_is_better=False)
MAE = Metric(name="mae", paired=_mae, pairwise=_mae_matrix, higher_is_better=False)
MAE_MSE = Metric(name="mae+mse", paired=_mae_mse, pairwise=_mae_mse_matrix, higher_is_better=False)
PSNR = Metric(name="psnr", paired=_psnr, pairwise=_psnr_matrix, higher_is_better=True)
NCC = Metric(name="ncc", paired=_ncc, pairwise=_ncc_matrix, higher_is_better=True)
COSINE = Metric(name="cosine", paired=_cosine, pairwise=_cosine_matrix, higher_is_better=True)
