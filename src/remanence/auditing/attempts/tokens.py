"""The attack on text of an audit, run within the time it is allowed and scored; refused or failed it is a row."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import final

import torch
from torch import Tensor

from remanence.attacks import DAGER, infer_tokens
from remanence.auditing.answer.report import AttackRow, Evidence
from remanence.auditing.attempts.applicability import UPDATE
from remanence.auditing.attempts.reasons import why
from remanence.auditing.attempts.running import Attempt, count_found
from remanence.auditing.evidence.tokens import as_records, sequence_test, token_evidence
from remanence.data import Tokens
from remanence.errors import BadInput
from remanence.metrics.leakage import LeakTest
from remanence.metrics.tokens import TokenScores, score_tokens
from remanence.progress import time_limit
from remanence.releases import TransformerUpdate
from remanence.seeds import derive_seed
from remanence.types import TokenReconstruction

TEXT_ATTACKS = (DAGER.__name__,)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TokensRead:
    """A set of tokens that was read from an update: its scores, and their evidence."""

    scores: TokenScores
    recall: Evidence
    precision: Evidence


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TokenAttempt:
    """A row; of an attack that ran, what it returned and the test of the sequences; and the tokens by every reading."""

    row: AttackRow
    found: TokenReconstruction | None = None
    test: LeakTest | None = None
    read: tuple[TokensRead, ...] = ()

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return tuple(each for read in self.read for each in (read.recall, read.precision))

    @property
    def best(self) -> TokensRead | None:
        """The reading that shows the most beyond chance, its p-value times their number."""
        if not self.read:
            return None
        best = min(self.read, key=lambda read: (read.recall.p or 0.0, -read.scores.right_tokens))
        p = min(1.0, len(self.read) * (best.recall.p or 0.0))
        return replace(best, recall=replace(best.recall, p=p))


def attempt_tokens(
    release: TransformerUpdate, truth: Tokens, held_out: Tokens, *, seconds: float, seed: int
) -> TokenAttempt:
    """DAGER on `release`, in at most so many `seconds`: what it says of the distinct sequences `truth`; those that were
    held out have as many positions. Tokens are read from the embeddings too, where they were sent."""
    attack, start = DAGER(), perf_counter()
    row = AttackRow(name=type(attack).__name__, status="ran", knowledge=UPDATE, call=repr(attack))
    found = None
    try:
        with time_limit(seconds):
            found = attack.run(release, seed=seed)
    except Exception as fault:
        status, reason = why(fault)
        row = replace(row, status=status, reason=reason)
    row = replace(row, seconds=perf_counter() - start)
    read = tuple(_read(release, found, truth, held_out, seed))
    if found is None:
        return TokenAttempt(row=row, read=read)
    test = sequence_test(found, as_records(truth), as_records(held_out), seed=derive_seed(seed, "sequences"))
    [counted] = count_found([Attempt(row=row, test=test)])
    return TokenAttempt(row=counted, found=found, test=test, read=read)


def _read(
    release: TransformerUpdate, found: TokenReconstruction | None, truth: Tokens, held_out: Tokens, seed: int
) -> Iterator[TokensRead]:
    """The tokens that the attack returned, and those of the embeddings' gradient."""
    sets = {} if found is None else {"attention": found.tokens}
    with suppress(BadInput):  # a client may send adapters alone
        sets["embeddings"] = infer_tokens(release)
    private, others = as_records(truth), as_records(held_out)
    for by, tokens in sets.items():
        returned = _without_sequences(tokens, release.length)
        scores = score_tokens(returned, truth, public=held_out, held_out=held_out)
        evidence = token_evidence(by, scores, tokens, private, others, seed=derive_seed(seed, "tokens"))
        yield TokensRead(scores=scores, recall=evidence[0], precision=evidence[1])


def _without_sequences(tokens: Tensor, length: int) -> TokenReconstruction:
    return TokenReconstruction(
        ids=torch.zeros(0, length, dtype=torch.int64),
        scores=torch.zeros(0),
        tokens=tokens,
        token_scores=torch.ones(len(tokens)),
    )
