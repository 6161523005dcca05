"""The releases: frozen records of what an attacker is shown, each with a sentence on what it withholds.

`shape` is that of a record, and `bounds` the box that its values lie in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import Tensor, nn

from remanence.bounds import UNIT, Bounds
from remanence.engine import engine_for, loss_gradient, on_batches, only
from remanence.errors import BadInput, check_min
from remanence.releases.defenses import Defense
from remanence.training.losses import Loss
from remanence.training.optimizers import SGD
from remanence.training.training import Training
from remanence.types import Data, Params


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class WeightsOnly:
    """A published model: its architecture and trained weights."""

    withholds: ClassVar[str] = "every training record, the initial weights and the training recipe"
    model: nn.Module
    final: Params
    shape: tuple[int, ...]
    bounds: Bounds = UNIT
    num_classes: int


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FineTuned:
    """A fine-tuned model together with the public one it was initialised from."""

    withholds: ClassVar[str] = "every training record"
    model: nn.Module
    final: Params
    shape: tuple[int, ...]
    bounds: Bounds = UNIT
    num_classes: int
    initial: Params
    training: Training


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FineTunedUnknownRecipe:
    """`FineTuned` without the training recipe: two checkpoints of one model, and nothing about the way between."""

    withholds: ClassVar[str] = "every training record and the training recipe"
    model: nn.Module
    final: Params
    shape: tuple[int, ...]
    bounds: Bounds = UNIT
    num_classes: int
    initial: Params


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class AllButOne:
    """A published model, shown to an adversary who has every training record but one (Balle et al. 2022)."""

    withholds: ClassVar[str] = "one training record; all the others are known"
    model: nn.Module
    final: Params
    shape: tuple[int, ...]
    bounds: Bounds = UNIT
    num_classes: int
    initial: Params
    training: Training
    fixed: Data


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class AllButOneUnknownInit:
    """`AllButOne` without the initial weights, which Balle et al. find to defeat the attack."""

    withholds: ClassVar[str] = "one training record and the initial weights; all other records are known"
    model: nn.Module
    final: Params
    shape: tuple[int, ...]
    bounds: Bounds = UNIT
    num_classes: int
    training: Training
    fixed: Data


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class BeforeAndAfter:
    """Two versions of one model: before and after records were deleted from its training set, or added to it."""

    withholds: ClassVar[str] = "every training record, those that were deleted or added among them"
    model: nn.Module
    before: Params
    final: Params
    shape: tuple[int, ...]
    bounds: Bounds = UNIT
    num_classes: int
    training: Training
    records: int  # that the version before was trained on
    change: Literal["deleted", "added"] = "deleted"
    count: int = 1  # of records that were deleted or added
    public: Data | None = None  # records of the same distribution, none of them trained on, that the attacker owns

    def __post_init__(self) -> None:
        check_min(self, count=1, records=1)
        if self.change not in ("deleted", "added"):
            message = f"`change` must be `deleted` or `added`, got {self.change!r}"
            raise BadInput(message, code="unknown-name", argument="change")
        if self.change == "deleted" and self.count >= self.records:
            message = f"`count` must be less than the {self.records} `records` it is deleted from, got {self.count}"
            raise BadInput(message, code="out-of-range", argument="count")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Gradient:
    """One federated update: the gradient of a batch at weights the server knows, after the client's defenses."""

    withholds: ClassVar[str] = "the records of the batch"
    model: nn.Module
    at: Params
    gradient: Params
    labels: Tensor | None
    batch_size: int | None
    shape: tuple[int, ...]
    bounds: Bounds = UNIT
    loss: Loss
    defenses: tuple[Defense, ...] = ()

    @property
    def sent(self) -> Params:
        return self.gradient

    def simulate(self, x: Tensor, labels: Tensor) -> Params:
        ours = loss_gradient(self.model, self.at, x, labels, loss=self.loss)
        for defense in self.defenses:
            ours = defense.imitate(ours, self.gradient)
        return ours


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class LocalUpdate:
    """Federated averaging (McMahan et al. 2017): the update of the weights by a client's training on its batch."""

    withholds: ClassVar[str] = "the records of the batch"
    model: nn.Module
    at: Params
    update: Params  # the weights after the client's training minus those before; without those it kept frozen
    labels: Tensor | None
    batch_size: int | None
    shape: tuple[int, ...]
    bounds: Bounds = UNIT
    training: Training

    def __post_init__(self) -> None:
        optimizer, privacy = self.training.optimizer, self.training.privacy
        if not isinstance(optimizer, SGD):
            raise _unsupported("optimizer", f"SGD, got {optimizer}")
        if self.training.epochs < 1:
            raise _unsupported("epochs", f"1 or more, got {self.training.epochs}")
        if self.training.batch_size is not None:
            got = self.training.batch_size
            raise _unsupported("batch_size", f"None, got {got}: the order of mini-batches is not released")
        if self.training.lr_schedule:
            raise _unsupported("lr_schedule", f"empty, got {self.training.lr_schedule}")
        if privacy and (privacy.noise or privacy.sample_rate < 1):
            expected = "without noise and `sample_rate`: what the client samples is not released"
            raise _unsupported("privacy", f"{expected}; leave it out")
        if self.training.clip is not None:
            limit = self.training.clip
            raise _unsupported("clip", f"None, got {limit}: the norms of the client's gradients are not released")

    @property
    def loss(self) -> Loss:
        return self.training.loss

    @property
    def sent(self) -> Params:
        return self._as_gradient(self.update)

    def simulate(self, x: Tensor, labels: Tensor) -> Params:
        return self._as_gradient(local_delta(self.training, self.model, self.at, x, labels, names=list(self.update)))

    def _as_gradient(self, update: Params) -> Params:
        """The mean gradient that gives this `update`: the update of a weight whose gradient is one at every step is
        the unit."""
        optimizer, steps = self.training.optimizer, self.training.epochs
        assert isinstance(optimizer, SGD)
        unit = optimizer.lr * sum(optimizer.momentum**k * (steps - k) for k in range(steps))
        return {name: u / -unit for name, u in update.items()}


def _unsupported(argument: str, expected: str) -> BadInput:
    return BadInput(
        f"`{argument}` of a client's training must be {expected}", code="unsupported-training", argument=argument
    )


def local_delta(
    training: Training, model: nn.Module, at: Params, x: Tensor, labels: Tensor, *, names: Sequence[str]
) -> Params:
    """The weights of these `names` after full-batch steps on these records minus those before; others are frozen."""
    gradient = only(on_batches(engine_for(model, training, x.shape[1:]).gradient, x, labels), names)
    end = training.descend(gradient, at, [None] * training.epochs, records=len(x), noise_seed=0)
    return {name: end[name] - at[name] for name in names}
