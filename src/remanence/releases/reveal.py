"""Reveal functions: each splits a victim into a release, which an attack is shown, and the truth it withholds.

A `Case` holds both; only `evaluate` opens the truth.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, Literal, TypeAlias, TypedDict, TypeVar, final
from weakref import WeakKeyDictionary

import torch
from torch import nn

from remanence.bounds import Bounds
from remanence.engine import GenericEngine, batch_gradient, train
from remanence.errors import BadInput
from remanence.models import running_statistics
from remanence.releases.defenses import Defense, defended
from remanence.releases.federated_averaging import LocalUpdate, check_clients, local_delta, mean_of
from remanence.releases.releases import (
    AllButOne,
    AllButOneUnknownInit,
    BatchNormMode,
    BeforeAndAfter,
    FineTuned,
    FineTunedUnknownRecipe,
    Gradient,
    WeightsOnly,
)
from remanence.releases.victim import Victim
from remanence.seeds import derive_seed
from remanence.training.training import Training
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
    """Release the trained weights; withhold the private records."""
    return Case(release=WeightsOnly(**_published(victim)), truth=victim.private)


def fine_tuned(victim: Victim) -> Case[FineTuned]:
    """Release the initial and trained weights and the training recipe; withhold the private records."""
    release = FineTuned(**_published(victim), initial=victim.initial, training=victim.training)
    return Case(release=release, truth=victim.private)


def fine_tuned_unknown_recipe(victim: Victim) -> Case[FineTunedUnknownRecipe]:
    """Release the initial and trained weights; withhold the private records and the training recipe."""
    release = FineTunedUnknownRecipe(**_published(victim), initial=victim.initial)
    return Case(release=release, truth=victim.private)


def all_but_one(victim: Victim) -> Case[AllButOne]:
    """Release the weights, the recipe and the fixed records; withhold the one private record."""
    _check_one(victim)
    release = AllButOne(**_published(victim), initial=victim.initial, training=victim.training, fixed=victim.fixed)
    return Case(release=release, truth=victim.private)


def all_but_one_unknown_init(victim: Victim) -> Case[AllButOneUnknownInit]:
    """Release what `all_but_one` does, but for the initial weights."""
    _check_one(victim)
    release = AllButOneUnknownInit(**_published(victim), training=victim.training, fixed=victim.fixed)
    return Case(release=release, truth=victim.private)


def before_and_after(
    victim: Victim, *, change: Literal["deleted", "added"] = "deleted", public: Data | None = None, seed: int = 0
) -> Case[BeforeAndAfter]:
    """Release two versions: the victim, and the same trained by the same recipe on the fixed records alone; withhold
    the private records, which are what was deleted or added, and the fixed ones. `seed` shuffles the mini-batches of
    the retraining."""
    without, fixed, private = _trained_without(victim, seed), len(victim.fixed), len(victim.private)
    versions = (victim.final, without) if change == "deleted" else (without, victim.final)
    release = BeforeAndAfter(
        **_published(victim) | {"final": versions[1]},
        before=versions[0],
        training=victim.training,
        records=fixed + private if change == "deleted" else fixed,
        change=change,
        count=private,
        public=public,
    )
    return Case(release=release, truth=victim.private)


_WITHOUT: WeakKeyDictionary[Data, tuple[Training, int, Params, Params]] = WeakKeyDictionary()


def _trained_without(victim: Victim, seed: int) -> Params:
    """The weights without the private records; victims that share all else share these, and they are trained once."""
    if found := _WITHOUT.get(victim.fixed):
        training, trained_by, initial, final_params = found
        alike = (training, trained_by) == (victim.training, seed)
        if alike and all(torch.equal(p, victim.initial[name]) for name, p in initial.items()):
            return final_params
    final_params = train(victim.training, victim.model, victim.initial, victim.fixed, seed=seed)
    _WITHOUT[victim.fixed] = victim.training, seed, victim.initial, final_params
    return final_params


class _Published(TypedDict):
    model: nn.Module
    final: Params
    shape: tuple[int, ...]
    bounds: Bounds
    num_classes: int


def _published(victim: Victim) -> _Published:
    """The fields that every release of a trained model has."""
    private = victim.private
    return {
        "model": victim.model,
        "final": victim.final,
        "shape": private.shape,
        "bounds": private.bounds,
        "num_classes": private.num_classes,
    }


def _check_one(victim: Victim) -> None:
    if len(victim.private) != 1:
        raise BadInput(
            f"`victim` must have one private record, where all records but one are known, got {len(victim.private)}",
            code="out-of-range",
            argument="victim",
        )


def _check_any(victim: Victim) -> None:
    if not len(victim.private):
        message = "`victim` must have private records, from which an update is computed, got none"
        raise BadInput(message, code="empty", argument="victim")


def gradient_at_initial(
    victim: Victim,
    *,
    defenses: tuple[Defense, ...] = (),
    batch_norm: BatchNormMode = "frozen",
    statistics: bool = False,
    seed: int = 0,
) -> Case[Gradient]:
    """Release the first update of a federated round: the gradient of the private batch at the initial weights, and
    `statistics` of BatchNorm where it is in training mode and the client sends them."""
    return _gradient_at(victim, victim.initial, defenses, batch_norm, statistics, seed)


def gradient_at_final(
    victim: Victim,
    *,
    defenses: tuple[Defense, ...] = (),
    batch_norm: BatchNormMode = "frozen",
    statistics: bool = False,
    seed: int = 0,
) -> Case[Gradient]:
    """Release a late update: what `gradient_at_initial` does at the trained weights."""
    return _gradient_at(victim, victim.final, defenses, batch_norm, statistics, seed)


def _gradient_at(
    victim: Victim,
    at: Params,
    defenses: tuple[Defense, ...],
    batch_norm: BatchNormMode,
    statistics: bool,
    seed: int,
) -> Case[Gradient]:
    _check_any(victim)
    batch, privacy = victim.private, victim.training.privacy
    if privacy and (privacy.noise or privacy.sample_rate < 1):
        raise BadInput(
            "`privacy` of the training must be without noise and `sample_rate`: a gradient release neither adds the "
            "noise of DP-GD nor samples records, and would show more than the client sends",
            code="unsupported-training",
            argument="privacy",
        )
    if victim.training.clip is not None:
        raise BadInput(
            "`clip` of the training must be None: a gradient release is not clipped by it, and would show more than "
            f"the client sends; leave it out, and give defenses=(Clipping(norm={victim.training.clip}),)",
            code="unsupported-training",
            argument="clip",
        )
    model, loss = victim.model, victim.training.loss
    if batch_norm == "training":
        if privacy:
            message = "`privacy` must be None where `batch_norm` is `training`: records have no gradients of their own"
            raise BadInput(message, code="unsupported-training", argument="privacy")
        computed, buffers = batch_gradient(model, at, batch.x, batch.y, loss=loss)
    else:
        engine = GenericEngine(model=model, loss=loss, privacy=privacy)
        computed, buffers = engine.gradient(at, batch.x, batch.y), {}
    release = Gradient(
        model=victim.model,
        at=at,
        gradient=defended(computed, defenses, seed=derive_seed(seed, "client", _digest(batch))),
        labels=None,
        batch_size=len(batch),
        shape=batch.shape,
        bounds=batch.bounds,
        loss=loss,
        defenses=defenses,
        batch_norm=batch_norm,
        statistics={name: buffers[name] for name in running_statistics(model) if name in buffers}
        if statistics
        else None,
    )
    return Case(release=release, truth=batch)


def _digest(batch: Data) -> str:
    """A digest of the batch, so that clients with different records have different seeds."""
    values = batch.x.detach().cpu().flatten().view(torch.uint8)  # numpy has no bfloat16
    return blake2b(values.numpy().tobytes(), digest_size=8).hexdigest()


def local_update(
    victim: Victim,
    *,
    clients: int = 1,
    names: Sequence[str] | None = None,
    defenses: tuple[Defense, ...] = (),
    batch_norm: BatchNormMode = "frozen",
    statistics: bool = False,
    seed: int = 0,
) -> Case[LocalUpdate]:
    """Release a round of federated averaging: clients train on equal parts of the private batch, from the initial
    weights, apply their defenses, and the mean of their updates is released, with that of the `statistics` of BatchNorm
    in training mode where they send them. `names` are the parameters that they train, all by default. `seed` shuffles
    mini-batches."""
    _check_any(victim)
    check_clients(clients, records=len(victim.private))
    batch, training, size = victim.private, victim.training, len(victim.private) // clients
    names = [name for name, _ in victim.model.named_parameters()] if names is None else names
    updates, running = list[Params](), list[Params]()
    for client in range(clients):
        part = batch.take(slice(client * size, (client + 1) * size))
        client_seed = derive_seed(seed, "client", _digest(part))
        batches = (
            b if b is None else b.to(part.x.device) for b in training.batches(size, derive_seed(client_seed, "batches"))
        )
        given = training, victim.model, victim.initial, part.x, part.y
        delta, after = local_delta(*given, names=names, batches=batches, batch_norm=batch_norm)
        updates.append(defended(delta, defenses, seed=client_seed))
        running.append(after)
    release = LocalUpdate(
        model=victim.model,
        at=victim.initial,
        update=mean_of(updates),
        labels=None,
        batch_size=len(batch),
        shape=batch.shape,
        bounds=batch.bounds,
        training=training,
        clients=clients,
        defenses=defenses,
        batch_norm=batch_norm,
        statistics=mean_of(running) if statistics else None,
    )
    return Case(release=release, truth=batch)
