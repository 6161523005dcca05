"""The span of what enters a transformer's attention, from the gradients of its projections, and the tokens in it.

A projection Y = X W^T has the gradient  dL/dW = (dL/dY)^T X : its rows are combinations of the rows of X, and so are
those of the factor A of an adapter, B^T (dL/dY)^T X. Petrov et al. (2024) test whether a token lies in the span.

Ours: tokens and positions are separated. What enters the first attention is LayerNorm(e_v + p_l), a combination of
the two centred embeddings and of the norm's bias; positions are known, so they are projected out, and each token is one
vector. Where the gradient has a lower rank than there are tokens, its rows are sums of few of these vectors, all of the
same ones: joint sparse recovery, by rank-aware pursuit (Davies and Eldar, "Rank Awareness in Joint Sparse Recovery",
2012). At full rank it is the test of the paper.
"""

from dataclasses import dataclass
from math import sqrt
from typing import final

import torch
from torch import Tensor

from remanence.models.transformer import Transformer
from remanence.releases.defenses import GaussianNoise, LocalDP, Quantization
from remanence.releases.text import KnowsTokenGradient

_EXPLAINED = 1e-4  # of its squared norm: an atom of which less remains is a combination of selected ones


def projection_gradient(release: KnowsTokenGradient, block: int, name: str) -> Tensor:
    """(m, width): the gradient of a block's query, key or value projection, or of the factor A of its adapter; no rows
    where neither was sent."""
    for kind in ("lora_a", "weight"):
        sent = release.gradient.get(f"blocks.{block}.{name}.{kind}")
        if sent is not None:
            return sent.detach()
    return release.at["tokens.weight"][:0]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """The directions that the gradients of a block's attention are made of: rows (rank, width) that are orthogonal and
    as long as their singular values, and the singular value up to which they are noise; in float64."""

    rows: Tensor
    edge: float

    @classmethod
    def from_release(cls, release: KnowsTokenGradient, block: int, *, rounding: float) -> "Span":
        """The span of block number `block`; singular values below `rounding` units in the last place of the largest are
        taken for zero, and those that noise explains: Gaussian noise, coarse entries, or rounded weights."""
        gradients = [projection_gradient(release, block, each) for each in ("query", "key", "value")]
        sent = [g.double() for g in gradients if bool(g.any())]
        used = [g / g.norm() for g in sent]
        if not used:
            return cls(rows=gradients[0][:0].double(), edge=0.0)
        _, values, directions = torch.linalg.svd(torch.cat(used), full_matrices=False)
        eps = torch.finfo(gradients[0].dtype).eps
        std = max(_noise(release, g) / float(g.norm()) for g in sent)
        height, width = sum(map(len, used)), directions.shape[1]
        edge = max(rounding * eps * float(values[0]), 1.02 * std * (sqrt(height) + sqrt(width)))  # Marchenko-Pastur
        return cls(rows=(values[:, None] * directions)[values > edge], edge=edge)

    def without(self, directions: Tensor) -> "Span":
        """What remains after orthonormal `directions` (k, width) are projected out."""
        rows = self.rows - (self.rows @ directions.T) @ directions
        if not len(rows):
            return self
        _, values, basis = torch.linalg.svd(rows, full_matrices=False)
        return Span(rows=(values[:, None] * basis)[values > self.edge], edge=self.edge)

    def fills(self, directions: Tensor) -> bool:
        """Whether it and `directions` (k, width), which were projected out of it, are all that LayerNorm leaves, one
        less than the width: then every vector lies in the span, and being in it says nothing."""
        return len(self.rows) + len(directions) >= self.rows.shape[1] - 1

    @property
    def basis(self) -> Tensor:
        """(rank, width): the directions with norm one."""
        basis: Tensor = self.rows / self.rows.norm(dim=1, keepdim=True)
        return basis


def _noise(release: KnowsTokenGradient, gradient: Tensor) -> float:
    """The standard deviation of the noise in the entries of a `gradient` that was sent; of quantisation the largest
    that unbiased rounding to levels can have, half of their distance."""
    gaussian = [each.relative_std**2 for each in release.defenses if isinstance(each, GaussianNoise)]
    relative = sum(gaussian) + release.rounding**2
    bits = [each.bits for each in release.defenses if isinstance(each, Quantization)]
    levels = [float(gradient.abs().max()) / (2**each - 1) for each in bits]
    absolute = [each.noise_std(release.gradient) for each in release.defenses if isinstance(each, LocalDP)]
    mean_square = float(gradient.square().mean())
    return sqrt(relative / (1 + relative) * mean_square + sum(each**2 for each in (*levels, *absolute)))


@final
@dataclass(kw_only=True, eq=False)
class Pursuit:
    """Rank-aware pursuit: which of the atoms (vectors of `width` numbers) a span is made of. Atoms may be added,
    and are selected one after the other, or all at once that lie in the span up to rounding.

    An atom's score is the fraction of its squared norm in the span, both without the directions of the selected ones.
    """

    span: Span
    exact: float  # score above which an atom is in the span
    common: Tensor  # (c, width), orthonormal: directions that are projected out of everything beforehand
    known: Tensor  # (k, width), orthonormal: these, and the directions of the selected atoms
    atoms: Tensor  # (n, width)
    norms: Tensor  # (n,), squared
    remaining: Tensor  # (n,), squared norms without the known directions

    @classmethod
    def start(cls, span: Span, *, exact: float, common: Tensor, dtype: torch.dtype) -> "Pursuit":
        nothing = span.rows.new_zeros(0, dtype=dtype)
        empty = span.rows.new_zeros(0, span.rows.shape[1], dtype=dtype)
        return cls(
            span=span.without(common),
            exact=exact,
            common=common,
            known=common,
            atoms=empty,
            norms=nothing,
            remaining=nothing,
        )

    def add(self, atoms: Tensor) -> None:
        """Add atoms (m, width), after those that are there."""
        common = self.common.to(atoms)
        atoms = atoms - (atoms @ common.T) @ common
        norms = atoms.square().sum(1)
        remaining = norms - (atoms @ self.known.to(atoms).T).square().sum(1)
        self.atoms, self.norms = torch.cat([self.atoms, atoms]), torch.cat([self.norms, norms])
        self.remaining = torch.cat([self.remaining, remaining])

    def keep(self, index: Tensor) -> None:
        """Forget all atoms but those at `index`."""
        self.atoms, self.norms, self.remaining = self.atoms[index], self.norms[index], self.remaining[index]

    @property
    def done(self) -> bool:
        return not len(self.span.rows) or not len(self.atoms)

    def scores(self) -> Tensor:
        """(n,): zero for atoms that the known directions explain, the selected ones among them."""
        left_out = self.remaining <= _EXPLAINED * self.norms
        inside = (self.atoms @ self.span.basis.to(self.atoms).T).square().sum(1)
        return torch.where(left_out, 0, inside / self.remaining.clamp_min(torch.finfo(self.norms.dtype).tiny))

    def select(self, index: Tensor) -> None:
        """Project the atoms at `index` out of the span and of the others."""
        atoms = self.atoms[index].double()
        directions = orthonormal(atoms - (atoms @ self.known.T) @ self.known)
        self.known, self.span = torch.cat([self.known, directions]), self.span.without(directions)
        self.remaining = self.remaining - (self.atoms @ directions.to(self.atoms).T).square().sum(1)
        self.remaining[index] = 0


def find_tokens(
    model: Transformer, span: Span, *, length: int, exact: float, max_tokens: int
) -> tuple[Tensor, Tensor, float]:
    """The ids (k,) of the tokens that the first block's span is made of, in the order in which they are found, their
    scores (k,), and the fraction of the span that they leave unexplained; `model` holds its weights, and no sequence is
    longer than `length`."""
    atoms, common = first_block_atoms(model, length)
    pursuit = Pursuit.start(span, exact=exact, common=orthonormal(common), dtype=torch.float64)
    pursuit.add(atoms)
    total = float(pursuit.span.rows.norm())
    empty = span.rows.new_zeros(0)
    found, levels = [empty.long()], [empty]
    while not pursuit.done and sum(map(len, found)) < max_tokens:
        scores = pursuit.scores()
        certain = (scores > exact).nonzero().flatten()
        new = certain if len(certain) else scores.argmax()[None]
        found.append(new[: max_tokens - sum(map(len, found))])
        levels.append(scores[found[-1]])
        pursuit.select(found[-1])
    residual = float(pursuit.span.rows.norm()) / total if total else 0.0
    return torch.cat(found), torch.cat(levels), residual


def first_block_atoms(model: Transformer, length: int) -> tuple[Tensor, Tensor]:
    """What enters the first attention is made of: a vector for each token (vocabulary, width), and common ones, which
    are those of the first `length` positions and the norm's bias (length + 1, width)."""
    norm = model.get_submodule("blocks.0.norm1")
    scale, bias = norm.get_parameter("weight").double(), norm.get_parameter("bias").double()
    positions = _centred(model.positions.weight[:length].double()) * scale
    return _centred(model.tokens.weight.double()) * scale, torch.cat([positions, bias[None]])


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def orthonormal(x: Tensor) -> Tensor:
    """An orthonormal basis (rank, width) of the rows of `x` (k, width)."""
    _, values, directions = torch.linalg.svd(x, full_matrices=False)
    basis: Tensor = directions[values > 1e-9 * values[0]] if len(values) else directions
    return basis
