"""Moments by Stein's lemma: against Hermite tensors formed in full, planted records, and exact spans."""

from collections.abc import Iterator
from itertools import permutations

import pytest
import torch
from torch import Tensor

from remanence.attacks.gradients.tensor.identifiability import hermite_coefficients
from remanence.attacks.gradients.tensor.moments import Moments, leading_span, span_of_rows

ROWS, FEATURES = 5, 3
EYE = torch.eye(FEATURES).double()


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def moments(source: str) -> Moments:
    sent = draw(ROWS, FEATURES, seed=1) if source == "rows" else draw(ROWS, seed=1)
    return Moments(rows=draw(ROWS, FEATURES, seed=0), sent=sent)


def vector() -> Tensor:
    return draw(FEATURES, seed=3)  # neither of norm one nor in the span


def hermite(w: Tensor, order: int) -> Tensor:
    """H_order(w) by the recursion H_k = w (x) H_(k-1) - the sum over indices of the identity with H_(k-2)."""
    if order == 0:
        return w.new_ones(())
    if order == 1:
        return w
    found: Tensor = torch.tensordot(w, hermite(w, order - 1), dims=0)
    below = hermite(w, order - 2)
    for index in range(1, order):  # the first index is paired with each of the others
        found = found - torch.tensordot(EYE, below, dims=0).movedim(1, index)
    return found


def symmetrised(tensor: Tensor) -> Tensor:
    return torch.stack([tensor.permute(order) for order in permutations(range(tensor.ndim))]).mean(0)


def in_full(given: Moments, order: int) -> Tensor:
    """The mean over the rows of sent times the Hermite tensor, the gradient's index averaged over all positions."""
    found = []
    for w, g in zip(given.rows, given.sent, strict=True):
        if g.ndim:
            found.append(symmetrised(torch.tensordot(g, hermite(w, order - 1), dims=0)))
        else:
            found.append(g * hermite(w, order))
    return torch.stack(found).mean(0)


def close(found: Tensor, expected: Tensor) -> bool:
    assert found.shape == expected.shape
    return torch.allclose(found, expected, rtol=1e-11, atol=1e-12)


both = pytest.mark.parametrize("source", ["rows", "head"])


@both
@pytest.mark.parametrize("count", [1, 2, FEATURES])
def test_moments_are_those_of_the_hermite_polynomials_in_full(source: str, count: int) -> None:
    given, v = moments(source), torch.linalg.qr(draw(FEATURES, count, seed=5)).Q
    first, second, third, fourth = (in_full(given, order) for order in (1, 2, 3, 4))
    assert close(given.first, first)
    assert close(given.second(), second)
    assert close(given.second_contracted(vector()), torch.einsum("abc,c->ab", third, vector()))
    assert close(given.third(v), torch.einsum("abc,ax,by,cz->xyz", third, v, v, v))
    contracted = torch.einsum("abcd,ax,by,cz,d->xyz", fourth, v, v, v, vector())
    assert close(given.third_contracted(v, vector()), contracted)


def activation(x: Tensor) -> Tensor:
    """Every coefficient up to the fourth is there."""
    return (x + 0.8).sin()


def blocks(source: str, record: Tensor, weight: float) -> Iterator[Moments]:
    """200,000 rows in twenty, and what a record of norm one with that weight sends for them."""
    for block in range(20):
        rows = draw(10_000, len(record), seed=100 + block)
        at = (rows @ record).requires_grad_()
        value = activation(at)
        derivative = torch.autograd.grad(value.sum(), at)[0]
        sent = weight * (derivative[:, None] * record if source == "rows" else value.detach())
        yield Moments(rows=rows, sent=sent)


@both
def test_over_many_rows_the_moments_come_to_powers_of_the_record(source: str) -> None:
    record = torch.tensor([0.1, 0.5, -0.3, 0.8]).double()
    record = record / record.norm()
    weight, along = -1.7, torch.tensor([0.6, 0.1, -0.2, 0.9]).double()
    v = torch.linalg.qr(torch.stack([record, draw(4, seed=1), draw(4, seed=2)], dim=1)).Q
    c = hermite_coefficients(activation)
    inside, inner = v.T @ record, float(along @ record)
    cube = torch.einsum("a,b,c->abc", inside, inside, inside)
    expected = [
        weight * c[1] * record,
        weight * c[2] * torch.outer(record, record),
        weight * c[3] * inner * torch.outer(record, record),
        weight * c[3] * cube,
        weight * c[4] * inner * cube,
    ]
    found = [
        (given.first, given.second(), given.second_contracted(along), given.third(v), given.third_contracted(v, along))
        for given in blocks(source, record, weight)
    ]
    for each, wanted in zip(zip(*found, strict=True), expected, strict=True):
        stacked = torch.stack(each)
        standard_error = stacked.std(0) / len(stacked) ** 0.5
        assert ((stacked.mean(0) - wanted).abs() < 5 * standard_error + 1e-12).all()
        assert standard_error.max() < 0.1 * wanted.abs().max()  # the test could tell a wrong constant


def low_rank(rows: int, features: int, rank: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A matrix, and an orthonormal basis of where its rows lie."""
    basis = torch.linalg.qr(draw(features, rank, seed=seed)).Q
    return draw(rows, rank, seed=seed + 1) @ basis.T, basis


def projector(basis: Tensor) -> Tensor:
    return basis @ basis.T


@pytest.mark.parametrize(("rows", "features"), [(300, 40), (30, 200), (3, 50), (50, 3)])
@pytest.mark.parametrize("rank", [1, 3])
def test_the_span_of_a_matrix_of_low_rank_is_exact(rows: int, features: int, rank: int) -> None:
    matrix, basis = low_rank(rows, features, rank)
    found, values = span_of_rows(matrix, rank, seed=0)
    assert found.shape == (features, rank)
    assert torch.allclose(found.T @ found, torch.eye(rank).double(), atol=1e-12)
    assert torch.allclose(projector(found), projector(basis), atol=1e-12)
    expected = torch.linalg.svdvals(matrix)
    assert torch.allclose(values[:rank], expected[:rank], rtol=1e-10)
    assert (values[rank:] < 1e-12 * values[0]).all()


def test_leading_directions_are_those_of_the_largest_eigenvalues_of_either_sign() -> None:
    turn = torch.linalg.qr(draw(5, 5, seed=0)).Q
    matrix = turn @ torch.diag(torch.tensor([0.5, -3.0, 1.0, 2.0, -0.1]).double()) @ turn.T
    assert torch.allclose(projector(leading_span(matrix, 2)), projector(turn[:, [1, 3]]), atol=1e-12)
    assert torch.allclose(leading_span(matrix, 1).abs(), turn[:, [1]].abs(), atol=1e-12)
    assert torch.allclose(projector(leading_span(matrix, 3)), projector(turn[:, [1, 2, 3]]), atol=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_of_one_sign_they_are_those_with_the_sign_of_the_largest(sign: int) -> None:
    turn = torch.linalg.qr(draw(5, 5, seed=0)).Q
    matrix = sign * turn @ torch.diag(torch.tensor([0.5, -3.0, 1.0, 2.0, -0.1]).double()) @ turn.T
    assert torch.allclose(projector(leading_span(matrix, 2, one_sign=True)), projector(turn[:, [1, 4]]), atol=1e-12)
