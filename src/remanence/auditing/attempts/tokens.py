"""The attack on text of an audit, run within the time it is allowed and scored; refused or failed it is a row."""

from dataclasses import dataclass, replace
from time import perf_counter
from typing import final

from remanence.attacks import DAGER
from remanence.auditing.answer.report import AttackRow, Evidence
from remanence.auditing.attempts.applicability import UPDATE
from remanence.auditing.attempts.reasons import why
from remanence.auditing.attempts.running import Attempt, count_found
from remanence.auditing.evidence.tokens import as_records, sequence_test, token_evidence
from remanence.data import Tokens
from remanence.metrics.leakage import LeakTest
from remanence.metrics.tokens import TokenScores, score_tokens
from remanence.progress import time_limit
from remanence.releases import TransformerUpdate
from remanence.seeds import derive_seed
from remanence.types import TokenReconstruction

TEXT_ATTACKS = (DAGER.__name__,)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TokenAttempt:
    """A row; of an attack that ran, what it returned, the test of the sequences and the evidence of the tokens."""

    row: AttackRow
    found: TokenReconstruction | None = None
    test: LeakTest | None = None
    scores: TokenScores | None = None
    evidence: tuple[Evidence, ...] = ()  # recall, then precision


def attempt_tokens(
    release: TransformerUpdate, truth: Tokens, held_out: Tokens, *, seconds: float, seed: int
) -> TokenAttempt:
    """DAGER on `release`, in at most so many `seconds`: what it says of the distinct sequences `truth`; those that were
    held out have as many positions."""
    attack, start = DAGER(), perf_counter()
    row = AttackRow(name=type(attack).__name__, status="ran", knowledge=UPDATE, call=repr(attack))
    try:
        with time_limit(seconds):
            found = attack.run(release, seed=seed)
    except Exception as fault:
        status, reason = why(fault)
        return TokenAttempt(row=replace(row, status=status, reason=reason, seconds=perf_counter() - start))
    row = replace(row, seconds=perf_counter() - start)
    private, others = as_records(truth), as_records(held_out)
    test = sequence_test(found, private, others, seed=derive_seed(seed, "sequences"))
    scores = score_tokens(found, truth, public=held_out, held_out=held_out)
    evidence = token_evidence(scores, found, private, others, seed=derive_seed(seed, "tokens"))
    [counted] = count_found([Attempt(row=row, test=test)])
    return TokenAttempt(row=counted, found=found, test=test, scores=scores, evidence=evidence)
