"""The factors of a symmetric third-order tensor: T = sum_i weight_i u_i (x) u_i (x) u_i, the u_i independent.

Two contractions of T with random vectors have the factors as generalised eigenvectors (Jennrich's algorithm; Kuleshov,
Chaganty, Liang 2015 use many random projections). All projections are solved as one stack, those whose eigenvectors are
complex are dropped, and the one that explains T best is refined by alternating least squares.
"""

import torch
from torch import Tensor

from remanence.errors import BadInput

_PROJECTIONS, _ALS_STEPS = 100, 50
_REAL = 1e-6  # the largest imaginary part of an eigenvector of norm one that is rounding


def decompose(tensor: Tensor, *, seed: int, projections: int = _PROJECTIONS) -> tuple[Tensor, Tensor]:
    """Unit factors (rank, rank), in rows, and their weights (rank,), of a tensor (rank, rank, rank) of full rank."""
    rank = len(tensor)
    if tensor.shape != (rank, rank, rank) or not bool(tensor.isfinite().all()):
        raise BadInput(
            f"`tensor` must be finite and of three equal sides, got {tuple(tensor.shape)}",
            code="shape-mismatch" if tensor.shape != (rank, rank, rank) else "not-finite",
            argument="tensor",
        )
    generator = torch.Generator().manual_seed(seed)
    candidates = _jennrich(tensor, projections, generator)
    factors = _als(tensor, candidates[int(_residual(tensor, candidates).argmin())])
    return factors, _weights(tensor, factors)


def _jennrich(tensor: Tensor, projections: int, generator: torch.Generator) -> Tensor:
    """(projections, rank, rank): the eigenvectors of each, in rows; real parts of complex ones only where all are."""
    vectors = torch.randn(2, projections, len(tensor), generator=generator).to(tensor)
    one, two = torch.einsum("abc,pdc->pdab", tensor, vectors)
    values = lstsq_qr(two, one)
    finite = values.isfinite().all(2).all(1)
    if not bool(finite.any()):
        message = "`tensor` is zero or not of full rank: it has fewer independent factors than its sides"
        raise BadInput(message, code="not-identifiable", argument="tensor")
    eigenvectors = torch.linalg.eig(values[finite].mT).eigenvectors.mT
    real = (eigenvectors.imag.abs() < _REAL).all(2).all(1)
    factors: Tensor = eigenvectors[real].real if bool(real.any()) else eigenvectors.real
    unit: Tensor = factors / factors.norm(dim=2, keepdim=True).clamp_min(1e-300)
    return unit


def _als(tensor: Tensor, factors: Tensor) -> Tensor:
    """Alternating least squares: two of three sides are held and the third is solved for, while the residual falls."""
    best, lowest = factors, _residual(tensor, factors)
    unfolded = tensor.flatten(1)
    for _ in range(_ALS_STEPS):
        pairs = torch.einsum("ib,ic->ibc", best, best).flatten(1)
        found = lstsq_qr(pairs.T, unfolded.T)
        found = found / found.norm(dim=1, keepdim=True).clamp_min(1e-300)
        found = found * (found * best).sum(1, keepdim=True).sign()
        residual = _residual(tensor, found)
        if not bool(residual < lowest * (1 - 1e-9)):
            break
        best, lowest = found, residual
    return best


def _weights(tensor: Tensor, factors: Tensor) -> Tensor:
    """(..., rank): weights by least squares; the Gram matrix of the factors' cubes is the cubed Gram matrix."""
    onto = torch.einsum("abc,...ia,...ib,...ic->...i", tensor, factors, factors, factors)
    cubed = (factors @ factors.mT) ** 3
    return lstsq_qr(cubed, onto[..., None])[..., 0]


def lstsq_qr(matrix: Tensor, values: Tensor) -> Tensor:
    """Least squares by a QR decomposition: the rounding of `torch.linalg.lstsq` depends on the memory address."""
    q, r = torch.linalg.qr(matrix)
    diagonal = r.diagonal(dim1=-2, dim2=-1).abs()
    tiny = diagonal < 1e-14 * diagonal.amax(-1, keepdim=True)  # nearly dependent columns get a coefficient near zero
    r = r + torch.diag_embed(tiny.to(r) * diagonal.amax(-1, keepdim=True))
    solved: Tensor = torch.linalg.solve_triangular(r, q.mT @ values, upper=True)
    return solved


def _residual(tensor: Tensor, factors: Tensor) -> Tensor:
    found = torch.einsum("...i,...ia,...ib,...ic->...abc", _weights(tensor, factors), factors, factors, factors)
    residual: Tensor = (tensor - found).flatten(-3).norm(dim=-1)
    return residual
