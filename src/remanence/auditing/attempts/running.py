"""One attack of an audit, run within the time it is allowed and scored; the counts of several, corrected for their
number. An attack that is refused or fails is a row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, final

import torch
from torch import Tensor

from remanence.attacks import ShadowAttack, with_search
from remanence.auditing.answer.report import AttackRow
from remanence.auditing.attempts.applicability import Applicability
from remanence.auditing.attempts.resuming import Steps
from remanence.auditing.checks.records import distinct
from remanence.errors import BadInput
from remanence.experiments.finding import Finding, attack_cases, reconstruct
from remanence.metrics import hungarian, identity
from remanence.metrics.evaluation import FPR
from remanence.metrics.exchangeability import FDR, discoveries, exact_copies, leak_test
from remanence.metrics.statistics import binomial_proportion
from remanence.progress import OutOfTime, time_limit
from remanence.releases import Case
from remanence.seeds import derive_seed
from remanence.shadow import build_bank
from remanence.types import Data, Reconstruction

_MIN_FRACTION = 0.02  # of the steps of a search: with fewer it is skipped rather than shortened
_RESERVE = 0.8  # of the time left that a shortened search takes; scoring needs some
_MAX_SHADOWS = 1000
_MAX_SCORED = 1000  # records: more are sampled for the scores
_MAX_NULL = 2000  # held-out records that reconstructions are compared with


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Attempt:
    """A row without its counts, and what the attack reconstructed."""

    row: AttackRow
    finding: Finding | None = None


def attempt(one: Applicability, private: Data, others: Data, allowed: float, steps: Steps, seed: int) -> Attempt:
    """`one` attack, run in at most the seconds `allowed`: a row in any case."""
    row = AttackRow(name=one.name, status="refused", reason=one.reason, knowledge=one.knowledge)
    if one.status == "refused" or one.attack is None:
        return Attempt(row=row)
    attack, reason = _within(one, allowed, steps) if one.reconstruction is None else (one.attack, None)
    if attack is None:
        return Attempt(row=replace(row, status="skipped", reason=reason))
    row = replace(row, reason=reason or one.reason, call=repr(attack))
    start = perf_counter()
    try:
        finding = _found(one, attack, private, others, allowed, seed)
    except OutOfTime:
        text = "the budget ended before it did: give more with `--budget`"
        return Attempt(row=replace(row, status="skipped", reason=text, seconds=perf_counter() - start))
    except BadInput as refusal:
        return Attempt(row=replace(row, reason=str(refusal), seconds=perf_counter() - start))
    except Exception as fault:
        reason = f"{type(fault).__name__}: {str(fault).partition(chr(10))[0]}"
        return Attempt(row=replace(row, status="failed", reason=reason, seconds=perf_counter() - start))
    return Attempt(row=replace(row, status="ran", seconds=perf_counter() - start), finding=finding)


def _within(one: Applicability, allowed: float, chosen: Steps) -> tuple[Any, str | None]:
    """The attack as it fits into the seconds `allowed`, and what was taken away; None where that is too little."""
    attack: Any = one.attack
    seconds = one.seconds or 0.0
    if allowed <= 0:
        return None, "the budget was spent by the attacks before it: give more with `--budget`"
    if not hasattr(attack, "search"):
        return attack, None
    usual = attack.search.steps
    fraction = min(1.0, _RESERVE * allowed / seconds) if seconds > allowed else 1.0
    if fraction < _MIN_FRACTION:
        return None, f"it needs about {minutes(seconds)} and has {minutes(allowed)}: give more with `--budget`"
    steps = chosen.choose(repr(attack), max(1, int(fraction * usual)))
    reason = f"{steps} of {usual} steps, to keep the budget" if steps < usual else None
    return with_search(attack, steps=steps, checkpoints=chosen.folder), reason


def _found(one: Applicability, attack: Any, private: Data, others: Data, seconds: float, seed: int) -> Finding:
    """What the attack reconstructs in at most so many `seconds`, scored, which may take longer."""
    public, unrelated = others.take(slice(0, 0)), others
    if isinstance(attack, ShadowAttack):
        order = _sampled(len(others), len(others), seed)
        half = min(_MAX_SHADOWS, len(others) // 2)
        public, unrelated = others.take(order[:half]), others.take(order[half:])
    truth = distinct(private)
    truth = truth if len(truth) <= _MAX_SCORED else truth.take(_sampled(len(truth), _MAX_SCORED, seed))
    start, found = perf_counter(), one.reconstruction
    if found is None:
        with time_limit(seconds):
            bank = build_bank(one.release, public, seed=seed) if isinstance(attack, ShadowAttack) else None
            found = reconstruct([one.release], attack, bank=bank, seed=seed)
    seconds = perf_counter() - start
    finding = attack_cases(
        [Case(release=one.release, truth=truth)],
        _Ready(reconstruction=found),
        public=public,
        unrelated=unrelated,
        matching=identity if len(private) == len(found.x) == 1 else hungarian,
        seed=seed,
    )
    return replace(finding, attack=attack, seconds=seconds)


@final
@dataclass(frozen=True, kw_only=True)
class _Ready:
    """An attack that ran already."""

    reconstruction: Reconstruction

    def run(self, release: Any, *, seed: int) -> Reconstruction:
        return self.reconstruction


def _sampled(count: int, size: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(derive_seed(seed, "scored")))[:size]


def count_found(
    tried: Sequence[Attempt], others: Data, seed: int, *, attacks: int | None = None
) -> list[tuple[AttackRow, Tensor | None]]:
    """The rows with their counts, at a false-positive rate that is divided by the number of `attacks`, by default of
    those that ran, and for each attack that ran which records were found."""
    ran = attacks or sum(one.finding is not None for one in tried)
    return [_counted(one.row, one.finding, ran, others, seed) if one.finding else (one.row, None) for one in tried]


def _counted(row: AttackRow, finding: Finding, attacks: int, others: Data, seed: int) -> tuple[AttackRow, Tensor]:
    """The row with the records that are listed by either test, and those that are exact; which they are."""
    scores, truth, x = finding.scores, finding.truth, finding.reconstruction.x.detach()
    records = len(truth)
    held_out = others if len(others) <= _MAX_NULL else others.take(_sampled(len(others), _MAX_NULL, seed))
    ranks = leak_test(x, truth, held_out, scores.primary, seed=derive_seed(seed, "ranks"))
    finest = 1 / (1 + min(scores.nulls[name].distinct for name in ("held_out", "unrelated")))
    level = max(FPR / attacks, min(finest, FPR))
    pooled = (torch.maximum(scores.p_held_out, scores.p_unrelated) <= level).cpu()
    listed = discoveries(ranks.records, FDR / attacks)
    exact = exact_copies(x, truth, held_out).cpu()
    identified = pooled | listed | exact
    found = int(identified.sum())
    interval = binomial_proportion(found, records)
    counted = replace(
        row,
        records=records,
        found=found,
        exact=int(exact.sum()),
        low=interval.low * records,
        high=interval.high * records,
        chance=level * records,
        level=level,
        p=ranks.together,
    )
    return counted, identified


def minutes(seconds: float) -> str:
    """A time in words."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
