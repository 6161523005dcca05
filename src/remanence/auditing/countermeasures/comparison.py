"""What would help: stand-ins of the owner's model are trained again with each countermeasure, and audited as it was.

    rows, figure = countermeasures(model, training, truth, held_out, initial=base, budget=900, seed=0)

All attacks that apply run on the baseline; the strongest of them runs, with the same settings, on every other
stand-in. With differential privacy a bound holds for every attack: without a record it counts as found with a
probability of at most 1 %, so that under mu-GDP it is found with one of at most Phi(Phi^-1(0.01) + mu) with it.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, final

from torch import nn

from remanence.auditing.answer.report import AttackRow, Countermeasure
from remanence.auditing.answer.tradeoff import tradeoff
from remanence.auditing.attempts.applicability import Applicability, applicable
from remanence.auditing.attempts.reasons import named, simplified, why
from remanence.auditing.attempts.resuming import Steps
from remanence.auditing.attempts.running import Attempt, attempt_test, count_found, strength
from remanence.auditing.checks.outputs import endpoints, is_correct, logits_of
from remanence.auditing.countermeasures.axes import DEFAULT, Sweep
from remanence.auditing.countermeasures.membership import strongest_membership
from remanence.auditing.countermeasures.retraining import (
    FITS,
    Owner,
    StandIn,
    accuracy_on,
    fitting_recipe,
    initial_weights,
    train_stand_in,
)
from remanence.auditing.countermeasures.sweep import sweep_update
from remanence.auditing.countermeasures.variants import Variant, describe, variants
from remanence.experiments.outcome import Figure
from remanence.metrics.evaluation import FPR
from remanence.metrics.statistics import binomial_proportion
from remanence.progress import OutOfTime, say, time_limit, track
from remanence.releases import KnowsFinal, LocalUpdate
from remanence.training import Training
from remanence.training.dp import DELTA
from remanence.training.guarantee import guarantee_of
from remanence.types import Data, Params

_BASELINE = 0.4  # of the budget, for the training and the attacks of the baseline


def countermeasures(
    model: nn.Module,
    training: Training | None,
    truth: Data,
    held_out: Data,
    *,
    initial: Params | None = None,
    fixed: Data | None = None,
    attacks: Sequence[str] | None = None,
    budget: float,
    seed: int,
) -> tuple[tuple[Countermeasure, ...], Figure]:
    """A row for the baseline and one for each countermeasure, and their leakage against their accuracy.

    Stand-ins of `model` are trained by the recipe `training` (None: one that fits the records) on the `truth` and the
    records `fixed`, which an attacker knows, from the weights `initial`, which an attacker then knows too, or from new
    ones. `attacks` names the only ones to run. `budget` is in seconds.
    """
    end = perf_counter() + budget
    owner = Owner(model=deepcopy(model).eval(), truth=truth, held_out=held_out, base=initial, fixed=fixed, seed=seed)
    try:
        with time_limit(_BASELINE * budget):
            start = initial or initial_weights(owner)
            recipe = training or fitting_recipe(owner.model, start, owner.records, seed=seed)
            first = Variant(name="baseline", setting=describe(recipe), training=recipe)
            baseline = train_stand_in(owner, first, start)
    except Exception as fault:
        status, reason = why(fault)
        row = Countermeasure(name="baseline", setting="the model as it is", status=status, reason=reason)
        return (row,), tradeoff((row,))
    trained = {name: start[name] for name, _ in model.named_parameters()}
    others = variants(recipe, trained, records=len(owner.records), base=initial is not None)
    allowed = 0.6 * (end - perf_counter()) / (1 + len(others))
    attacked = _attacked(owner, baseline, attacks, (1 - _BASELINE) * budget / 2, allowed)
    first_row = _row(owner, baseline, attacked.rows[0] if attacked.rows else None)
    rows = [replace(first_row, reason=_notes(owner, baseline, attacked, known=training is not None))]
    for index, variant in enumerate(track(others, total=len(others), label="countermeasures", after=1.0)):
        rows.append(_retrained(owner, variant, start, attacked, (end - perf_counter()) / (len(others) - index)))
        say(f"{variant.name}, {variant.setting.partition(':')[0]}: {rows[-1].status}")
    return tuple(rows), tradeoff(rows)


def countermeasures_for(
    release: Any,
    truth: Data,
    held_out: Data,
    *,
    attacks: Sequence[str] | None = None,
    asked: Sequence[Applicability] = (),
    sweep: Sweep = DEFAULT,
    budget: float,
    seed: int,
) -> tuple[Countermeasure, ...]:
    """The rows of `countermeasures` for the architecture, recipe, base and known records that `release` shows; of a
    client's update those of `sweep_update`, with the attacks as they were `asked`."""
    if isinstance(release, LocalUpdate):
        return sweep_update(release, truth, held_out, sweep, asked, budget=budget, seed=seed)
    if not isinstance(release, KnowsFinal):
        needed = "an update is made again where it is known how the client trained: give `--local`"
        return (Countermeasure(name="baseline", setting="the update as it is", status="refused", reason=needed),)
    model = deepcopy(release.model)
    model.load_state_dict(release.final, strict=False, assign=True)
    training, fixed = (getattr(release, name, None) for name in ("training", "fixed"))
    initial, _ = endpoints(release)
    rows, _ = countermeasures(
        model, training, truth, held_out, initial=initial, fixed=fixed, attacks=attacks, budget=budget, seed=seed
    )
    return rows


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Attacks:
    """The attacks on the baseline with their counts, the strongest first, and how each would run again."""

    rows: tuple[AttackRow, ...]
    again: tuple[Applicability, ...]
    reason: str | None  # why none ran


def _attacked(
    owner: Owner, baseline: StandIn, names: Sequence[str] | None, seconds: float, max_seconds: float
) -> _Attacks:
    """Every attack that applies to the baseline, all in so many `seconds` and each in at most `max_seconds`."""
    end = perf_counter() + seconds
    asked = [each for each in _asked(owner, baseline, names, seconds) if each.status != "refused"]
    steps, tried = Steps(None), list[Attempt]()
    for index, each in enumerate(asked):
        allowed = min(max_seconds, (end - perf_counter()) / (len(asked) - index))
        tried.append(attempt_test(each, owner.truth, owner.held_out, allowed, steps, owner.seed))
    ran = [(each, one) for each, one in zip(asked, tried, strict=True) if one.test is not None]
    rows = count_found([one for _, one in ran])
    found = sorted(zip(rows, ran, strict=True), key=lambda pair: strength(pair[0]), reverse=True)
    return _Attacks(
        rows=tuple(replace(row, subject="stand-in") for row, _ in found),
        again=tuple(
            replace(each, attack=one.attack, seconds=row.seconds, reconstruction=None) for row, (each, one) in found
        ),
        reason=next((named(one.row) for one in tried if one.row.reason), "none applies"),
    )


def _asked(owner: Owner, baseline: StandIn, names: Sequence[str] | None, seconds: float) -> tuple[Applicability, ...]:
    try:
        with time_limit(seconds):
            return applicable(baseline.release, records=len(owner.truth), attacks=names, seed=owner.seed)
    except OutOfTime:
        return ()


def _retrained(owner: Owner, variant: Variant, initial: Params, attacks: _Attacks, allowed: float) -> Countermeasure:
    """The row of a countermeasure, in at most the seconds `allowed`."""
    empty = Countermeasure(name=variant.name, setting=variant.setting, status="refused", reason=variant.refusal)
    if variant.refusal is not None:
        return empty
    start = perf_counter()
    try:
        with time_limit(allowed):
            stand_in = train_stand_in(owner, variant, initial)
            row = _row(owner, stand_in, None)
    except Exception as fault:
        status, fault_words = why(fault)
        return replace(empty, status=status, reason=fault_words, seconds=perf_counter() - start)
    found, reason = _attacked_again(owner, stand_in, attacks, start + allowed)
    return replace(row, attack=found, reason=reason, seconds=perf_counter() - start)


def _attacked_again(
    owner: Owner, stand_in: StandIn, attacks: _Attacks, end: float
) -> tuple[AttackRow | None, str | None]:
    """The strongest attack of the baseline that runs on this stand-in too, and why others did not."""
    reason = None
    for one in attacks.again:
        again = replace(one, release=stand_in.release)
        tried = attempt_test(again, owner.truth, owner.held_out, end - perf_counter(), Steps(None), owner.seed)
        if tried.test is not None:
            [row] = count_found([tried])
            return replace(row, subject="stand-in"), reason
        reason = reason or named(tried.row)
    return None, reason


def _row(owner: Owner, stand_in: StandIn, attack: AttackRow | None) -> Countermeasure:
    """The accuracy, the membership tests and the guarantee of a stand-in, and what `attack` found."""
    release, training, data = stand_in.release, stand_in.variant.training, owner.held_out
    correct = is_correct(logits_of(release.model, release.final, data.x), data.y, training.loss)
    tpr, auc = strongest_membership(release, owner.truth, owner.held_out, seed=owner.seed)
    guarantee = guarantee_of(training)
    return Countermeasure(
        name=stand_in.variant.name,
        setting=stand_in.variant.setting,
        status="ran",
        accuracy=binomial_proportion(int(correct.sum()), len(correct)),
        attack=attack,
        tpr=tpr,
        auc=auc,
        epsilon=round(guarantee.epsilon(), 6) if guarantee else None,
        delta=DELTA if guarantee else None,
        bound=guarantee.tpr(FPR) if guarantee else None,
        seconds=stand_in.seconds,
    )


def _notes(owner: Owner, baseline: StandIn, attacks: _Attacks, *, known: bool) -> str | None:
    """What sets the stand-in apart from the model that was released, and why nothing attacked it."""
    notes = [] if attacks.rows else [f"no attack ran on it ({attacks.reason})"]
    if not known:
        notes.append("the recipe of the model is not known, and this one is ours")
    fits = accuracy_on(owner.model, baseline.release.final, owner.truth, baseline.variant.training)
    if fits < FITS:
        notes.append(f"it fits {fits:.0%} of the private records")
    return "; ".join(notes + simplified(owner.model)) or None
