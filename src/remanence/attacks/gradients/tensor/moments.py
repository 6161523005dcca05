"""Moments of a gradient under Gaussian rows, by Stein's lemma: tensors whose factors are the records of the batch.

Wang, Lee, Lei (AISTATS 2023), section 4 and appendix B. For w ~ N(0, I) and the Hermite polynomials H_k of w,
E[ s(w.x) H_k(w) ] = c_k x (x) ... (x) x: a weighted sum over the rows estimates a sum over the records. The gradient of
the rows has one factor x in itself and needs one order less. Nothing larger than rows x span is formed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Moments over Gaussian rows with unit standard deviation, each weighted by the gradient that was sent for it."""

    rows: Tensor  # (m, d)
    sent: Tensor  # gradients of the rows (m, d), times their head weights; or of the head (m,)

    @property
    def first(self) -> Tensor:
        """(d,): the sum over the records of weight c_1 x."""
        return (self.sent if self.sent.ndim == 2 else self.sent[:, None] * self.rows).mean(0)

    def second(self) -> Tensor:
        """(d, d): the sum of weight c_2 x x'."""
        if self.sent.ndim == 2:
            found = self.sent.T @ self.rows / len(self.rows)
            return (found + found.T) / 2
        found = (self.sent[:, None] * self.rows).T @ self.rows / len(self.rows)
        return found - self.sent.mean() * torch.eye(len(found)).to(found)

    def second_contracted(self, vector: Tensor) -> Tensor:
        """(d, d): the sum of weight c_3 (vector . x) x x', where c_2 vanishes."""
        products, eye = self.rows @ vector, torch.eye(len(vector)).to(vector)
        if self.sent.ndim == 2:
            one = self.sent.T @ (products[:, None] * self.rows - vector)
            inner = self.sent @ vector
            two = (inner[:, None] * self.rows).T @ self.rows - inner.sum() * eye
            return (one + one.T + two) / (3 * len(self.rows))
        weighted = (self.sent * products)[:, None] * self.rows
        cross = torch.outer((self.sent[:, None] * self.rows).sum(0), vector)
        found = weighted.T @ self.rows - cross - cross.T - (self.sent * products).sum() * eye
        return found / len(self.rows)

    def third(self, span: Tensor) -> Tensor:
        """(b, b, b) in the basis `span` (d, b): the sum of weight c_3 times the cubes of the records."""
        v, eye = self.rows @ span, torch.eye(span.shape[1]).to(span)
        if self.sent.ndim == 2:
            sent = self.sent @ span
            return symmetric((_cubes(sent, v, v) - torch.einsum("a,bc->abc", sent.sum(0), eye)) / len(v))
        weighted = self.sent[:, None] * v
        return (_cubes(weighted, v, v) - _with_identity(weighted.sum(0), eye)) / len(v)

    def third_contracted(self, span: Tensor, vector: Tensor) -> Tensor:
        """(b, b, b): the sum of weight c_4 (vector . x) times the cubes of the records, where c_3 vanishes."""
        v, t, products = self.rows @ span, span.T @ vector, self.rows @ vector
        eye = torch.eye(len(t)).to(t)
        if self.sent.ndim == 2:  # the factor of the gradient itself is one of the three, or contracted
            sent, inner = self.sent @ span, self.sent @ vector
            placed = _cubes(sent, products[:, None] * v, v) - 2 * torch.einsum("ja,jb,c->abc", sent, v, t)
            placed -= torch.einsum("a,bc->abc", (sent * products[:, None]).sum(0), eye)
            cubes = _cubes(inner[:, None] * v, v, v) - _with_identity((inner[:, None] * v).sum(0), eye)
            return (3 * symmetric(placed) + symmetric(cubes)) / (4 * len(v))
        g = self.sent[:, None]
        pairs = torch.einsum("ja,jb->ab", g * v, v)
        found = _cubes(g * v, v, products[:, None] * v) - _with_identity(t, pairs)
        found += _with_identity(t * self.sent.sum() - (self.sent * products) @ v, eye)
        return found / len(v)

    def within(self, span: Tensor) -> "Moments":
        return Moments(rows=self.rows @ span, sent=self.sent @ span if self.sent.ndim == 2 else self.sent)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class MomentsInBlocks:
    """Moments of rows that come a block at a time, again whenever `blocks` is called; each is a mean over the rows."""

    blocks: Callable[[], Iterable[Moments]]

    @property
    def first(self) -> Tensor:
        return self._mean(lambda block: block.first)

    def second(self) -> Tensor:
        return self._mean(lambda block: block.second())

    def second_contracted(self, vector: Tensor) -> Tensor:
        return self._mean(lambda block: block.second_contracted(vector))

    def third(self, span: Tensor) -> Tensor:
        return self._mean(lambda block: block.third(span))

    def third_contracted(self, span: Tensor, vector: Tensor) -> Tensor:
        return self._mean(lambda block: block.third_contracted(span, vector))

    def within(self, span: Tensor) -> Moments:
        parts = [block.within(span) for block in self.blocks()]
        return Moments(rows=torch.cat([part.rows for part in parts]), sent=torch.cat([part.sent for part in parts]))

    def _mean(self, moment: Callable[[Moments], Tensor]) -> Tensor:
        total, rows = torch.zeros(()), 0
        for block in self.blocks():
            total, rows = total + len(block.rows) * moment(block), rows + len(block.rows)
        return total / rows


def symmetric(tensor: Tensor) -> Tensor:
    """The mean of a tensor over the permutations of its three sides."""
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    return torch.stack([tensor.permute(order) for order in orders]).mean(0)


def _cubes(one: Tensor, two: Tensor, three: Tensor) -> Tensor:
    """(a, b, c): the sum over the rows of outer products, as one matrix product."""
    pairs = torch.einsum("jb,jc->jbc", two, three).flatten(1)
    return (one.T @ pairs).view(one.shape[1], two.shape[1], three.shape[1])


def _with_identity(vector: Tensor, matrix: Tensor) -> Tensor:
    """vector_a matrix_bc + vector_b matrix_ac + vector_c matrix_ab."""
    equations = ("a,bc->abc", "b,ac->abc", "c,ab->abc")
    return torch.stack([torch.einsum(equation, vector, matrix) for equation in equations]).sum(0)


def span_of_rows(matrix: Tensor, count: int, *, seed: int, spare: int = 8, rounds: int = 2) -> tuple[Tensor, Tensor]:
    """An orthonormal basis (d, count) of the leading right singular vectors of `matrix` (m, d), and its leading
    singular values, by a randomised SVD. It is exact where the rows lie in a space of `count` dimensions."""
    generator = torch.Generator().manual_seed(seed)
    width = min(*matrix.shape, count + spare)
    basis = torch.linalg.qr(matrix.T @ torch.randn(len(matrix), width, generator=generator).to(matrix)).Q
    for _ in range(rounds):
        basis = torch.linalg.qr(matrix.T @ (matrix @ basis)).Q
    _, values, vectors = torch.linalg.svd(matrix @ basis, full_matrices=False)
    return basis @ vectors[:count].T, values


def span_in_blocks(blocks: Callable[[], Iterable[Tensor]], count: int, *, seed: int, spare: int = 8) -> Tensor:
    """The basis of `span_of_rows` for a matrix whose rows come a block at a time, again whenever `blocks` is called."""
    first = next(iter(blocks()))
    width = min(first.shape[1], count + spare)
    basis = torch.randn(first.shape[1], width, generator=torch.Generator().manual_seed(seed)).to(first)
    for _ in range(3):
        product = torch.zeros_like(basis)
        for block in blocks():
            product += block.T @ (block @ basis)
        basis = torch.linalg.qr(product).Q
    vectors: Tensor = torch.linalg.svd(torch.cat([block @ basis for block in blocks()]), full_matrices=False).Vh
    return basis @ vectors[:count].T


def leading_span(symmetric_matrix: Tensor, count: int, *, one_sign: bool = False) -> Tensor:
    """(d, count): the eigenvectors with the largest eigenvalues in absolute value; with `one_sign`, of those that have
    the sign of the largest."""
    values, vectors = torch.linalg.eigh(symmetric_matrix)
    sizes = values * values[values.abs().argmax()].sign() if one_sign else values.abs()
    leading: Tensor = vectors[:, sizes.argsort(descending=True)[:count]]
    return leading
