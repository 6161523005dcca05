"""Singular value decompositions by the Gram matrix, against torch's and numpy's own."""

import numpy as np
import pytest
import torch

from remanence.engine.decompositions import singular_values, singular_values_by_gram, svd, svd_by_gram


@pytest.mark.parametrize("shape", [(30, 12), (12, 30), (20, 20)])
@pytest.mark.parametrize("full_matrices", [False, True])
def test_svd_by_gram_is_that_of_numpy(shape: tuple[int, int], full_matrices: bool) -> None:
    matrix = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    left, values, right = svd_by_gram(matrix, full_matrices=full_matrices)
    expected = np.linalg.svd(matrix.numpy(), full_matrices=full_matrices)
    assert left.shape == expected[0].shape
    assert right.shape == expected[2].shape
    np.testing.assert_allclose(values, expected[1], rtol=1e-10)
    rank = len(values)
    torch.testing.assert_close(left[:, :rank] * values @ right[:rank], matrix)
    torch.testing.assert_close(left.mT @ left, torch.eye(left.shape[1], dtype=torch.float64))
    torch.testing.assert_close(right @ right.mT, torch.eye(right.shape[0], dtype=torch.float64))


def test_singular_vectors_of_tiny_values_are_orthonormal() -> None:
    generator = torch.Generator().manual_seed(1)
    scales = torch.logspace(0, -7, 15, dtype=torch.float64)
    matrix = torch.linalg.qr(torch.randn(40, 15, dtype=torch.float64, generator=generator))[0] * scales
    left, values, _ = svd_by_gram(matrix)
    torch.testing.assert_close(left.mT @ left, torch.eye(15, dtype=torch.float64))
    torch.testing.assert_close(values, scales, rtol=1e-3, atol=0)
    torch.testing.assert_close(singular_values_by_gram(matrix), scales, rtol=1e-2, atol=1e-8)


def test_small_matrices_are_decomposed_by_torch() -> None:
    matrix = torch.randn(9, 7, generator=torch.Generator().manual_seed(2))
    for ours, theirs in zip(svd(matrix), torch.linalg.svd(matrix, full_matrices=False), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(singular_values(matrix), torch.linalg.svdvals(matrix))
