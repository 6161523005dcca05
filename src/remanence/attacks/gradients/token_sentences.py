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
    tokens = tokens[tokens != PADDING]
    mean = _mean(model, tokens, length)
    span = span.without(mean)
    if span.fills(mean) or not len(tokens):
        return torch.zeros(0, length, dtype=torch.int64), torch.zeros(0)
    like = model.tokens.weight
    order = _Order(model=model, mean=mean.to(like), basis=span.basis.to(like), exact=exact)
    counts, coefficients = count_tokens(token_errors(model, values, tokens, length), count=count, length=length)
    found = dict[tuple[int, ...], float]()
    for i in track(range(counts.shape[1]), total=counts.shape[1], label="sequences"):
        likely = tokens[coefficients[:, i].topk(min(len(tokens), 2 * length)).indices]
        bag = tokens.repeat_interleave(counts[:, i])[:length]
        row = order.search(bag if len(bag) else likely[:1], likely, length)
        found[tuple(row.tolist())] = float(order.scores(row[None]).amin())
    best = sorted(found, key=lambda row: -found[row])
    return torch.tensor(best).reshape(-1, length), torch.tensor([found[row] for row in best])


def token_errors(model: Transformer, values: Tensor, tokens: Tensor, length: int) -> Tensor:
    """(k, m): the sum of the errors of each token's occurrences, each over the deviation that its LayerNorm divided by,
    from the gradient (m, width) of the first block's values, in sequences of at most `length` tokens."""
    atoms, common = first_block_atoms(model, length)
    inputs = torch.cat([atoms[tokens], common])
    errors: Tensor = (values.double() @ torch.linalg.pinv(inputs)).T[: len(tokens)]
    return errors


def count_tokens(errors: Tensor, *, count: int, length: int) -> tuple[Tensor, Tensor]:
    """How often each token is in each of `count` sentences, as (k, count) whole numbers and before they are rounded.

    Tokens of one sentence alone make clusters of directions, tokens of several lie between these: of each cut of the
    tree of clusters the largest ones are sentences, and the cut that explains the errors best is taken.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    count = min(count, len(errors))
    best, best_loss = (errors.new_ones(len(errors), count).long(), errors.new_ones(len(errors), count)), float("inf")
    if len(errors) < 2:
        return best
    tree = linkage(F.normalize(errors).cpu().numpy(), "average")
    for clusters in range(count, min(len(errors), 4 * count) + 1):
        cluster = torch.from_numpy(fcluster(tree, clusters, "maxclust")).to(errors.device)
        largest = cluster.bincount().argsort(descending=True, stable=True)[:count]
        sentences = torch.stack([errors[cluster == each].median(0).values for each in largest])
        coefficients = _coefficients(errors, sentences)
        rounded = coefficients.round().clamp_max(length)
        rounded = torch.where(rounded.any(1, keepdim=True), rounded, F.one_hot(coefficients.argmax(1), count))
        loss = float((errors - rounded @ sentences).norm()) + float(errors.norm()) * bool(
            (rounded.sum(0) > length).any()
        )
        if loss < best_loss:
            best, best_loss = (rounded.long(), coefficients), loss
    return best


def _coefficients(errors: Tensor, sentences: Tensor) -> Tensor:
    """(k, n): each of the errors (k, m) as a combination of those of sentences (n, m) that is not negative."""
    from scipy.optimize import nnls

    mixed = [nnls(sentences.T.cpu().numpy(), each)[0] for each in errors.cpu().numpy()]
    return torch.from_numpy(np.stack(mixed)).to(errors)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Order:
    """The order of a sentence's tokens, by the span of the second block."""

    model: Transformer
    mean: Tensor  # (1, width), norm one: a direction that is projected out
    basis: Tensor  # (rank, width), orthonormal: the span without it
    exact: float

    def scores(self, ids: Tensor) -> Tensor:
        """(n, length): the fraction in the span of what enters the second attention, in sequences (n, length); one
        where there is padding."""
        x = _entering(self.model, ids)
        x = x - (x @ self.mean.T) @ self.mean
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
            for at in range(length):
                if at and ids[at - 1] == PADDING:
                    break
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


def _mean(model: Transformer, tokens: Tensor, length: int) -> Tensor:
    """(1, width), of norm one: the mean of what enters the second attention over every token at every position. It is
    large in a trained network, common to all sequences, and hides how they differ."""
    every = torch.stack([tokens.roll(shift) for shift in range(length)], dim=1)
    return F.normalize(_entering(model, every).mean((0, 1)).double(), dim=0)[None]


def _entering(model: Transformer, ids: Tensor) -> Tensor:
    """What enters the second attention, for sequences (n, length): (n, length, width)."""
    first, second = model.blocks[0], model.blocks[1]
    assert isinstance(second, Block)
    entering: Tensor = second.norm1(first(model.embed(ids), model.mask(ids)))
    return entering
