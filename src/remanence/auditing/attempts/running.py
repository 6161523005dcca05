"""One attack of an audit, run within the time it is allowed and scored. An attack that is refused or fails is a
row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from remanence.attacks import ShadowAttack, with_search
from remanence.auditing.answer.report import AttackRow, Ranks
from remanence.auditing.attempts.applicability import Applicability
from remanence.auditing.attempts.reasons import shortening, why
from remanence.auditing.attempts.resuming import Steps
from remanence.auditing.checks.records import distinct
from remanence.experiments.finding import Finding, attack_cases, reconstruct
from remanence.experiments.summary import number
from remanence.metrics import hungarian, identity
from remanence.metrics.leakage import LeakTest, leak_test
from remanence.progress import time_limit
from remanence.releases import Case
from remanence.seeds import derive_seed
from remanence.shadow import build_bank
from remanence.types import Data, Reconstruction

_MIN_FRACTION = 0.02  # of the steps of a search: with words it is skipped rather than shortened
_RESERVE = 0.8  # of the time left that a shortened search takes: estimates are rough
_SEARCHING = 0.5  # of the time of an attack that its search has at least, however long scoring takes
_MAX_SHADOWS = 1000
MAX_SCORED = 1000  # records: more are sampled for the scores
MAX_NULL = 2000  # held-out records that reconstructions are compared with


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Attempt:
    """A row without its counts; of an attack that ran, it with the steps that it took, the test of what it
    reconstructed, and whether the clock stopped it."""

    row: AttackRow
    attack: Any = None
    test: LeakTest | None = None
    finding: Finding | None = None  # None where only the test was asked for
    stopped: bool = False


_Scored: TypeAlias = tuple[LeakTest, Finding | None]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Reconstructed:
    """What an attack reconstructed, the records it owned, and those that are left to compare with."""

    reconstruction: Reconstruction
    public: Data
    unrelated: Data
    seconds: float
    stopped: bool


def attempt(one: Applicability, private: Data, others: Data, allowed: float, steps: Steps, seed: int) -> Attempt:
    """`one` attack, run and scored in about the seconds `allowed`: a row in any case."""

    def scored(attack: Any, found: _Reconstructed) -> _Scored:
        finding = attack_cases(
            [Case(release=one.release, truth=_scored(private, seed))],
            _Ready(reconstruction=found.reconstruction),
            public=found.public,
            unrelated=found.unrelated,
            matching=identity if len(private) == len(found.reconstruction.x) == 1 else hungarian,
            seed=seed,
        )
        finding = replace(finding, attack=attack, seconds=found.seconds)
        return finding.scores.test, finding

    return _attempted(one, others, allowed, steps, seed, scored)


def attempt_test(one: Applicability, private: Data, others: Data, allowed: float, steps: Steps, seed: int) -> Attempt:
    """`attempt` with the test of which records are found alone, several times faster than all scores and levels."""

    def tested(attack: Any, found: _Reconstructed) -> _Scored:
        x, truth = found.reconstruction.x.detach(), _scored(private, seed)
        truth, unrelated = (data.to(x.device, x.dtype) for data in (truth, found.unrelated))
        return leak_test(x, truth, unrelated, seed=seed), None

    return _attempted(one, others, allowed, steps, seed, tested)


def _attempted(
    one: Applicability,
    others: Data,
    allowed: float,
    steps: Steps,
    seed: int,
    score: Callable[[Any, _Reconstructed], _Scored],
) -> Attempt:
    row = AttackRow(name=one.name, status="refused", reason=one.reason, knowledge=one.knowledge)
    if one.status == "refused" or one.attack is None:
        return Attempt(row=row)
    allowed = max(allowed - one.scoring, _SEARCHING * allowed)
    attack, words = _within(one, allowed, steps) if one.reconstruction is None else (one.attack, None)
    if attack is None:
        return Attempt(row=replace(row, status="skipped", reason=words))
    row, start = replace(row, call=repr(attack)), perf_counter()
    try:
        found = _reconstructed(one, attack, others, allowed, seed)
        test, finding = score(attack, found)
    except Exception as fault:
        status, reason = why(fault)
        return Attempt(row=replace(row, status=status, reason=reason, seconds=perf_counter() - start))
    shortened = shortening(words, "stopped early" if found.stopped else None)
    row = replace(
        row,
        status="ran",
        reason="; ".join(filter(None, (one.reason, shortened))) or None,
        shortened=shortened is not None,
        seconds=perf_counter() - start,
    )
    return Attempt(row=row, attack=attack, test=test, finding=finding, stopped=found.stopped)


def _within(one: Applicability, allowed: float, chosen: Steps) -> tuple[Any, str | None]:
    """The attack as it fits into the seconds `allowed`, and what was taken away; None and why where that is too
    little."""
    attack: Any = one.attack
    seconds = one.seconds or 0.0
    if allowed <= 0:
        return None, "the budget was spent before it: give more with `--budget`"
    if not hasattr(attack, "search"):
        return attack, None
    usual = attack.search.steps
    fraction = min(1.0, _RESERVE * allowed / seconds) if seconds > allowed else 1.0
    if fraction < _MIN_FRACTION:
        return None, f"it needs about {minutes(seconds)} and has {minutes(allowed)}: give more with `--budget`"
    steps = chosen.choose(repr(attack), max(1, int(fraction * usual)))
    words = f"{steps} of {usual} steps" if steps < usual else None
    return with_search(attack, steps=steps, checkpoints=chosen.folder), words


def _reconstructed(one: Applicability, attack: Any, others: Data, seconds: float, seed: int) -> _Reconstructed:
    """What the attack reconstructs in at most so many `seconds`."""
    public, unrelated = others.take(slice(0, 0)), others
    if len(others) > MAX_NULL:
        unrelated = others.take(_sampled(len(others), MAX_NULL, seed))
    if isinstance(attack, ShadowAttack):
        order = _sampled(len(others), len(others), seed)
        half = min(_MAX_SHADOWS, len(others) // 2)
        public, unrelated = others.take(order[:half]), others.take(order[half:][:MAX_NULL])
    start, found, stopped = perf_counter(), one.reconstruction, False
    if found is None:
        with time_limit(seconds) as limit:
            bank = build_bank(one.release, public, seed=seed) if isinstance(attack, ShadowAttack) else None
            found = reconstruct([one.release], attack, bank=bank, seed=seed)
        stopped = limit.reached
    return _Reconstructed(
        reconstruction=found,
        public=public,
        unrelated=unrelated,
        seconds=perf_counter() - start,
        stopped=stopped,
    )


def _scored(private: Data, seed: int) -> Data:
    """The records that are scored, each once."""
    truth = distinct(private)
    return truth if len(truth) <= MAX_SCORED else truth.take(_sampled(len(truth), MAX_SCORED, seed))


@final
@dataclass(frozen=True, kw_only=True)
class _Ready:
    """An attack that ran already."""

    reconstruction: Reconstruction

    def run(self, release: Any, *, seed: int) -> Reconstruction:
        return self.reconstruction


def _sampled(count: int, size: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(derive_seed(seed, "scored")))[:size]


def count_found(tried: Sequence[Attempt]) -> list[AttackRow]:
    """The rows with what each attack that ran found by itself."""
    return [_counted(one.row, one.test) if one.test else one.row for one in tried]


def _counted(row: AttackRow, test: LeakTest) -> AttackRow:
    records, ranks = len(test.p), test.identification
    return replace(
        row,
        records=records,
        found=int(test.found.sum()),
        exact=int(test.copies.sum()),
        low=test.fraction.low * records,
        high=test.fraction.high * records,
        chance=test.false,
        fdr=test.fdr,
        p=test.together,
        ranks=Ranks(
            held_out=ranks.held_out,
            median=ranks.median,
            chance_median=number(ranks.chance_median),
            first=ranks.top1.value,
            chance_first=number(ranks.chance_top1),
            first_five=ranks.top5.value,
            chance_first_five=number(ranks.chance_top5),
        ),
    )


def strength(row: AttackRow) -> tuple[int, int, float]:
    """By which of several attacks that ran the strongest is chosen."""
    return row.found or 0, row.exact or 0, -(1.0 if row.p is None else row.p)


def minutes(seconds: float) -> str:
    """A time in words."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
