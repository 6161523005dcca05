"""Which attacks apply to a release: each runs, runs in a weaker variant, or is refused with the one thing missing.

An attack is asked by running it for a step or two, so that what refuses here is what would refuse later, and the time
of a step is known.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from math import prod
from time import perf_counter
from typing import Any, Literal, final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.dropout import _DropoutNd

from remanence.attacks import (
    GLM,
    KKT,
    RGAP,
    SPEAR,
    Attack,
    ConvStationarity,
    Differencing,
    FirstLayer,
    GradientMatching,
    Linearised,
    Mnemonist,
    NewtonStep,
    RecoNN,
    ShadowAttack,
    SimuDy,
    Stationarity,
    Stein,
    TrainingInversion,
    with_search,
)
from remanence.auditing.attempts.refusals import missing_knowledge, refusal_words
from remanence.auditing.attempts.settings import (
    conv_stationarity,
    gradient_matching,
    kkt,
    newton_step,
    outputs,
    reconstructor,
    simudy,
    stationarity,
)
from remanence.errors import BadInput, unknown_name
from remanence.progress import OutOfTime, time_limit, track
from remanence.releases import (
    Gradient,
    KnowsAllButOne,
    KnowsFinal,
    KnowsFixed,
    KnowsGradient,
    KnowsTraining,
    KnowsUpdate,
    KnowsVersions,
    LocalUpdate,
    require,
)
from remanence.releases.defenses import Clipping, Defense, LocalDP
from remanence.releases.federated_averaging import update_scale
from remanence.training import SGD
from remanence.types import Reconstruction

_STEPS = 3  # of a search that is probed, and then probed again with more: the difference is the time of a step
_WARMING = 10.0  # probes: a first run that takes no longer is timed once more
_PROBE = 2.0  # seconds: an attack that does not search is stopped then, a search not probed again
_MAX_UNKNOWNS = 2e8  # numbers that are searched for at once
UPDATE, WEIGHTS, BASE, OTHERS = "an update", "the weights", "the weights and the base", "all records but one"
VERSIONS = "two versions"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Applicability:
    """Whether one attack applies to a release; `attack` and `release` are what would run, None where it is refused."""

    name: str
    status: Literal["runs", "weaker", "refused"]
    reason: str | None  # of a weaker variant or a refusal
    knowledge: str
    attack: Attack[Any] | ShadowAttack | None = None
    release: Any = None
    seconds: float | None = None  # an estimate; None: not known before it runs
    scoring: float = 0.0  # an estimate of the seconds that its scores take besides
    reconstruction: Reconstruction | None = None  # where asking took as long as running

    @property
    def total(self) -> float | None:
        """The seconds that the attack and its scores are expected to take."""
        return None if self.seconds is None else self.seconds + self.scoring

    def __repr__(self) -> str:
        return f"{self.name}: {self.status}" + (f" ({self.reason})" if self.reason else "")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Kind:
    """An attack, the knowledge that it needs, and its settings for a release that withholds some number of records."""

    attack: type
    needs: type
    knowledge: str
    settings: Callable[[Any, int], Any]


_KINDS = (  # cheapest first, as far as that can be said without a release
    _Kind(attack=FirstLayer, needs=KnowsGradient, knowledge=UPDATE, settings=lambda release, n: FirstLayer()),
    _Kind(attack=SPEAR, needs=KnowsGradient, knowledge=UPDATE, settings=lambda release, n: SPEAR()),
    _Kind(attack=RGAP, needs=KnowsGradient, knowledge=UPDATE, settings=lambda release, n: RGAP()),
    _Kind(attack=Stein, needs=KnowsGradient, knowledge=UPDATE, settings=lambda release, n: Stein()),
    _Kind(attack=Differencing, needs=KnowsFixed, knowledge=OTHERS, settings=lambda release, n: Differencing()),
    _Kind(attack=GLM, needs=KnowsFixed, knowledge=OTHERS, settings=lambda release, n: GLM()),
    _Kind(attack=NewtonStep, needs=KnowsVersions, knowledge=VERSIONS, settings=newton_step),
    _Kind(attack=GradientMatching, needs=KnowsUpdate, knowledge=UPDATE, settings=gradient_matching),
    _Kind(attack=Stationarity, needs=KnowsFinal, knowledge=WEIGHTS, settings=stationarity),
    _Kind(attack=ConvStationarity, needs=KnowsFinal, knowledge=WEIGHTS, settings=conv_stationarity),
    _Kind(attack=KKT, needs=KnowsFinal, knowledge=WEIGHTS, settings=kkt),
    _Kind(attack=Linearised, needs=KnowsTraining, knowledge=BASE, settings=lambda release, n: Linearised(candidates=n)),
    _Kind(attack=SimuDy, needs=KnowsTraining, knowledge=BASE, settings=simudy),
    _Kind(
        attack=TrainingInversion,
        needs=KnowsAllButOne,
        knowledge=OTHERS,
        settings=lambda release, n: TrainingInversion(),
    ),
    _Kind(attack=RecoNN, needs=KnowsFixed, knowledge=OTHERS, settings=reconstructor),
    _Kind(attack=Mnemonist, needs=KnowsAllButOne, knowledge=OTHERS, settings=lambda release, n: Mnemonist()),
)

# train networks as the release says that its own was trained
_SIMULATING = (Linearised, SimuDy, TrainingInversion, RecoNN, Mnemonist)


@sdpa_kernel(SDPBackend.MATH)  # the only attention that can be differentiated twice, as attacks have to
def applicable(
    release: Any, *, records: int | None = None, attacks: Sequence[str] | None = None, seed: int = 0
) -> tuple[Applicability, ...]:
    """For every attack whether it applies to `release`, which withholds `records` records (default: its batch, or 1).

    Those that apply come first, the cheapest of them first. `attacks` names the only ones that are asked.
    """
    n, release = records or getattr(release, "batch_size", None) or 1, in_evaluation_mode(release)
    names = [kind.attack.__name__ for kind in _KINDS]
    if unknown := [name for name in attacks or () if name not in names]:
        raise unknown_name("attack", unknown[0], names, argument="attacks")
    kinds = [kind for kind, name in zip(_KINDS, names, strict=True) if attacks is None or name in attacks]
    asked = track(kinds, total=len(kinds), label="which attacks apply", after=1.0)
    found = [_asked(kind, release, n, seed) for kind in asked]

    def cheapest(each: Applicability) -> tuple[bool, bool, float]:
        return each.status == "refused", each.seconds is None, each.seconds or 0.0

    return tuple(sorted(found, key=cheapest))


def applicable_again(
    asked: Sequence[Applicability], release: Any, *, records: int, times: float = 1.0
) -> tuple[Applicability, ...]:
    """The attacks that apply to a release of the same kind, as they were `asked`, for this one, which withholds so many
    `records`; each is expected to take so many `times` as long as there, and none is probed again."""
    kinds = {kind.attack.__name__: kind for kind in _KINDS}
    made = [(one, _prepared(kinds[one.name], release, records)) for one in asked if one.status != "refused"]
    return tuple(replace(each, seconds=None if one.seconds is None else times * one.seconds) for one, each in made)


def _asked(kind: _Kind, release: Any, n: int, seed: int) -> Applicability:
    made = _prepared(kind, release, n)
    if made.status == "refused" or isinstance(made.attack, ShadowAttack):
        return made
    try:
        seconds, found = _probe(made.attack, made.release, seed)
    except BadInput as refusal:
        return _refused(kind, refusal_words(made.name, refusal, made.release), made.knowledge)
    except Exception as fault:
        return _refused(kind, _fault(fault), made.knowledge)
    return replace(made, seconds=seconds, reconstruction=found)


def _prepared(kind: _Kind, release: Any, n: int) -> Applicability:
    """Whether the attack applies, as far as that can be said without running it, what would run and on what."""
    name, shown, weaker, knowledge = kind.attack.__name__, release, None, kind.knowledge
    if kind.needs is KnowsGradient and isinstance(release, LocalUpdate):
        shown, weaker = _as_gradient(release), _taken_for_a_gradient(release)
    if kind.needs is KnowsTraining and isinstance(release, LocalUpdate):
        knowledge = UPDATE
        if release.clients > 1:
            return _refused(kind, "the mean over several clients is not the end of one training", knowledge)
        shown = release.fine_tuned(max(2, outputs(release)))
    if (missing := missing_knowledge(shown, kind.needs)) is not None:
        return _refused(kind, missing, knowledge)
    if kind.attack in _SIMULATING:
        shown, weaker = _in_evaluation(shown)
        left_out = [weaker]
        if getattr(release, "batch_norm", None) == "training":
            left_out.append("BatchNorm, which was in training mode, is simulated frozen")
        if getattr(release, "defenses", ()):
            left_out.append("the client's defenses are not simulated")
        weaker = "; ".join(filter(None, left_out)) or None
    try:
        require(shown, kind.needs, by=name)
        if n * prod(release.shape) > _MAX_UNKNOWNS:
            return _refused(kind, f"{n} records are too many to be searched for at once", knowledge)
        attack = kind.settings(release, n)
    except BadInput as refusal:
        return _refused(kind, refusal_words(name, refusal, shown), knowledge)
    except Exception as fault:
        return _refused(kind, _fault(fault), knowledge)
    status: Literal["runs", "weaker"] = "weaker" if weaker else "runs"
    return Applicability(
        name=name, status=status, reason=weaker, knowledge=knowledge, attack=attack, release=shown, seconds=None
    )


def _refused(kind: _Kind, reason: str | None, knowledge: str) -> Applicability:
    return Applicability(name=kind.attack.__name__, status="refused", reason=reason, knowledge=knowledge)


def _fault(fault: Exception) -> str:
    return f"it failed: {type(fault).__name__}: {str(fault).partition(chr(10))[0]}"


def _probe(attack: Any, release: Any, seed: int) -> tuple[float | None, Reconstruction | None]:
    """The seconds that `attack` is expected to take, and its reconstruction where the probe was the whole of it."""
    if not hasattr(attack, "search"):
        start = perf_counter()
        with suppress(OutOfTime), time_limit(_PROBE) as limit:
            found = attack.run(release, seed=seed)
            if not limit.reached:
                return perf_counter() - start, found
        return None, None
    if getattr(attack, "features", None) is not None:  # a closed form before the search, which is not one of its steps
        closed_form = _timed(with_search(attack, steps=1), release, seed)
        search, _ = _probe(replace(attack, features=None), release, seed)
        return closed_form + (search or 0.0), None
    first = _timed(with_search(attack, steps=_STEPS), release, seed)
    if first > _PROBE:
        if first < _WARMING * _PROBE:  # the first run of a kind also imports and compiles
            first = min(first, _timed(with_search(attack, steps=_STEPS), release, seed))
        return first / _STEPS * attack.search.steps, None
    more = round(min(max(_STEPS * _PROBE / first, 2 * _STEPS), 30 * _STEPS))
    second = _timed(with_search(attack, steps=more), release, seed)
    step = (second - first) / (more - _STEPS) if second > first else second / more  # a first run may have warmed up
    return first + step * attack.search.steps, None


def _timed(attack: Attack[Any], release: Any, seed: int) -> float:
    start = perf_counter()
    attack.run(release, seed=seed)
    return perf_counter() - start


def in_evaluation_mode(release: Any) -> Any:
    """The release with its model in evaluation mode, as a published model is used; the caller's is left alone."""
    if not release.model.training:
        return release
    return replace(release, model=deepcopy(release.model).eval())


def _in_evaluation(release: Any) -> tuple[Any, str | None]:
    """A release whose training can be simulated by a network in evaluation mode, and what that leaves out."""
    reasons = list[str]()
    if any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in release.model.modules()):
        reasons.append("dropout, of which nobody knows what it dropped, is left out of the simulated training")
    if (initial := getattr(release, "initial", None)) is not None:
        final, buffers = release.final, [name for name, _ in release.model.named_buffers() if name in initial]
        if any(not torch.equal(initial[name], final[name]) for name in buffers if final[name].is_floating_point()):
            reasons.append("BatchNorm statistics, which moved, are in the simulated training those of the end")
            release = replace(release, initial=initial | {name: final[name] for name in buffers})
    return release, "; ".join(reasons) or None


def _taken_for_a_gradient(release: LocalUpdate) -> str | None:
    """What is left out where a client's update is taken for one gradient; None where it is one."""
    if not isinstance(release.training.optimizer, SGD):
        return f"steps of {type(release.training.optimizer).__name__}, which normalises them, are taken for gradients"
    return None if release.steps == 1 else f"{release.steps} local steps are taken for one"


def _as_gradient(release: LocalUpdate) -> Gradient:
    """The update as one gradient, less the weight decay of the first step; what its defenses clip to is in the units
    of a gradient."""
    training = release.training
    unit = update_scale(training, (release.batch_size or release.clients) // release.clients)
    decay = {name: training.weight_decay * training.decays(name) for name in release.sent}
    return Gradient(
        model=release.model,
        at=release.at,
        gradient={name: sent - decay[name] * release.at[name] for name, sent in release.sent.items()},
        labels=release.labels,
        batch_size=release.batch_size,
        shape=release.shape,
        bounds=release.bounds,
        loss=release.loss,
        defenses=tuple(_over(unit, defense) for defense in release.defenses),
        batch_norm=release.batch_norm,
    )


def _over(unit: float, defense: Defense) -> Defense:
    """The defense of an update as one of the update over `unit`."""
    if isinstance(defense, Clipping | LocalDP) and defense.norm is not None:
        return replace(defense, norm=defense.norm / unit)
    return defense
