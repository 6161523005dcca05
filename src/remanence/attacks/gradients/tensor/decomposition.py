"""The factors of a symmetric third-order tensor: T = sum_i weight_i u_i (x) u_i (x) u_i, the u_i independent.

Two contractions of T with random vectors have the factors as generalised eigenvectors (Jennrich's algorithm; Kuleshov,
Chaganty, Liang 2015 draw many of them). Each draw is an independent small problem: all are solved as one stack, draws
whose eigenvectors come as complex pairs are dropped, the draw that explains T best is kept and then polished.
"""

import torch
from torch import Tensor

from remanence.errors import BadInput

_DRAWS, _POLISH = 100, 50
_REAL = 1e-6  # how large an imaginary part may be beside the vector, of norm one


def decompose(tensor: Tensor, *, seed: int, draws: int = _DRAWS) -> tuple[Tensor, Tensor]:
    """Unit factors (rank, rank), one in each row, and their weights, for a tensor (rank, rank, rank) of full rank."""
    rank = len(tensor)
    if tensor.shape != (rank, rank, rank) or not bool(tensor.isfinite().all()):
        raise BadInput(f"`tensor` must be finite and of three equal sides, got {tuple(tensor.shape)}")
    generator = torch.Generator().manual_seed(seed)
    candidates = _jennrich(tensor, draws, generator)
    factors = _polished(tensor, candidates[int(_residual(tensor, candidates).argmin())])
    return factors, _weights(tensor, factors)


def _jennrich(tensor: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """(draws, rank, rank): the eigenvectors of each draw, in rows; complex pairs only where all have some."""
    across = torch.randn(2, draws, len(tensor), generator=generator).to(tensor)
    one, two = torch.einsum("abc,pdc->pdab", tensor, across)
    values = least_squares(two, one)
    finite = values.isfinite().all(2).all(1)
    if not bool(finite.any()):
        raise BadInput("the tensor is zero or not of full rank: there are fewer independent factors than its sides")
    vectors = torch.linalg.eig(values[finite].mT).eigenvectors.mT
    real = (vectors.imag.abs() < _REAL).all(2).all(1)
    kept: Tensor = vectors[real].real if bool(real.any()) else vectors.real
    unit: Tensor = kept / kept.norm(dim=2, keepdim=True).clamp_min(1e-300)
    return unit


def _polished(tensor: Tensor, factors: Tensor) -> Tensor:
    """Alternating least squares: two of three sides are held, the third follows; kept while the residual falls."""
    best, lowest = factors, _residual(tensor, factors)
    unfolded = tensor.flatten(1)
    for _ in range(_POLISH):
        pairs = torch.einsum("ib,ic->ibc", best, best).flatten(1)
        found = least_squares(pairs.T, unfolded.T)
        found = found / found.norm(dim=1, keepdim=True).clamp_min(1e-300)
        found = found * (found * best).sum(1, keepdim=True).sign()
        reached = _residual(tensor, found)
        if not bool(reached < lowest * (1 - 1e-9)):
            break
        best, lowest = found, reached
    return best


def _weights(tensor: Tensor, factors: Tensor) -> Tensor:
    """By least squares, for one set of factors or a stack of them: the cubes have the cubed Gram matrix as theirs."""
    onto = torch.einsum("abc,...ia,...ib,...ic->...i", tensor, factors, factors, factors)
    cubed = (factors @ factors.mT) ** 3
    return least_squares(cubed, onto[..., None])[..., 0]


def least_squares(matrix: Tensor, values: Tensor) -> Tensor:
    """By a QR decomposition: `lstsq` gives other last digits where its matrix lies elsewhere in memory."""
    q, r = torch.linalg.qr(matrix)
    diagonal = r.diagonal(dim1=-2, dim2=-1).abs()
    tiny = diagonal < 1e-14 * diagonal.amax(-1, keepdim=True)  # nearly dependent columns get next to nothing
    r = r + torch.diag_embed(tiny.to(r) * diagonal.amax(-1, keepdim=True))
    solved: Tensor = torch.linalg.solve_triangular(r, q.mT @ values, upper=True)
    return solved


def _residual(tensor: Tensor, factors: Tensor) -> Tensor:
    found = torch.einsum("...i,...ia,...ib,...ic->...abc", _weights(tensor, factors), factors, factors, factors)
    left: Tensor = (tensor - found).flatten(-3).norm(dim=-1)
    return left
