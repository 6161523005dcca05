"""Singular value decompositions; of large matrices on a CUDA device by the Gram matrix.

cuSOLVER's SVD of a 10,000 x 10,000 matrix takes minutes, the eigenvectors of its Gram matrix seconds. In float64 the
Gram matrix loses singular values below 1e-8 of the largest, which is less than the rounding of float32 weights.
"""

import torch
from torch import Tensor

_LARGE = 2048  # of the smaller side, from which on the Gram matrix is used


def svd(matrix: Tensor, *, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """U, S and V' of a matrix, singular values falling: as `torch.linalg.svd`."""
    if _is_large(matrix):
        return svd_by_gram(matrix, full_matrices=full_matrices)
    left, values, right = torch.linalg.svd(matrix, full_matrices=full_matrices)
    return left, values, right


def singular_values(matrix: Tensor) -> Tensor:
    """The singular values of a matrix, falling."""
    values: Tensor = singular_values_by_gram(matrix) if _is_large(matrix) else torch.linalg.svdvals(matrix)
    return values


def svd_by_gram(matrix: Tensor, *, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """U, S and V' of a matrix, by the eigenvectors of its Gram matrix in float64."""
    if matrix.shape[0] < matrix.shape[1]:
        left, values, right = svd_by_gram(matrix.mT, full_matrices=full_matrices)
        return right.mT, values, left.mT
    exact = matrix.double()
    vectors = torch.linalg.eigh(exact.mT @ exact).eigenvectors.flip(1)
    # the columns of this product are orthogonal but for rounding, which is large where a singular value is small
    left, triangle = torch.linalg.qr(exact @ vectors, mode="complete" if full_matrices else "reduced")
    diagonal = triangle.diagonal()
    signs = left.new_ones(left.shape[1])
    signs[: len(diagonal)] = torch.where(diagonal < 0, -1.0, 1.0)
    return (left * signs).to(matrix), diagonal.abs().to(matrix), vectors.mT.to(matrix)


def singular_values_by_gram(matrix: Tensor) -> Tensor:
    """The singular values of a matrix, falling, by the eigenvalues of its Gram matrix in float64."""
    tall = matrix.double() if matrix.shape[0] >= matrix.shape[1] else matrix.mT.double()
    squares: Tensor = torch.linalg.eigvalsh(tall.mT @ tall)
    return squares.flip(0).clamp_min(0.0).sqrt().to(matrix)


def _is_large(matrix: Tensor) -> bool:
    return matrix.device.type == "cuda" and min(matrix.shape) >= _LARGE
