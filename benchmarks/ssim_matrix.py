"""SSIM of every pair of images: `SSIM.pairwise` against scikit-image called pair by pair, in one run.

    python benchmarks/ssim_matrix.py                  # 1,000 x 1,000 images of 3x32x32, 200 reference calls
    python benchmarks/ssim_matrix.py --ours 200 --count 50

The reference is timed on `--count` pairs, and its scores are compared with ours on those pairs first; a million of its
calls would take ten minutes and more.
"""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from skimage.metrics import structural_similarity
from torch import Tensor

from remanence.metrics.ssim import SSIM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="pairs given to scikit-image")
    parser.add_argument("--ours", type=int, default=1000, help="images on each side of our matrix")
    args = parser.parse_args()
    candidates, truth = smooth_images(args.ours, seed=0), smooth_images(args.ours, seed=1)
    matrix, ours = timed_matrix(candidates, truth)
    theirs = timed_reference(candidates, truth, matrix, args.count)
    print(f"ours          {args.ours} x {args.ours} in {args.ours**2 / ours:.1f} s: {ours:,.0f} pairs/s")
    print(f"scikit-image  {args.count} pairs in {args.count / theirs:.1f} s: {theirs:,.0f} pairs/s")
    print(f"ratio {ours / theirs:.1f}")


def smooth_images(count: int, *, seed: int) -> Tensor:
    """Random colours on an 8x8 grid, enlarged to 32x32: local means and variances like those of photographs."""
    grid = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(grid, size=(32, 32), mode="bilinear", align_corners=False)


def timed_matrix(candidates: Tensor, truth: Tensor) -> tuple[Tensor, float]:
    SSIM.pairwise(candidates[:8], truth[:8])  # the first call starts the threads
    start = time.perf_counter()
    matrix = SSIM.pairwise(candidates, truth)
    return matrix, matrix.numel() / (time.perf_counter() - start)


def timed_reference(candidates: Tensor, truth: Tensor, matrix: Tensor, count: int) -> float:
    draw = torch.Generator().manual_seed(2)
    pairs = torch.randint(len(truth), (count, 2), generator=draw)
    images = [(candidates[i].numpy(), truth[j].numpy()) for i, j in pairs.tolist()]
    skimage(*images[0])  # its first call imports lazily
    start = time.perf_counter()
    scores = [skimage(a, b) for a, b in images]
    rate = count / (time.perf_counter() - start)
    ours = matrix[pairs[:, 0], pairs[:, 1]].double()
    torch.testing.assert_close(ours, torch.tensor(scores, dtype=torch.float64), rtol=0.0, atol=1e-4)
    return rate


def skimage(candidate: NDArray[np.float32], truth: NDArray[np.float32]) -> float:
    return float(structural_similarity(candidate, truth, win_size=7, data_range=np.ptp(truth), channel_axis=0))


if __name__ == "__main__":
    main()
