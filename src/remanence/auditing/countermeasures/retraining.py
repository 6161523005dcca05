"""Stand-ins: models of the owner's architecture, trained here on the owner's records, with and without countermeasures.

They are trained in evaluation mode, as attacks simulate training: BatchNorm keeps the statistics that it begins with,
and dropout is off.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, final

from torch import nn

from remanence.auditing.attempts.settings import outputs
from remanence.auditing.attempts.stand_in import new_weights
from remanence.auditing.checks.outputs import is_correct, logits_of
from remanence.auditing.countermeasures.variants import Variant
from remanence.engine import train
from remanence.errors import BadInput, Diverged
from remanence.models import initial_params
from remanence.releases import AllButOne, AllButOneUnknownInit, FineTuned, WeightsOnly
from remanence.seeds import derive_seed
from remanence.training import SGD, Adam, CrossEntropy, Logistic, Training
from remanence.types import Data, Params, concat

FITS = 0.99  # accuracy on the training records
_OPTIMIZERS = (SGD(lr=0.1, momentum=0.9), SGD(lr=0.01, momentum=0.9), Adam(lr=1e-3))
_MANY = 500  # records, from which on the default recipe takes mini-batches


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Owner:
    """What the owner has: the architecture, the records, and the base where there is one."""

    model: nn.Module
    truth: Data
    held_out: Data
    base: Params | None
    fixed: Data | None
    seed: int

    @property
    def records(self) -> Data:
        """All records that a stand-in is trained on."""
        return self.truth if self.fixed is None else concat([self.fixed, self.truth])


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class StandIn:
    """A stand-in as it would be released."""

    variant: Variant
    release: Any
    seconds: float


def initial_weights(owner: Owner) -> Params:
    """New weights; buffers such as the mean and the standard deviation of inputs stay those of the model."""
    weights, seed = dict(owner.model.state_dict()), derive_seed(owner.seed, "initial weights")
    if any(p.is_meta for p in weights.values()):  # an architecture alone
        return {name: p.to(owner.truth.x) for name, p in initial_params(owner.model, seed=seed).items()}
    return new_weights(_published(owner, weights), seed=seed)


def _published(owner: Owner, params: Params) -> WeightsOnly:
    truth = owner.truth
    return WeightsOnly(
        model=owner.model,
        final=params,
        shape=truth.shape,
        bounds=truth.bounds,
        num_classes=truth.num_classes,
    )


def train_stand_in(owner: Owner, variant: Variant, initial: Params) -> StandIn:
    """The stand-in of a countermeasure, trained from the weights `initial` on all records of the owner."""
    start = perf_counter()
    final_params = _trained(owner.model, variant.training, initial, owner.records, seed=owner.seed)
    release = _revealed(owner, variant, _published(owner, final_params))
    return StandIn(variant=variant, release=release, seconds=perf_counter() - start)


def _revealed(owner: Owner, variant: Variant, published: WeightsOnly) -> Any:
    """The release of a stand-in, with the base unless that is withheld, and with the records that an attacker knows."""
    shown, base = vars(published), None if variant.withholds_base else owner.base
    if owner.fixed is None:
        return published if base is None else FineTuned(**shown, initial=base, training=variant.training)
    if base is None:
        return AllButOneUnknownInit(**shown, training=variant.training, fixed=owner.fixed)
    return AllButOne(**shown, initial=base, training=variant.training, fixed=owner.fixed)


def _trained(model: nn.Module, training: Training, initial: Params, records: Data, *, seed: int) -> Params:
    """The final weights of a stand-in; one that diverges is refused."""
    final_params = train(training, model, initial, records, seed=derive_seed(seed, "training"))
    if not all(bool(p.isfinite().all()) for p in final_params.values()):
        message = "the stand-in diverged (its weights are not finite): lower the learning rate"
        raise Diverged(message, argument="training")
    return final_params


def fitting_recipe(model: nn.Module, initial: Params, records: Data, *, seed: int) -> Training:
    """A recipe for records whose recipe is not known: the first of a few that fits them, or the one that fits best."""
    tried: list[tuple[float, Training]] = []
    for training in _default_recipes(model, initial, records):
        try:
            final_params = _trained(model, training, initial, records, seed=seed)
        except Diverged:
            continue
        tried.append((accuracy_on(model, final_params, records, training), training))
        if tried[-1][0] >= FITS:
            break
    if not tried:
        message = "`training` must be given: every default recipe diverges on these records"
        raise BadInput(message, code="diverged", argument="training")
    return max(tried, key=lambda each: each[0])[1]


def _default_recipes(model: nn.Module, initial: Params, records: Data) -> Iterator[Training]:
    release = WeightsOnly(
        model=model, final=initial, shape=records.shape, bounds=records.bounds, num_classes=records.num_classes
    )
    loss = CrossEntropy() if outputs(release) > 1 else Logistic()
    for optimizer in _OPTIMIZERS:
        if len(records) <= _MANY:
            yield Training(optimizer=optimizer, epochs=100, loss=loss)
        else:
            yield Training(optimizer=optimizer, epochs=20, batch_size=64, loss=loss)


def accuracy_on(model: nn.Module, params: Params, data: Data, training: Training) -> float:
    """The fraction of the records of `data` that are classified correctly."""
    correct = is_correct(logits_of(model, params, data.x), data.y, training.loss)
    return float(correct.double().mean())
