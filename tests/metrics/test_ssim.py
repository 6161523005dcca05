"""SSIM against scikit-image and kornia, the libraries whose numbers the papers print."""

import kornia.metrics
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from skimage.metrics import structural_similarity
from torch import Tensor

from remanence.metrics import ssim as module
from remanence.metrics.base import Metric, normalised
from remanence.metrics.ssim import SSIM, SSIM3

BOTH = (SSIM, SSIM3)
SHAPES = ((1, 8, 8), (1, 7, 7), (1, 28, 28), (3, 8, 8), (3, 32, 32), (3, 9, 14))


def images(n: int, *shape: int, seed: int = 0, noise: float = 0.2) -> tuple[Tensor, Tensor]:
    """Smooth truth images and noisy copies: similarity away from both 0 and 1."""
    g = torch.Generator().manual_seed(seed)
    small = torch.rand(n, shape[0], 4, 4, generator=g, dtype=torch.float64)
    truth = torch.nn.functional.interpolate(small, size=shape[1:], mode="bilinear", align_corners=True)
    candidates = truth + noise * torch.randn(truth.shape, generator=g, dtype=truth.dtype)
    return candidates.clamp(0, 1), truth


def skimage(candidate: Tensor, truth: Tensor) -> float:
    a, b = candidate.numpy(), truth.numpy()
    return float(structural_similarity(a, b, win_size=7, data_range=np.ptp(b), channel_axis=0))


def reference(metric: Metric, candidates: Tensor, truth: Tensor) -> Tensor:
    """One pair after the other, by the library of the convention."""
    if metric is SSIM:
        return torch.tensor([skimage(a, b) for a, b in zip(candidates, truth, strict=True)], dtype=truth.dtype)
    return kornia.metrics.ssim(candidates, truth, window_size=3).flatten(1).mean(1)


def all_pairs(metric: Metric, candidates: Tensor, truth: Tensor) -> Tensor:
    return torch.stack([reference(metric, a.expand_as(truth), truth) for a in candidates])


@pytest.mark.parametrize("metric", BOTH, ids=lambda m: m.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_pair_agrees_with_the_library(metric: Metric, shape: tuple[int, ...]) -> None:
    candidates, truth = images(3, *shape)
    expected = all_pairs(metric, candidates, truth)
    torch.testing.assert_close(metric.pairwise(candidates, truth), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(metric.paired(candidates, truth), expected.diagonal(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("metric", BOTH, ids=lambda m: m.name)
@settings(max_examples=15, deadline=None)
@given(m=st.integers(1, 6), n=st.integers(1, 6), c=st.integers(1, 3), h=st.integers(7, 12), w=st.integers(7, 12))
def test_shapes_and_tiles_do_not_matter(metric: Metric, m: int, n: int, c: int, h: int, w: int) -> None:
    candidates, truth = images(max(m, n), c, h, w, seed=m + 10 * n)
    candidates, truth = candidates[:m], truth[:n]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_TILE", 4)
        patch.setattr(module, "_CPU_SCORES", 40)
        tiled = metric.pairwise(candidates, truth)
    torch.testing.assert_close(tiled, all_pairs(metric, candidates, truth), rtol=0, atol=1e-10)


@pytest.mark.parametrize("metric", BOTH, ids=lambda m: m.name)
def test_paired_is_the_diagonal_over_several_blocks(metric: Metric) -> None:
    candidates, truth = images(150, 1, 8, 8)
    diagonal = metric.pairwise(candidates, truth).diagonal()
    torch.testing.assert_close(metric.paired(candidates, truth), diagonal, rtol=0, atol=1e-12)


@pytest.mark.parametrize("metric", BOTH, ids=lambda m: m.name)
@pytest.mark.parametrize("noise", [1e-3, 0.02, 0.5])
def test_float32_does_not_cancel(metric: Metric, noise: float) -> None:
    candidates, truth = images(8, 3, 16, 16, noise=noise)
    faint = 0.9 + 0.02 * truth  # bright with hardly any contrast: E[ab] - E[a]E[b] has few digits left
    for a, b in ((candidates, truth), (0.9 + 0.02 * candidates, faint)):
        single = metric.pairwise(a.float(), b.float())
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), metric.pairwise(a, b), rtol=0, atol=1e-4)


@pytest.mark.parametrize("metric", BOTH, ids=lambda m: m.name)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_single_and_returned_in_half(metric: Metric, dtype: torch.dtype) -> None:
    candidates, truth = (x.to(dtype) for x in images(3, 3, 8, 8))
    expected = metric.pairwise(candidates.double(), truth.double()).to(dtype)
    torch.testing.assert_close(metric.pairwise(candidates, truth), expected)


@pytest.mark.parametrize("metric", BOTH, ids=lambda m: m.name)
def test_identical_images_score_one_also_when_black(metric: Metric) -> None:
    _, truth = images(4, 3, 8, 8)
    truth[0] = 0.0
    torch.testing.assert_close(metric.paired(truth, truth), torch.ones(4, dtype=truth.dtype), rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("level", [0.0, 0.3, 1.0])
def test_a_constant_truth_scores_by_its_limit(dtype: torch.dtype, level: float) -> None:
    truth = torch.full((1, 3, 9, 9), level, dtype=dtype)
    noise = images(1, 3, 9, 9, noise=0.5)[0].to(dtype)
    scores = SSIM.pairwise(torch.cat((truth, noise)), truth).squeeze(1)
    torch.testing.assert_close(scores, torch.tensor([1.0, 0.0], dtype=dtype), rtol=0, atol=1e-4)


def test_the_range_is_that_of_the_truth_not_of_the_candidate() -> None:
    candidates, truth = images(1, 1, 12, 12)
    dim = 0.2 * truth
    assert float(SSIM.paired(candidates, dim)) == pytest.approx(skimage(candidates[0], dim[0]))
    assert float(SSIM.paired(candidates, dim)) != pytest.approx(float(SSIM.paired(dim, candidates)), abs=1e-3)


@pytest.mark.parametrize("metric", BOTH, ids=lambda m: m.name)
@pytest.mark.parametrize("shape", [(20,), (1, 2, 9), (3, 9, 2)], ids=str)
def test_records_smaller_than_the_window_are_refused(metric: Metric, shape: tuple[int, ...]) -> None:
    x = torch.zeros(2, *shape)
    for compare in (metric.paired, metric.pairwise):
        with refused("shape-mismatch", "truth"):
            compare(x, x)


def test_normalised_images_are_scored_as_scikit_image_does() -> None:
    """SimuDy's numbers: the range is that of the normalised training image."""
    candidates, truth = images(4, 3, 32, 32)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    metric = normalised(SSIM, mean=mean, std=std)
    shift, scale = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (mean, std))
    a, b = ((x - shift) / scale for x in (candidates, truth))
    assert metric.name == "normalised_ssim"
    assert np.allclose(metric.paired(candidates, truth), [skimage(*pair) for pair in zip(a, b, strict=True)])
    assert np.allclose(metric.pairwise(candidates, truth)[1, 2], skimage(a[1], b[2]))
    assert not np.allclose(metric.paired(candidates, truth), SSIM.paired(candidates, truth), atol=0.01)
