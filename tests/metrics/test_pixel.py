"""Pixel metrics against numpy written out pair by pair."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from torch import Tensor

from remanence.metrics.base import Metric
from remanence.metrics.pixel import COSINE, MAE, MSE, NCC, PSNR, PSNR_CAP, half, ncc_distance

ALL = (MSE, MAE, PSNR, NCC, COSINE)
SHAPES = ((5,), (1, 4, 4), (3, 6, 5))


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def reference(name: str, a: np.ndarray, b: np.ndarray) -> float:
    if name == "mse":
        return float(np.mean((a - b) ** 2))
    if name == "mae":
        return float(np.mean(np.abs(a - b)))
    if name == "psnr":
        return float(10 * np.log10(1 / np.mean((a - b) ** 2)))
    if name == "cosine":
        return float(a.ravel() @ b.ravel() / np.linalg.norm(a) / np.linalg.norm(b))
    channels = [(a, b)] if a.ndim == 1 else list(zip(a, b, strict=True))
    return float(np.mean([np.corrcoef(x.ravel(), y.ravel())[0, 1] for x, y in channels]))


@pytest.mark.parametrize("metric", ALL, ids=lambda m: m.name)
@settings(max_examples=20, deadline=None)
@given(m=st.integers(1, 5), n=st.integers(1, 5), shape=st.sampled_from(SHAPES), seed=st.integers(0, 99))
def test_pairwise_is_the_reference_on_every_pair(
    metric: Metric, m: int, n: int, shape: tuple[int, ...], seed: int
) -> None:
    a, b = rand(m, *shape, seed=seed), rand(n, *shape, seed=seed + 100)
    expected = [[reference(metric.name, x.numpy(), y.numpy()) for y in b] for x in a]
    torch.testing.assert_close(metric.pairwise(a, b), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("metric", ALL, ids=lambda m: m.name)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_paired_is_the_diagonal_and_keeps_the_dtype(metric: Metric, dtype: torch.dtype) -> None:
    a, b = rand(4, 3, 8, 8, seed=1).to(dtype), rand(4, 3, 8, 8, seed=2).to(dtype)
    paired, pairwise = metric.paired(a, b), metric.pairwise(a, b)
    assert paired.dtype == pairwise.dtype == dtype
    assert pairwise.shape == (4, 4)
    torch.testing.assert_close(paired, pairwise.diagonal())


@pytest.mark.parametrize("metric", ALL, ids=lambda m: m.name)
def test_the_better_direction_is_the_one_of_identical_records(metric: Metric) -> None:
    x = rand(6, 3, 8, 8, dtype=torch.float32)
    score = metric.pairwise(x, x)
    best = score.argmax(1) if metric.higher_is_better else score.argmin(1)
    assert best.tolist() == list(range(6))


def test_float32_keeps_small_errors_that_a_matrix_product_would_lose() -> None:
    truth = rand(20, 3, 32, 32, dtype=torch.float32)
    close = truth + 1e-4
    exact = MSE.pairwise(close.double(), truth.double()).diagonal()
    torch.testing.assert_close(MSE.pairwise(close, truth).diagonal().double(), exact, rtol=1e-3, atol=0.0)


def test_psnr_of_identical_records_is_capped() -> None:
    x = rand(3, 7)
    assert PSNR.paired(x, x).tolist() == pytest.approx([PSNR_CAP] * 3)
    assert PSNR.pairwise(x, x).diagonal().tolist() == pytest.approx([PSNR_CAP] * 3)


def test_ncc_ignores_brightness_and_contrast_of_each_channel() -> None:
    x = rand(4, 3, 8, 8)
    scale, shift = rand(4, 3, 1, 1, seed=1) + 0.1, rand(4, 3, 1, 1, seed=2)
    torch.testing.assert_close(NCC.paired(scale * x + shift, x), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(NCC.paired(1 - x, x), -torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("level", [0.0, 0.1, 1.0])
def test_a_constant_channel_has_correlation_zero(dtype: torch.dtype, level: float) -> None:
    x = rand(2, 3, 9, 9, dtype=dtype)
    grey = x.clone()
    grey[:, 1] = level
    torch.testing.assert_close(NCC.paired(grey, x), torch.full((2,), 2 / 3, dtype=dtype))
    assert NCC.pairwise(torch.full_like(x, level), x).abs().max() == 0.0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ncc_distance_is_that_of_standardised_records(shape: tuple[int, ...]) -> None:
    a, b = rand(4, *shape, seed=1), rand(6, *shape, seed=2)

    def standard(x: Tensor) -> Tensor:
        z = x.unsqueeze(1) if x.ndim == 2 else x.flatten(2)
        return ((z - z.mean(2, keepdim=True)) / z.std(2, correction=1, keepdim=True)).flatten(1)

    expected = (standard(a).unsqueeze(1) - standard(b)).square().sum(2)
    torch.testing.assert_close(ncc_distance(a, b), expected)
    channels = 1 if len(shape) == 1 else shape[0]
    torch.testing.assert_close(expected, 2 * (a[0].numel() - channels) * (1 - NCC.pairwise(a, b)))


def test_a_blank_candidate_is_no_nearer_than_an_unrelated_one() -> None:
    x = rand(1, 3, 8, 8)
    blank = torch.full_like(x, 0.3)
    assert float(ncc_distance(blank, x)) == pytest.approx(2 * (192 - 3))


def test_half_has_the_published_taps_with_replicated_edges() -> None:
    x = rand(2, 3, 8, 12)
    taps = torch.tensor([-0.09375, 0.59375, 0.59375, -0.09375], dtype=x.dtype)
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
    kernel = torch.outer(taps, taps).expand(3, 1, 4, 4)
    torch.testing.assert_close(half(x), F.conv2d(padded, kernel, stride=2, groups=3))


def test_scores_hold_no_graph() -> None:
    a = rand(2, 5).requires_grad_()
    assert not MSE.paired(a, rand(2, 5, seed=1)).requires_grad


@pytest.mark.parametrize(
    ("a", "b", "code", "argument"),
    [
        (rand(2, 5), rand(3, 5), "shape-mismatch", "candidates"),
        (rand(2, 5), rand(2, 6), "shape-mismatch", "candidates"),
        (torch.zeros(2, 5, dtype=torch.uint8), rand(2, 5), "wrong-type", "candidates"),
        (rand(2, 5), rand(2, 1, 5), "shape-mismatch", "truth"),
    ],
)
def test_what_cannot_be_compared_is_refused(a: Tensor, b: Tensor, code: str, argument: str) -> None:
    with refused(code, argument):
        MSE.paired(a, b)


def test_a_record_of_zeros_has_no_direction_and_length_does_not_count() -> None:
    x = rand(3, 7)
    assert COSINE.paired(torch.zeros(3, 7).double(), x).tolist() == [0.0, 0.0, 0.0]
    assert COSINE.paired(1e-3 * x, x).tolist() == pytest.approx([1.0] * 3)
    assert COSINE.paired(-50 * x, x).tolist() == pytest.approx([-1.0] * 3)
