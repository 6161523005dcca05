"""What would help a federated client: its update made again with each setting of each defense, attacked, and its
federation trained for a few rounds.

    rows = sweep_update(release, truth, held_out, {"clients": (2, 5, 10), "noise": (0.1, 1)}, asked, budget=450, seed=0)

All attacks that are given run on each setting, as far as its part of the budget goes: one that reads the plain update
exactly may be the first that noise defeats. Sums cost no accuracy, as the server steps along the same mean; all other
defenses are those of every client of the federation, after those that it had before. A sum of sums is of all their
clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, final

from remanence.auditing.answer.report import Countermeasure
from remanence.auditing.answer.severity import find_leak
from remanence.auditing.attempts.applicability import Applicability, applicable_again
from remanence.auditing.attempts.reasons import named, simplified, why
from remanence.auditing.attempts.resuming import Steps
from remanence.auditing.attempts.running import Attempt, attempt_test, count_found, strength
from remanence.auditing.countermeasures.axes import AXES, Setting, Sweep, settings
from remanence.auditing.countermeasures.federation import Federation
from remanence.auditing.countermeasures.membership import strongest_membership
from remanence.auditing.countermeasures.variants import describe
from remanence.auditing.evidence.labels import labels_of
from remanence.auditing.evidence.together import together
from remanence.errors import BadInput, NotEnoughKnowledge
from remanence.metrics import Interval
from remanence.progress import say, time_limit, track
from remanence.releases import LocalUpdate
from remanence.seeds import derive_seed
from remanence.types import Data

MAX_ROUNDS = 200  # of the federated training
_TRAINING = 0.1  # of the time of the baseline, for the federated training
_MAX_TRAINING = 0.5  # of the time of a setting: defenses take time too
_LABELS = 0.3  # of the time of a setting, for the exchanges of inferred labels
_UNDEFENDED = Setting(axis="baseline", value=0.0, words="the update as it is")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Sweep:
    """What the settings of a sweep share."""

    federation: Federation
    asked: Sequence[Applicability]
    steps: Steps  # that each search takes, the same for all
    seed: int


def check_sweep(sweep: Sweep, release: Any) -> None:
    """Refuse axes and values that no sweep has, and what cannot be made again with them."""
    settings(sweep)
    if not isinstance(release, LocalUpdate):
        message = (
            "`sweep` makes the update of a client again, and needs to know how it trained, got a "
            f"{type(release).__name__}: give `--local`, or a `LocalUpdate` with its `training`"
        )
        raise NotEnoughKnowledge(message, argument="sweep")


def sweep_update(
    release: LocalUpdate,
    truth: Data,
    held_out: Data,
    sweep: Sweep,
    asked: Sequence[Applicability],
    *,
    budget: float,
    seed: int,
) -> tuple[Countermeasure, ...]:
    """A row for the update as it is and one for each setting of the `sweep`, in about `budget` seconds.

    `asked` are the attacks as they apply to `release`, in the order in which they run. Its client has the records
    `truth`; those of other clients are taken from `held_out`. Where it is the mean over several clients, a setting of
    `clients` is so many times as many.
    """
    end, chosen = perf_counter() + budget, [_in_clients(setting, release.clients) for setting in settings(sweep)]
    clients = release.clients * max(setting.clients for setting in chosen)
    try:
        federation = Federation.from_held_out(release, truth, held_out, clients, seed=derive_seed(seed, "federation"))
    except BadInput as refusal:
        row = Countermeasure(name="baseline", setting=_UNDEFENDED.words, status="refused", reason=str(refusal))
        return (row, *(replace(row, name=each.axis, setting=each.words, value=each.value) for each in chosen))
    shared = _Sweep(federation=federation, asked=asked, steps=Steps(None), seed=seed)
    first, rounds = _baseline(shared, perf_counter() + budget / (1 + len(chosen)))
    rows = [first]
    for index, setting in enumerate(track(chosen, total=len(chosen), label="settings", after=1.0)):
        allowed = (end - perf_counter()) / (len(chosen) - index)
        rows.append(_defended(shared, setting, first, rounds, perf_counter() + allowed))
        say(f"{setting.words}: {_found_words(rows[-1])}")
    return tuple(rows)


def _in_clients(setting: Setting, clients: int) -> Setting:
    """The setting in the number of clients that it sums up, where the update is the mean over so many `clients`."""
    total = clients * setting.clients
    return replace(setting, value=total, words=AXES["clients"].words.format(total)) if setting.clients > 1 else setting


def _baseline(shared: _Sweep, end: float) -> tuple[Countermeasure, int]:
    """The row of the update as it was sent, and the rounds of federated training that there was time for; none where
    they leave the model no better than naming the commonest class, so that a defense cannot make it worse."""
    federation, start = shared.federation, perf_counter()
    empty = Countermeasure(name="baseline", setting=_UNDEFENDED.words, status="refused")
    try:
        limit = _TRAINING * (end - start)
        with time_limit(limit):
            indices = track(range(MAX_ROUNDS), total=MAX_ROUNDS, label="rounds", after=1.0, may_stop=True)
            weights, rounds = federation.train((), indices)
        row = _attacked(shared, _UNDEFENDED, end)
    except Exception as fault:
        status, reason = why(fault)
        return replace(empty, status=status, reason=reason, seconds=perf_counter() - start), 0
    accuracy, before, size = (
        federation.accuracy(weights),
        federation.accuracy(federation.sent.at),
        federation.size,
    )
    learnt = accuracy.low > federation.commonest
    trained = f"{rounds} rounds of {federation.clients} clients with {size} records each"
    notes = [
        describe(federation.sent.training),
        *_stated_defenses(federation.sent),
        f"accuracy: after {trained}, from {before.value:.0%}" if learnt else f"accuracy: {trained} learn nothing",
        *simplified(federation.sent.model, federation.sent.batch_norm),
        *filter(None, (row.reason,)),
    ]
    row = replace(row, accuracy=accuracy if learnt else None, reason="; ".join(notes), seconds=perf_counter() - start)
    return row, rounds if learnt else 0


def _stated_defenses(sent: LocalUpdate) -> list[str]:
    """What hides the records of the update as it was sent."""
    clients = [f"the sum of {sent.clients} clients, which a sum of more includes"] if sent.clients > 1 else []
    stated = ", ".join(map(str, sent.defenses))
    return [*clients, *([f"the clients' own defenses come before any other: {stated}"] if stated else [])]


def _defended(shared: _Sweep, setting: Setting, first: Countermeasure, rounds: int, end: float) -> Countermeasure:
    """The row of one setting, made before the time `end`."""
    start = perf_counter()
    try:
        accuracy, reason = _trained(shared, setting, first, rounds, _MAX_TRAINING * (end - start))
        row = _attacked(shared, setting, end)
    except Exception as fault:
        status, reason = why(fault)
        row, accuracy = Countermeasure(name=setting.axis, setting=setting.words, status=status), None
    reasons = "; ".join(filter(None, (row.reason, reason)))
    return replace(row, value=setting.value, accuracy=accuracy, reason=reasons or None, seconds=perf_counter() - start)


def _trained(
    shared: _Sweep, setting: Setting, first: Countermeasure, rounds: int, seconds: float
) -> tuple[Interval | None, str | None]:
    """The accuracy after so many rounds in which every client has the defense, or why there is none."""
    if not setting.defenses or not rounds:
        return first.accuracy, None  # a sum is that of the same updates
    try:
        with time_limit(seconds):
            indices = track(range(rounds), total=rounds, label="rounds", after=1.0)
            weights, _ = shared.federation.train(setting.defenses, indices)
    except Exception as fault:
        return None, f"accuracy: {why(fault)[1]}"
    return shared.federation.accuracy(weights), None


def _attacked(shared: _Sweep, setting: Setting, end: float) -> Countermeasure:
    """What the update of this setting shows before the time `end`: labels, membership, and records."""
    truth, held_out, seed = shared.federation.truth, shared.federation.held_out, shared.seed
    case = shared.federation.update(setting.clients, setting.defenses)
    labels = None
    if case.release.labels is None:
        seconds = _LABELS * (end - perf_counter())
        labels, _ = labels_of(case.release, case.truth, held_out, seed=derive_seed(seed, "labels"), seconds=seconds)
    tpr, auc = strongest_membership(case.release, truth, held_out, seed=derive_seed(seed, "membership"))
    tried = list[Attempt]()
    asked = applicable_again(shared.asked, case.release, records=len(case.truth), times=setting.clients)
    for index, one in enumerate(asked):
        allowed = (end - perf_counter()) / (len(asked) - index)
        tried.append(attempt_test(one, truth, held_out, allowed, shared.steps, seed))
    tests = [one.test for one in tried if one.test is not None]
    joint, counted = together(tests, seed=derive_seed(seed, "together")), count_found(tried)
    leak = find_leak(counted, joint)
    rows = [replace(row, subject="stand-in") for row in counted]
    ran = [row for row in rows if row.status == "ran"]
    late = tuple(one.row.name for one in tried if one.row.status == "skipped" or one.stopped)
    noted = [row for row in rows if row.status in ("refused", "failed") or (row.shortened and row.name not in late)]
    return Countermeasure(
        name=setting.axis,
        setting=setting.words,
        status="ran",
        reason="; ".join(map(named, noted)) or None,
        attack=max(ran, key=strength) if ran else None,
        together=leak.test if leak else joint,
        no_time=late,
        labels=labels,
        tpr=tpr,
        auc=auc,
    )


def _found_words(row: Countermeasure) -> str:
    if row.together is None:
        return f"not tested ({row.reason})" if row.reason else "not tested"
    return f"{row.together.found} of {row.together.records} found"
