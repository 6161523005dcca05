"""Scores of reconstructed text beside what a guess reaches: exact tokens and exact sequences.

The null levels are those of somebody who has seen no update. One guesses as many distinct tokens as were returned, the
most frequent of public sentences first, which is the best guess there is without the update. The other compares the
returned sequences with held-out sentences of the same corpus: what agrees with those is the corpus, not the batch.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.data.tokens import Tokens
from remanence.types import TokenReconstruction

_PADDING = 0


@final
@dataclass(frozen=True, kw_only=True)
class TokenScores:
    """How much of a batch was reconstructed; a token or sequence that occurs twice in a batch counts once."""

    tokens: int  # distinct, in the batch
    right_tokens: int
    returned_tokens: int
    guessed_tokens: int  # right, of as many guesses as tokens were returned
    only_returned: int  # right, and not guessed
    only_guessed: int  # guessed right, and not returned
    sequences: int  # distinct, in the batch
    right_sequences: int  # with every token at its position
    returned_sequences: int
    held_out_sequences: int  # returned, and found among held-out sentences
    overlap: float  # mean over the batch: fraction of positions at which the nearest returned sequence agrees
    held_out_overlap: float  # the same for as many held-out sentences

    @property
    def recall(self) -> float:
        """The fraction of the batch's tokens that was returned."""
        return self.right_tokens / self.tokens

    @property
    def precision(self) -> float:
        """The fraction of the returned tokens that is in the batch; NaN if there are none."""
        return self.right_tokens / self.returned_tokens if self.returned_tokens else float("nan")

    @property
    def guessed_recall(self) -> float:
        return self.guessed_tokens / self.tokens


def score_tokens(found: TokenReconstruction, truth: Tokens, *, public: Tokens, held_out: Tokens) -> TokenScores:
    """Score a reconstruction against the batch `truth`; guesses are made from `public` sentences."""
    true, returned = _distinct(truth.ids), set(found.tokens.tolist())
    counts = public.ids.flatten().bincount(minlength=len(public.vocabulary))
    counts[_PADDING] = 0
    guesses = set(counts.argsort(descending=True, stable=True)[: len(returned)].tolist())
    rows, candidates = set(map(tuple, truth.ids.tolist())), set(map(tuple, found.ids.tolist()))
    others = held_out.take(slice(0, len(truth)))
    return TokenScores(
        tokens=len(true),
        right_tokens=len(true & returned),
        returned_tokens=len(returned),
        guessed_tokens=len(true & guesses),
        only_returned=len(true & returned - guesses),
        only_guessed=len(true & guesses - returned),
        sequences=len(rows),
        right_sequences=len(rows & candidates),
        returned_sequences=len(candidates),
        held_out_sequences=len(candidates & set(map(tuple, held_out.ids.tolist()))),
        overlap=_overlap(truth.ids, found.ids),
        held_out_overlap=_overlap(others.ids, found.ids),
    )


def _distinct(ids: Tensor) -> set[int]:
    return set(ids.unique().tolist()) - {_PADDING}


def _overlap(truth: Tensor, candidates: Tensor) -> float:
    """The mean over sequences (n, length) of the largest fraction of equal tokens in any candidate (m, length)."""
    if not len(candidates):
        return 0.0
    present = truth != _PADDING
    equal = (truth[:, None] == candidates.to(truth.device)[None]) & present[:, None]
    best = equal.sum(-1).amax(1) / present.sum(1).clamp_min(1)
    return float(best.to(torch.float64).mean())
