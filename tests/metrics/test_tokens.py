"""Scores of text against loops over lists."""

from collections import Counter

import torch

from remanence.data import Tokens
from remanence.metrics.tokens import score_tokens
from remanence.types import TokenReconstruction

WORDS = tuple(map(str, range(30)))


def sampled(n: int, seed: int) -> Tokens:
    ids = (30 * torch.rand(n, 5, generator=torch.Generator().manual_seed(seed)) ** 2).long()
    ids[:, 0] = ids[:, 0].clamp_min(1)
    return Tokens(ids=ids, y=torch.zeros(n).long(), vocabulary=WORDS, num_classes=1)


def test_scores_are_those_of_loops_over_lists() -> None:
    truth, public, held_out = sampled(6, 0), sampled(40, 1), sampled(40, 2)
    ids = torch.cat([truth.ids[:3], held_out.ids[:1], sampled(2, 3).ids])
    tokens = torch.tensor([4, 1, 0, 2, 9, 29])[[0, 1, 3, 4, 5]]
    found = TokenReconstruction(ids=ids, scores=torch.ones(6), tokens=tokens, token_scores=torch.ones(5))
    scores = score_tokens(found, truth, public=public, held_out=held_out)

    true = {token for row in truth.ids.tolist() for token in row if token}
    counts = Counter(token for row in public.ids.tolist() for token in row if token)
    guesses = sorted(counts, key=lambda token: (-counts[token], token))[:5]
    assert scores.tokens == len(true)
    assert scores.right_tokens == sum(token in true for token in tokens.tolist())
    assert scores.guessed_tokens == sum(token in true for token in guesses)
    assert scores.recall == scores.right_tokens / len(true)
    assert scores.precision == scores.right_tokens / 5
    assert scores.right_sequences == sum(row in ids.tolist() for row in truth.ids.tolist())
    assert scores.held_out_sequences == sum(row in held_out.ids.tolist() for row in ids.tolist())
    for of, value in ((truth, scores.overlap), (held_out.take(slice(0, 6)), scores.held_out_overlap)):
        best = [
            max(sum(a == b and a > 0 for a, b in zip(row, other, strict=True)) for other in ids.tolist())
            / sum(a > 0 for a in row)
            for row in of.ids.tolist()
        ]
        assert abs(value - sum(best) / len(best)) < 1e-6


def test_nothing_returned_scores_nothing() -> None:
    truth = sampled(3, 0)
    none = torch.zeros(0)
    found = TokenReconstruction(ids=none.long().reshape(0, 5), scores=none, tokens=none.long(), token_scores=none)
    scores = score_tokens(found, truth, public=truth, held_out=truth)
    assert (scores.recall, scores.right_sequences, scores.overlap, scores.guessed_tokens) == (0, 0, 0, 0)
