"""A reveal function splits a victim into what is shown and what is withheld.

`Case` ties a release to its truth, which `evaluate` opens and nobody else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeAlias, TypedDict, TypeVar, final

from torch import nn

from remanence.engine import GenericEngine
from remanence.errors import BadInput
from remanence.releases.defenses import Defense, defended
from remanence.releases.releases import (
    AllButOne,
    AllButOneUnknownInit,
    FineTuned,
    Gradient,
    LocalUpdate,
    WeightsOnly,
    moved,
)
from remanence.releases.victim import Victim
from remanence.seeds import derive_seed
from remanence.types import Data, Params

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Case(Generic[R_co]):
    """A release and the records it withholds."""

    release: R_co
    truth: Data


Reveal: TypeAlias = Callable[[Victim], Case[R]]


def weights_only(victim: Victim) -> Case[WeightsOnly]:
    return Case(release=WeightsOnly(**_published(victim)), truth=victim.private)


def fine_tuned(victim: Victim) -> Case[FineTuned]:
    release = FineTuned(**_published(victim), initial=victim.initial, training=victim.training)
    return Case(release=release, truth=victim.private)


def all_but_one(victim: Victim) -> Case[AllButOne]:
    _check_one(victim)
    release = AllButOne(**_published(victim), initial=victim.initial, training=victim.training, fixed=victim.fixed)
    return Case(release=release, truth=victim.private)


def all_but_one_unknown_init(victim: Victim) -> Case[AllButOneUnknownInit]:
    _check_one(victim)
    release = AllButOneUnknownInit(**_published(victim), training=victim.training, fixed=victim.fixed)
    return Case(release=release, truth=victim.private)


class _Published(TypedDict):
    model: nn.Module
    final: Params
    shape: tuple[int, ...]
    num_classes: int


def _published(victim: Victim) -> _Published:
    """What every release of a finished model shows."""
    private = victim.private
    return {
        "model": victim.model,
        "final": victim.final,
        "shape": private.shape,
        "num_classes": private.num_classes,
    }


def _check_one(victim: Victim) -> None:
    if len(victim.private) != 1:
        raise BadInput(f"all records but one: the victim must have one private record, got {len(victim.private)}")


def gradient_at_initial(victim: Victim, *, defenses: tuple[Defense, ...] = (), seed: int = 0) -> Case[Gradient]:
    """The first update of a federated round: the gradient of the private batch at the initial weights."""
    return _gradient_at(victim, victim.initial, defenses, seed)


def gradient_at_final(victim: Victim, *, defenses: tuple[Defense, ...] = (), seed: int = 0) -> Case[Gradient]:
    """A late update: the gradient of the private batch at the trained weights."""
    return _gradient_at(victim, victim.final, defenses, seed)


def _gradient_at(victim: Victim, at: Params, defenses: tuple[Defense, ...], seed: int) -> Case[Gradient]:
    batch, privacy = victim.private, victim.training.privacy
    if privacy and privacy.noise:
        raise BadInput("a gradient release does not add the noise of DP-GD, and would show more than the client sends")
    if victim.training.clip is not None:
        raise BadInput(
            "a gradient release is not cut by `clip` of the training, and would show more than the client sends: leave "
            f"it out, and give defenses=(Clipping(norm={victim.training.clip}),)"
        )
    engine = GenericEngine(model=victim.model, loss=victim.training.loss, privacy=victim.training.privacy)
    computed = engine.gradient(at, batch.x, batch.y)
    release = Gradient(
        model=victim.model,
        at=at,
        gradient=defended(computed, defenses, seed=derive_seed(seed, "client", _digest(batch))),
        labels=None,
        batch_size=len(batch),
        shape=batch.shape,
        loss=victim.training.loss,
        defenses=defenses,
    )
    return Case(release=release, truth=batch)


def _digest(batch: Data) -> str:
    """By which clients with different records draw differently."""
    return blake2b(batch.x.detach().cpu().numpy().tobytes(), digest_size=8).hexdigest()


def local_update(victim: Victim) -> Case[LocalUpdate]:
    """A round of federated averaging: the client trains on the private batch alone, from the initial weights."""
    batch, training = victim.private, victim.training
    release = LocalUpdate(
        model=victim.model,
        at=victim.initial,
        update=moved(training, victim.model, victim.initial, batch.x, batch.y),
        labels=None,
        batch_size=len(batch),
        shape=batch.shape,
        training=training,
    )
    return Case(release=release, truth=batch)
