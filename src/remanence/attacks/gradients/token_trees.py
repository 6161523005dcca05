"""Sequences of a decoder, token by token: Petrov et al. (2024), section 4.

A position of a decoder sees only the tokens before it. So what enters the second attention at position l is a function
of the first l + 1 tokens alone, and can be tested against the span of that attention's gradients: prefixes grow into
sequences by the tokens for which it lies in the span. Where the span has a lower rank than there are prefixes, they are
selected by pursuit, as tokens are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.attacks.gradients.token_span import Pursuit, Span, orthonormal
from remanence.models.transformer import Block, Transformer
from remanence.progress import track


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Prefix:
    """A prefix that was found: its tokens, and what the next position attends to."""

    ids: tuple[int, ...]
    key: Tensor  # (length, width)
    value: Tensor
    score: float  # the smallest of its tokens


def grow_sequences(
    model: Transformer, span: Span, tokens: Tensor, *, count: int, length: int, exact: float, max_atoms: int
) -> tuple[Tensor, Tensor]:
    """Up to `count` sequences (n, length) of these `tokens` (k,), padded with zeros, the most certain first, and their
    scores (n,); `model` holds its weights. At most `max_atoms` prefixes are considered at a time."""
    growing = _grown(model, span, tokens, count=count, length=length, exact=exact, max_atoms=max_atoms)
    return _leaves(list(track(growing, total=count * length, label="tokens of sequences")), count, length)


def _grown(
    model: Transformer, span: Span, tokens: Tensor, *, count: int, length: int, exact: float, max_atoms: int
) -> Iterator[_Prefix]:
    """Each prefix as it is found: all at a time that are in the span, or the one with the largest part in it."""
    tables = _Tables(model=model, tokens=tokens, positions={})
    root = _Prefix(ids=(), key=model.tokens.weight[:0], value=model.tokens.weight[:0], score=1.0)
    prefixes, owners = [root], list[tuple[int, int]]()  # of each atom: the number of its prefix and of its token
    common = orthonormal(torch.stack([tables.alone(position).mean(0) for position in range(length)]).double())
    pursuit = Pursuit.start(span, exact=exact, common=common, dtype=model.tokens.weight.dtype)
    if pursuit.span.fills(common):
        return
    _expand(tables, pursuit, prefixes, owners, [0])
    for _ in range(count * length):
        if pursuit.done:
            break
        scores = pursuit.scores()
        new = (scores > exact).nonzero().flatten()
        new = new if len(new) else scores.argmax()[None]
        first = len(prefixes)
        prefixes += [tables.extend(prefixes[owners[i][0]], owners[i][1], float(scores[i])) for i in new.tolist()]
        yield from prefixes[first:]
        pursuit.select(new)
        scores[new] = 0
        if len(owners) > max_atoms:
            best = scores.topk(max_atoms).indices
            pursuit.keep(best)
            owners = [owners[i] for i in best.tolist()]
        growing = [i for i in range(first, len(prefixes)) if len(prefixes[i].ids) < length]
        _expand(tables, pursuit, prefixes, owners, growing)


def _expand(
    tables: "_Tables", pursuit: Pursuit, prefixes: list[_Prefix], owners: list[tuple[int, int]], numbers: list[int]
) -> None:
    """Add every continuation of the prefixes of these numbers to the atoms."""
    if numbers:
        pursuit.add(torch.cat([tables.continuations(prefixes[i]) for i in numbers]))
        owners += [(i, j) for i in numbers for j in range(len(tables.tokens))]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Tables:
    """The first block at each position for every candidate: queries, keys and values do not depend on the prefix."""

    model: Transformer
    tokens: Tensor  # (k,)
    # of those that were needed: the residual stream, queries, keys, values, all (k, width)
    positions: dict[int, tuple[Tensor, ...]]

    def at(self, position: int) -> tuple[Tensor, ...]:
        if position not in self.positions:
            x = self.model.tokens.weight[self.tokens] + self.model.positions.weight[position]
            self.positions[position] = (x, *self._block(0).projections(x))
        return self.positions[position]

    def alone(self, position: int) -> Tensor:
        """(k, width): what enters the second attention where each token attends to itself only. Its mean is large in a
        trained network, common to all prefixes, and hides how they differ."""
        x, query, key, value = (each[:, None] for each in self.at(position))
        return self._after(x, query, key, value)

    def continuations(self, prefix: _Prefix) -> Tensor:
        """(k, width): what enters the second attention at the position after the prefix, for each token."""
        x, query, key, value = (each[:, None] for each in self.at(len(prefix.ids)))
        key, value = (
            torch.cat([before.expand(len(x), -1, -1), now], dim=1)
            for before, now in ((prefix.key, key), (prefix.value, value))
        )
        return self._after(x, query, key, value)

    def _after(self, x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        block = self._block(0)
        after: Tensor = self._block(1).norm1(block.finish(x, block.attend(query, key, value)))
        return after[:, 0]

    def extend(self, prefix: _Prefix, token: int, score: float) -> _Prefix:
        """The prefix with the token of this number after it."""
        _, _, key, value = self.at(len(prefix.ids))
        return _Prefix(
            ids=(*prefix.ids, int(self.tokens[token])),
            key=torch.cat([prefix.key, key[token, None]]),
            value=torch.cat([prefix.value, value[token, None]]),
            score=min(prefix.score, score),
        )

    def _block(self, number: int) -> Block:
        block = self.model.blocks[number]
        assert isinstance(block, Block)
        return block


def _leaves(prefixes: list[_Prefix], count: int, length: int) -> tuple[Tensor, Tensor]:
    """The prefixes that nothing follows, the longest first and among them the most certain."""
    followed = {prefix.ids[:-1] for prefix in prefixes if prefix.ids}
    leaves = [prefix for prefix in prefixes if prefix.ids and prefix.ids not in followed]
    leaves = sorted(leaves, key=lambda prefix: (-len(prefix.ids), -prefix.score))[:count]
    rows = [[*prefix.ids, *[0] * (length - len(prefix.ids))] for prefix in leaves]
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, length), torch.tensor([leaf.score for leaf in leaves])
