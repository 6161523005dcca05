"""Sequences of an encoder: first which tokens share a sentence, then their order. Ours.

Each position of an encoder sees all others, so no prefix can be tested alone, and Petrov et al. (2024) search over
combinations. What saves the search is the gradient of the first block's values. Its inputs are sums of a token's and
a position's vector, so that it has one error for each token, a_v, by least squares. An error reaches the values through
the attention, which mixes the positions of one sentence: tokens of a sentence have nearly the same error, and a token
of several sentences the sum of theirs. So A = N U, with the errors U of the sentences, and counts N of tokens in them.

The order is found in the second block: what enters its attention at a position of the right sentence lies in the span.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from remanence.attacks.gradients.token_span import Span, first_block_atoms
from remanence.models.transformer import PADDING, Block, Transformer
from remanence.progress import track

_ROUNDS = 8  # of the order's search, at most


def arrange_sequences(
    model: Transformer, span: Span, values: Tensor, tokens: Tensor, *, count: int, length: int, exact: float
) -> tuple[Tensor, Tensor]:
    """Up to `count` sequences (n, length) of these `tokens` (k,), padded with zeros, the most certain first, and their
    scores (n,); `values` (m, width) is the gradient of the first block's value projection, `span` is that of the second
    block, and `model` holds its weights."""
    counts, shares = count_tokens(token_errors(model, values, tokens), count=count, length=length)
    order = _Order(model=model, basis=span.basis.to(model.tokens.weight), exact=exact)
    found = dict[tuple[int, ...], float]()
    for i in track(range(count), total=count, label="sequences"):
        likely = shares[:, i].topk(min(len(tokens), 2 * length)).indices
        row = order.search(tokens.repeat_interleave(counts[:, i])[:length], tokens[likely], length)
        found[tuple(row.tolist())] = float(order.scores(row[None]).amin())
    best = sorted(found, key=lambda row: -found[row])
    return torch.tensor(best).reshape(-1, length), torch.tensor([found[row] for row in best])


def token_errors(model: Transformer, values: Tensor, tokens: Tensor) -> Tensor:
    """(k, m): the sum of the errors of each token's occurrences, each over the deviation that its LayerNorm divided by,
    from the gradient (m, width) of the first block's values."""
    atoms, common = first_block_atoms(model)
    inputs = torch.cat([atoms[tokens], common])
    return (values.double() @ torch.linalg.pinv(inputs)).T[: len(tokens)]


def count_tokens(errors: Tensor, *, count: int, length: int) -> tuple[Tensor, Tensor]:
    """How often each token is in each of `count` sentences, as (k, count) whole numbers and before they are rounded.

    Tokens of one sentence alone make clusters of directions, tokens of several lie between these: of each cut of the
    tree of clusters the largest ones are sentences, and the cut that explains the errors best is taken.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    count = min(count, len(errors))
    tree = linkage(F.normalize(errors).cpu().numpy(), "average")
    best, least = (torch.ones(len(errors), count).long(), torch.ones(len(errors), count)), float("inf")
    for cut in range(count, min(len(errors), 4 * count) + 1):
        cluster = torch.from_numpy(fcluster(tree, cut, "maxclust")).to(errors.device)
        largest = cluster.bincount().argsort(descending=True, stable=True)[:count]
        sentences = torch.stack([errors[cluster == each].nanmedian(0).values for each in largest])
        shares = _shares(errors, sentences)
        whole = shares.round()
        whole = torch.where(whole.any(1, keepdim=True), whole, F.one_hot(shares.argmax(1), count))
        loss = float((errors - whole @ sentences).norm()) + float(errors.norm()) * bool((whole.sum(0) > length).any())
        if loss < least:
            best, least = (whole.long(), shares), loss
    return best


def _shares(errors: Tensor, sentences: Tensor) -> Tensor:
    """(k, n): each of the errors (k, m) as a combination of those of sentences (n, m) that is not negative."""
    from scipy.optimize import nnls

    mixed = [nnls(sentences.T.cpu().numpy(), each)[0] for each in errors.cpu().numpy()]
    return torch.from_numpy(np.stack(mixed)).to(errors)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Order:
    """The order of a sentence's tokens, by the span of the second block."""

    model: Transformer
    basis: Tensor  # (rank, width), orthonormal
    exact: float

    def scores(self, ids: Tensor) -> Tensor:
        """(n, length): the fraction in the span of what enters the second attention, in sequences (n, length); one
        where there is padding."""
        first, second = self.model.blocks[0], self.model.blocks[1]
        assert isinstance(first, Block) and isinstance(second, Block)
        x = second.norm1(first(self.model.embed(ids), self.model.mask(ids)))
        inside = (x @ self.basis.T).square().sum(-1) / x.square().sum(-1)
        return torch.where(ids == PADDING, 1, inside)

    def search(self, bag: Tensor, likely: Tensor, length: int) -> Tensor:
        """The sequence (length,) of the tokens of `bag`, of which some are changed to `likely` ones where that moves it
        into the span."""
        ids = F.pad(self._arranged(bag), (0, length - len(bag)), value=PADDING)
        for _ in range(_ROUNDS):
            if self.scores(ids[None]).amin() > self.exact:
                break
            before = ids
            for at in range(min(length, int((ids != PADDING).sum()) + 1)):
                ids = self._replaced(ids, at, likely)
            size = int((ids != PADDING).sum())
            ids = F.pad(self._arranged(ids[:size]), (0, length - size), value=PADDING)
            if torch.equal(before, ids):
                break
        return ids

    def _arranged(self, ids: Tensor) -> Tensor:
        """The tokens (m,) in the order that is best for each position, as long as what it sees of the others hardly
        depends on their order: an assignment of tokens to positions, repeated while it changes."""
        from scipy.optimize import linear_sum_assignment

        size = len(ids)
        every = torch.arange(size, device=ids.device)
        at, other = every.repeat_interleave(size), every.repeat(size)
        rows = torch.arange(size * size, device=ids.device)
        for _ in range(_ROUNDS):
            exchanged = ids.repeat(size * size, 1)
            exchanged[rows, at], exchanged[rows, other] = ids[other], ids[at]
            cost = (1 - self.scores(exchanged))[rows, at].reshape(size, size)
            order = torch.from_numpy(linear_sum_assignment(cost.cpu().numpy())[1]).to(ids.device)
            if torch.equal(ids[order], ids):
                break
            ids = ids[order]
        return ids

    def _replaced(self, ids: Tensor, at: int, tokens: Tensor) -> Tensor:
        """The sequence with the best of the tokens at one position, or without its last one."""
        last = at > 0 and at + 1 == int((ids != PADDING).sum())
        tokens = torch.cat([ids[at, None], tokens, tokens.new_full((int(last),), PADDING)])
        every = ids.repeat(len(tokens), 1)
        every[:, at] = tokens
        outside = (1 - self.scores(every)).sum(1) / (every != PADDING).sum(1)
        return every[outside.argmin()]
