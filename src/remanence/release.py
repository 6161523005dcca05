"""Knowledge is a type: a victim is trained, a reveal function splits it into what is shown and what is withheld.

The protocols form a lattice of knowledge; an attack asks in the signature of `run` for the least it needs. The records
are what really leaves the house. `Case` ties a release to its truth, which `evaluate` opens and nobody else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeAlias, TypeVar, final, runtime_checkable

import torch
from torch import Tensor, nn

from remanence.errors import BadInput, NotEnoughKnowledge
from remanence.nets import apply
from remanence.progress import track
from remanence.seeds import stream
from remanence.training.losses import Loss
from remanence.training.optim import SGD
from remanence.training.stacked import chunks, stack, train_chunk
from remanence.training.train import Training
from remanence.types import Data, Params, concat

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@runtime_checkable
class KnowsFinal(Protocol):
    @property
    def model(self) -> nn.Module: ...
    @property
    def final(self) -> Params: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def num_classes(self) -> int: ...


@runtime_checkable
class KnowsTraining(KnowsFinal, Protocol):
    @property
    def initial(self) -> Params: ...
    @property
    def training(self) -> Training: ...


@runtime_checkable
class KnowsFixed(KnowsFinal, Protocol):
    """All records but those withheld, and how the model was trained; not where it started."""

    @property
    def training(self) -> Training: ...
    @property
    def fixed(self) -> Data: ...


@runtime_checkable
class KnowsRest(KnowsTraining, KnowsFixed, Protocol): ...


@runtime_checkable
class KnowsUpdate(Protocol):
    """What a federated client sends, and how it came about."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def at(self) -> Params: ...
    @property
    def sent(self) -> Params:
        """As a gradient: the mean of those that the client followed."""
        ...

    @property
    def labels(self) -> Tensor | None: ...
    @property
    def batch_size(self) -> int | None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def loss(self) -> Loss: ...

    def simulate(self, x: Tensor, labels: Tensor) -> Params:
        """What would be sent for these records; it can be differentiated by them."""
        ...


@runtime_checkable
class KnowsGradient(KnowsUpdate, Protocol):
    """One gradient, taken at weights that are known."""

    @property
    def gradient(self) -> Params: ...


def require(release: object, knowledge: type, *, by: str) -> None:
    """Refuse a release that shows less than the protocol `knowledge`, naming who needs more and what is missing."""
    asked = [name for cls in knowledge.__mro__ for name, member in vars(cls).items() if isinstance(member, property)]
    if missing := [name for name in asked if not hasattr(release, name)]:
        names = ", ".join(f"`{name}`" for name in missing)
        raise NotEnoughKnowledge(f"{by} needs {names}, which a {type(release).__name__} release does not show")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class WeightsOnly:
    """A published model."""

    withholds: ClassVar[str] = "every training record, the initial weights and the training recipe"
    model: nn.Module
    final: Params
    shape: tuple[int, ...]
    num_classes: int


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class InitialAndFinalWeights:
    """A fine-tuned model beside the public one it started from."""

    withholds: ClassVar[str] = "every training record"
    model: nn.Module
    final: Params
    shape: tuple[int, ...]
    num_classes: int
    initial: Params
    training: Training


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class AllButOne:
    """A published model, shown to an adversary who has every training record but one (Balle et al. 2022)."""

    withholds: ClassVar[str] = "one training record; all the others are known"
    model: nn.Module
    final: Params
    shape: tuple[int, ...]
    num_classes: int
    initial: Params
    training: Training
    fixed: Data


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class AllButOneAndTheStart:
    """The same where the model started from weights that nobody kept: what Balle et al. find to end the attack."""

    withholds: ClassVar[str] = "one training record and the initial weights; all other records are known"
    model: nn.Module
    final: Params
    shape: tuple[int, ...]
    num_classes: int
    training: Training
    fixed: Data


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Gradient:
    """One federated update: the gradient of a batch at weights the server knows."""

    withholds: ClassVar[str] = "the records of the batch"
    model: nn.Module
    at: Params
    gradient: Params
    labels: Tensor | None
    batch_size: int | None
    shape: tuple[int, ...]
    loss: Loss

    @property
    def sent(self) -> Params:
        return self.gradient

    def simulate(self, x: Tensor, labels: Tensor) -> Params:
        return Training(loss=self.loss).gradient(self.model, self.at, x, labels)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class LocalUpdate:
    """Federated averaging (McMahan et al. 2017): how far a client's own training on its batch moved the weights."""

    withholds: ClassVar[str] = "the records of the batch"
    model: nn.Module
    at: Params
    update: Params  # the weights after the client's training minus those before
    labels: Tensor | None
    batch_size: int | None
    shape: tuple[int, ...]
    training: Training

    def __post_init__(self) -> None:
        optimizer, privacy = self.training.optimizer, self.training.privacy
        if not isinstance(optimizer, SGD):
            raise BadInput(f"`optimizer` of a client's training must be SGD, got {optimizer}")
        if self.training.epochs < 1:
            raise BadInput(f"`epochs` of a client's training must be 1 or more, got {self.training.epochs}")
        if self.training.batch_size is not None:
            raise BadInput(
                f"`batch_size` of a client's training must be None, got {self.training.batch_size}: in which order "
                "mini-batches came is not shown"
            )
        if self.training.stages:
            raise BadInput(f"`stages` of a client's training must be empty, got {self.training.stages}")
        if privacy and privacy.noise:
            raise BadInput("the noise of DP-GD is the client's own and not shown: leave `privacy` out")

    @property
    def loss(self) -> Loss:
        return self.training.loss

    @property
    def sent(self) -> Params:
        return self._as_gradient(self.update)

    def simulate(self, x: Tensor, labels: Tensor) -> Params:
        return self._as_gradient(moved(self.training, self.model, self.at, x, labels))

    def _as_gradient(self, update: Params) -> Params:
        """In units of how far a gradient that is one at every step moves a weight."""
        optimizer, steps = self.training.optimizer, self.training.epochs
        assert isinstance(optimizer, SGD)
        unit = optimizer.lr * sum(optimizer.momentum**k * (steps - k) for k in range(steps))
        return {name: u / -unit for name, u in update.items()}


def moved(training: Training, model: nn.Module, at: Params, x: Tensor, labels: Tensor) -> Params:
    """How far full-batch steps on these records move the weights."""
    end = training.run(model, at, x, labels, [None] * training.epochs, noise_seed=0)
    return {name: end[name] - at[name] for name, _ in model.named_parameters()}


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Victim:
    """Everything about a trained model, its private records included."""

    model: nn.Module
    training: Training
    initial: Params
    final: Params
    fixed: Data
    private: Data


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Case(Generic[R_co]):
    """A release and the records it withholds."""

    release: R_co
    truth: Data


Reveal: TypeAlias = Callable[[Victim], Case[R]]


def train_victim(
    model: nn.Module, training: Training, initial: Params, fixed: Data, private: Data, *, seed: int
) -> Victim:
    """One model trained on `fixed` and all of `private`."""
    final_params = training(model, initial, concat([fixed, private]), seed=seed)
    return Victim(model=model, training=training, initial=initial, final=final_params, fixed=fixed, private=private)


def train_victims(
    model: nn.Module, training: Training, initial: Params, fixed: Data, private: Data, *, seed: int
) -> list[Victim]:
    """For each record of `private` a model trained on `fixed` and that record, made just as the shadows are.

    `initial` is one start for all or a stack of them, one for each.
    """
    victims: list[Victim] = []
    starts = stack(model, initial, torch.arange(len(private), device=private.x.device))
    cut = chunks(model, fixed, private)
    for chunk in track(cut, total=len(cut), label="victims"):
        first = len(victims)
        some = {name: p[first : first + len(chunk)] for name, p in starts.items()}
        noise_seed = stream(seed, "victims", first)
        # the shuffle of mini-batches is the victims' own: no release shows it
        shuffle = stream(seed, "batches of victims")
        stacked = train_chunk(training, model, some, fixed, chunk, seed=shuffle, noise_seed=noise_seed)
        for k in range(len(chunk)):
            victims.append(
                Victim(
                    model=model,
                    training=training,
                    initial={name: p[k] for name, p in some.items()},
                    final={name: p[k].clone() for name, p in stacked.items()},
                    fixed=fixed,
                    private=chunk.take(slice(k, k + 1)),
                )
            )
    return victims


def check_fit(victim: Victim) -> None:
    """Refuse a victim that did not fit: what an attack reads from it would say nothing about a trained model."""
    if not all(torch.isfinite(p).all() for p in victim.final.values()):
        raise BadInput("the victim diverged (its weights are not finite): lower the learning rate")
    data = concat([victim.fixed, victim.private])
    share = data.y.bincount().double() / len(data)
    guessing = float(-share.xlogy(share).sum())
    before, reached = (float(_loss(victim, params, data)) for params in (victim.initial, victim.final))
    if not reached < min(before, guessing):
        raise BadInput(
            f"the victim did not fit: its training loss went from {before:.4g} to {reached:.4g}, and guessing by the "
            f"classes' frequencies reaches {guessing:.4g}; change the learning rate or train for more epochs"
        )


def _loss(victim: Victim, params: Params, data: Data) -> Tensor:
    with torch.no_grad():
        return victim.training.loss(apply(victim.model, params, data.x), data.y)


def weights_only(victim: Victim) -> Case[WeightsOnly]:
    release = WeightsOnly(
        model=victim.model, final=victim.final, shape=victim.private.shape, num_classes=victim.private.num_classes
    )
    return Case(release=release, truth=victim.private)


def initial_and_final(victim: Victim) -> Case[InitialAndFinalWeights]:
    release = InitialAndFinalWeights(
        model=victim.model,
        final=victim.final,
        shape=victim.private.shape,
        num_classes=victim.private.num_classes,
        initial=victim.initial,
        training=victim.training,
    )
    return Case(release=release, truth=victim.private)


def all_but_one(victim: Victim) -> Case[AllButOne]:
    _check_one(victim)
    release = AllButOne(
        model=victim.model,
        final=victim.final,
        shape=victim.private.shape,
        num_classes=victim.private.num_classes,
        initial=victim.initial,
        training=victim.training,
        fixed=victim.fixed,
    )
    return Case(release=release, truth=victim.private)


def all_but_one_and_the_start(victim: Victim) -> Case[AllButOneAndTheStart]:
    _check_one(victim)
    release = AllButOneAndTheStart(
        model=victim.model,
        final=victim.final,
        shape=victim.private.shape,
        num_classes=victim.private.num_classes,
        training=victim.training,
        fixed=victim.fixed,
    )
    return Case(release=release, truth=victim.private)


def _check_one(victim: Victim) -> None:
    if len(victim.private) != 1:
        raise BadInput(f"all records but one: the victim must have one private record, got {len(victim.private)}")


def gradient_at_initial(victim: Victim) -> Case[Gradient]:
    """The first update of a federated round: the gradient of the private batch at the initial weights."""
    return _gradient_at(victim, victim.initial)


def gradient_at_final(victim: Victim) -> Case[Gradient]:
    """A late update: the gradient of the private batch at the trained weights."""
    return _gradient_at(victim, victim.final)


def _gradient_at(victim: Victim, at: Params) -> Case[Gradient]:
    batch, privacy = victim.private, victim.training.privacy
    if privacy and privacy.noise:
        raise BadInput("a gradient release does not add the noise of DP-GD, and would show more than the client sends")
    release = Gradient(
        model=victim.model,
        at=at,
        gradient=victim.training.gradient(victim.model, at, batch.x, batch.y),
        labels=None,
        batch_size=len(batch),
        shape=batch.shape,
        loss=victim.training.loss,
    )
    return Case(release=release, truth=batch)


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
