"""What an attack on text recovered, beside chance: sequences by the rank test of all audits, and the set of tokens.

A sequence is found where a returned one agrees with it more than with any held-out sequence, on a list of which 5 % are
false; a copy agrees in every token. The tokens of a batch are compared with those of other batches: if the update
showed nothing, private and held-out sequences could be exchanged, and p is the fraction of batches of both that have as
large a part of their tokens among the returned ones: a permutation test, which few held-out sequences make weak and not
wrong. Chance is the guess of as many tokens, the most frequent; p is no smaller than that of the sign test between the
guess and what was returned.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from remanence.auditing.answer.report import Evidence
from remanence.data import Tokens
from remanence.metrics.leakage import LeakTest, leak_test
from remanence.metrics.similarity import Similarity
from remanence.metrics.statistics import binomial_proportion
from remanence.metrics.tokens import TokenScores
from remanence.models.transformer import PADDING
from remanence.types import Data, TokenReconstruction

_BATCHES = 9999  # of private and held-out sequences
_MAX_ENTRIES = 1 << 22  # of the batches that are compared at once
_REALS = (-torch.inf, torch.inf)


def of_length(tokens: Tokens, length: int) -> Tokens:
    """The sequences with so many positions: padded, or their first tokens."""
    return replace(tokens, ids=F.pad(tokens.ids, (0, length - tokens.ids.shape[1]), value=PADDING))


def as_records(tokens: Tokens) -> Data:
    """The sequences as records of numbers (n, length), which are equal or not and have no distance."""
    x, y = tokens.ids.cpu().float(), tokens.y.cpu()
    return Data(x=x, y=y, num_classes=tokens.num_classes, name=tokens.name, bounds=_REALS)


def agreement(candidates: Tensor, records: Tensor) -> Tensor:
    """(m, n): the fraction of positions, padding of both aside, at which candidates (m, length) and records (n, length)
    have the same token."""
    rows = [
        ((each == records) & (records != PADDING)).sum(1) / ((each != PADDING) | (records != PADDING)).sum(1)
        for each in candidates
    ]
    return torch.stack(rows).float() if rows else records.new_zeros(0, len(records))


TOKENS_AT_POSITIONS = Similarity(name="tokens at their positions", pairwise=agreement)


def sequence_test(found: TokenReconstruction, private: Data, held_out: Data, *, seed: int) -> LeakTest:
    """Which private sequences (n, length) are found in the returned ones, and which are copied token for token."""
    tested = leak_test(found.ids.cpu().float(), private, held_out, by=(TOKENS_AT_POSITIONS,), seed=seed)
    rows = set(map(tuple, found.ids.tolist()))
    of_corpus = rows & set(map(tuple, held_out.x.long().tolist()))  # then copies are no evidence
    copies = [tuple(row) in rows and not of_corpus for row in private.x.long().tolist()]
    return replace(tested, copies=torch.tensor(copies))


def token_evidence(
    by: str, scores: TokenScores, returned: Tensor, private: Data, held_out: Data, *, seed: int
) -> tuple[Evidence, Evidence]:
    """The fraction of the batch's distinct tokens that was `returned` (k,), and the fraction of those that is in the
    batch; `by` says what they were read from."""
    right = binomial_proportion(scores.right_tokens, scores.tokens)
    recall = Evidence(
        name=f"tokens by {by}: recall",
        value=right.value,
        low=right.low,
        high=right.high,
        chance=scores.guessed_recall,
        meaning=(
            f"fraction of the batch's {scores.tokens:,} distinct tokens that the update shows, order aside; by chance: "
            f"of a guess of the {scores.returned_tokens:,} most frequent tokens of held-out sequences"
        ),
        p=max(_exchanged(returned, private, held_out, right.value, seed), _better_than_guessed(scores)),
        group="tokens",
    )
    count = scores.returned_tokens
    correct = binomial_proportion(scores.right_tokens, count) if count else None
    precision = Evidence(
        name=f"tokens by {by}: precision",
        value=correct and correct.value,
        low=correct and correct.low,
        high=correct and correct.high,
        chance=scores.guessed_tokens / count if count else None,
        meaning=f"fraction of the {count:,} tokens returned that are in the batch; by chance: of that guess",
        group="tokens",
    )
    return recall, precision


def _better_than_guessed(scores: TokenScores) -> float:
    """The p-value of the sign test (McNemar's, exact) that as many tokens are right by the guess alone as by the attack
    alone."""
    from scipy.stats import binom

    return float(binom.sf(scores.only_returned - 1, scores.only_returned + scores.only_guessed, 0.5))


def _exchanged(tokens: Tensor, private: Data, held_out: Data, recall: float, seed: int) -> float:
    """The p-value of the recall: of batches of as many sequences, private or held-out, in place of the private."""
    generator, above = torch.Generator().manual_seed(seed), 0
    ids, column = torch.cat([private.x, held_out.x]).long().unique(return_inverse=True)
    present, returned = ids != PADDING, torch.isin(ids, tokens.cpu())
    for sampled in torch.arange(_BATCHES).split(max(1, _MAX_ENTRIES // (private.x.numel() + len(ids)))):
        rows = [torch.randperm(len(column), generator=generator)[: len(private)] for _ in sampled]
        shown = torch.zeros(len(rows), len(ids), dtype=torch.bool)
        shown = shown.scatter_(1, column[torch.stack(rows)].flatten(1), value=True) & present
        above += int(((shown & returned).sum(1) >= recall * shown.sum(1).double() - 1e-9).sum())
    return (1 + above) / (1 + _BATCHES)


def distinct(tokens: Tokens) -> Tokens:
    """Each sequence once, the first of its copies."""
    first = {tuple(row): i for i, row in reversed(list(enumerate(tokens.ids.tolist())))}
    return tokens.take(sorted(first.values()))
