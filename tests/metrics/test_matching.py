"""Matchings against brute force: every permutation for the best sum, one pair at a time for the greedy one."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from remanence.metrics import matching as module
from remanence.metrics.matching import MATCHINGS, Matching, greedy, greedy_ssim, hungarian, identity, nearest_ncc
from remanence.metrics.pixel import MSE, half, ncc_distance
from remanence.metrics.ssim import SSIM


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def naive_greedy(score: np.ndarray) -> list[int]:
    """Rows are truth records; take the largest entry, strike its row and column, repeat."""
    left, match = score.copy(), [-1] * len(score)
    for _ in range(min(score.shape)):
        row, column = np.unravel_index(np.argmax(left), left.shape)
        match[row] = int(column)
        left[row], left[:, column] = -np.inf, -np.inf
    return match


def best_sum(cost: Tensor) -> float:
    """The least cost over all one-to-one pairings of the shorter side, by trying each."""
    short = cost if cost.shape[0] <= cost.shape[1] else cost.T
    rows = range(len(short))
    choices = itertools.permutations(range(short.shape[1]), len(short))
    return min(sum(float(short[r, c]) for r, c in zip(rows, choice, strict=True)) for choice in choices)


def total(cost: Tensor, match: Tensor) -> float:
    served = match >= 0
    return float(cost[match[served], served.nonzero().squeeze(1)].sum())


@pytest.mark.parametrize("matching", MATCHINGS, ids=lambda m: m.name)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)], ids=str)
def test_a_shuffled_copy_is_found_again(matching: Matching, shape: tuple[int, ...]) -> None:
    truth = rand(6, *shape)
    order = torch.tensor([3, 0, 5, 1, 4, 2]) if matching is not identity else torch.arange(6)
    match = matching(truth[order] + 0.05 * rand(6, *shape, seed=1), truth)
    assert match.dtype == torch.int64
    assert torch.equal(order[match], torch.arange(6))


@pytest.mark.parametrize("shape", [(6,), (1, 28, 28), (3, 32, 32), (1, 31, 40)], ids=str)
def test_nearest_ncc_is_the_smallest_distance(shape: tuple[int, ...]) -> None:
    candidates, truth = rand(4, *shape, seed=1), rand(9, *shape, seed=2)
    reduced = shape == (3, 32, 32)
    a, b = (half(candidates), half(truth)) if reduced else (candidates, truth)
    distance = ncc_distance(a.double(), b.double())
    match = nearest_ncc(candidates, truth)
    assert torch.equal(match, distance.argmin(0))
    assert len(match.unique()) < len(truth)  # four candidates serve nine records


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 7), m=st.integers(0, 7), levels=st.integers(1, 50), seed=st.integers(0, 999))
def test_greedy_is_the_naive_loop_with_ties_too(n: int, m: int, levels: int, seed: int) -> None:
    score = np.random.default_rng(seed).integers(0, levels, size=(n, m)).astype(np.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", 5)
        assert module._greedy(score).tolist() == naive_greedy(score)


@pytest.mark.parametrize(("m", "n"), [(5, 5), (3, 6), (6, 3)])
def test_greedy_ssim_takes_the_largest_left(m: int, n: int) -> None:
    candidates, truth = rand(m, 1, 8, 8, seed=1), rand(n, 1, 8, 8, seed=2)
    match = greedy_ssim(candidates, truth)
    assert match.tolist() == naive_greedy(SSIM.pairwise(candidates, truth).T.numpy())
    assert int((match >= 0).sum()) == min(m, n)


def test_greedy_takes_the_smallest_error_left() -> None:
    candidates, truth = rand(5, 7, seed=1), rand(4, 7, seed=2)
    match = greedy(MSE)(candidates, truth)
    assert match.tolist() == naive_greedy(-MSE.pairwise(candidates, truth).T.double().numpy())


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 6, 9), (5,)], ids=str)
@pytest.mark.parametrize(("m", "n"), [(5, 5), (3, 6), (6, 3)])
def test_hungarian_has_the_best_sum(m: int, n: int, shape: tuple[int, ...]) -> None:
    candidates, truth = rand(m, *shape, seed=3), rand(n, *shape, seed=4)
    cost = -SSIM.pairwise(candidates, truth) if shape == (1, 8, 8) else MSE.pairwise(candidates, truth)
    match = hungarian(candidates, truth)
    served = match[match >= 0]
    assert len(served) == len(served.unique()) == min(m, n)
    assert total(cost, match) == pytest.approx(best_sum(cost))


@pytest.mark.parametrize("matching", [nearest_ncc, greedy_ssim, hungarian], ids=lambda m: m.name)
def test_without_candidates_nothing_is_matched(matching: Matching) -> None:
    assert matching(rand(0, 3, 8, 8), rand(4, 3, 8, 8)).tolist() == [-1] * 4
    assert matching(rand(4, 3, 8, 8), rand(0, 3, 8, 8)).shape == (0,)


@pytest.mark.parametrize("matching", [nearest_ncc, greedy_ssim, hungarian], ids=lambda m: m.name)
def test_a_diverged_candidate_comes_last(matching: Matching) -> None:
    truth = rand(3, 1, 8, 8)
    broken = torch.cat((torch.full((1, 1, 8, 8), torch.nan), truth))
    assert matching(broken, truth).tolist() == [1, 2, 3]
