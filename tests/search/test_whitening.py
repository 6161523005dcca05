"""Whitened layers against powers of their Gram matrices."""

import pytest
import torch
from torch import Tensor

from remanence.search import WhitenedLayer


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def power(matrix: Tensor, exponent: float, *, minimum: float) -> Tensor:
    """A power of a symmetric matrix whose eigenvalues are raised to `minimum`."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(minimum) ** exponent) @ vectors.T


@pytest.mark.parametrize("shape", [(7, 7), (9, 5), (5, 9)], ids=str)
def test_it_divides_by_powers_of_the_singular_values_on_both_sides(shape: tuple[int, int]) -> None:
    matrix, other, rank = normal(*shape), normal(*shape, seed=1), 4
    values = torch.linalg.svdvals(matrix)
    minimum = float(values[rank - 1]) ** 2
    rows, columns = (power(gram, -0.35, minimum=minimum) for gram in (matrix @ matrix.T, matrix.T @ matrix))
    whitened = WhitenedLayer.from_matrix(matrix, power=0.7, rank=rank)
    for each in (matrix, other):
        expected = (rows @ each @ columns * each).sum()
        assert float(whitened(each).square().sum()) == pytest.approx(float(expected), rel=1e-10)
    torch.testing.assert_close(whitened.target, whitened(matrix))
    torch.testing.assert_close(whitened.target.diagonal()[:rank], values[:rank] ** 0.3)
