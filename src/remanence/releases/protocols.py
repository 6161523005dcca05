"""The attacker's knowledge as protocols: an attack asks in the signature of `run` for the least that it needs."""

from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from remanence.bounds import Bounds
from remanence.errors import NotEnoughKnowledge
from remanence.releases.defenses import Defense
from remanence.training.losses import Loss
from remanence.training.training import Training
from remanence.types import Data, Params


@runtime_checkable
class KnowsFinal(Protocol):
    """The trained weights, and the shape, the bounds and the number of classes of the records."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def final(self) -> Params: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def bounds(self) -> Bounds: ...
    @property
    def num_classes(self) -> int: ...


@runtime_checkable
class KnowsInitial(KnowsFinal, Protocol):
    """The initial and trained weights."""

    @property
    def initial(self) -> Params: ...


@runtime_checkable
class KnowsTraining(KnowsInitial, Protocol):
    """The initial and trained weights and the training recipe; a dataclass, so that `replace(release, training=...)`
    states another hypothesis about the recipe."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def training(self) -> Training: ...


@runtime_checkable
class KnowsFixed(KnowsFinal, Protocol):
    """The trained weights, the training recipe and all records but those withheld; not the initial weights."""

    @property
    def training(self) -> Training: ...
    @property
    def fixed(self) -> Data: ...


@runtime_checkable
class KnowsAllButOne(KnowsTraining, KnowsFixed, Protocol):
    """The initial and trained weights, the training recipe and all records but one."""


@runtime_checkable
class KnowsVersions(KnowsFinal, Protocol):
    """The weights of two versions, the recipe of both, and how many records were deleted or added between them."""

    @property
    def before(self) -> Params: ...
    @property
    def training(self) -> Training: ...
    @property
    def records(self) -> int:
        """How many records the version before was trained on."""
        ...

    @property
    def change(self) -> Literal["deleted", "added"]: ...
    @property
    def count(self) -> int:
        """How many records were deleted or added."""
        ...

    @property
    def public(self) -> Data | None:
        """Records of the same distribution that the attacker owns."""
        ...


@runtime_checkable
class KnowsUpdate(Protocol):
    """What a federated client sends, the weights it was computed at, and how to simulate it."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def at(self) -> Params: ...
    @property
    def sent(self) -> Params:
        """The update as a gradient: the mean of the gradients that the client followed."""
        ...

    @property
    def labels(self) -> Tensor | None: ...
    @property
    def batch_size(self) -> int | None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def bounds(self) -> Bounds: ...
    @property
    def loss(self) -> Loss: ...

    @property
    def batch_norm(self) -> Literal["frozen", "training"]:
        """The mode of the client's BatchNorm: by the statistics of `at`, or by those of each batch."""
        ...

    @property
    def statistics(self) -> Params | None:
        """The running statistics of BatchNorm after the client's training; None: it sent none."""
        ...

    def simulate(self, x: Tensor, labels: Tensor) -> Params:
        """What a client with the records `x` would send, differentiable with respect to them."""
        ...

    def simulate_with_statistics(self, x: Tensor, labels: Tensor) -> tuple[Params, Params]:
        """What `simulate` gives, and the running statistics of BatchNorm in training mode; none where it is frozen."""
        ...


@runtime_checkable
class KnowsGradient(KnowsUpdate, Protocol):
    """One gradient at known weights, and the defenses that were applied to it."""

    @property
    def gradient(self) -> Params: ...
    @property
    def defenses(self) -> tuple[Defense, ...]: ...


def require(release: object, knowledge: type, *, by: str) -> None:
    """Refuse a release that shows less than the protocol `knowledge`, naming who needs more and what is missing."""
    members = [name for cls in knowledge.__mro__ for name, member in vars(cls).items() if isinstance(member, property)]
    if missing := [name for name in dict.fromkeys(members) if not hasattr(release, name)]:
        names = ", ".join(f"`{name}`" for name in missing)
        raise NotEnoughKnowledge(
            f"{by} needs {names}, which a {type(release).__name__} release does not show", argument="release"
        )
