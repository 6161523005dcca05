"""The releases: frozen records of what an attacker is shown, each with a sentence on what it withholds.

`shape` is that of a record, and `bounds` the box that its values lie in.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

from torch import Tensor, nn

from remanence.bounds import UNIT, Bounds
from remanence.engine import GenericEngine, batch_gradient
from remanence.errors import BadInput, check_min
from remanence.models import running_statistics
from remanence.releases.defenses import Defense
from remanence.training.losses import Loss
from remanence.training.training import Training
from remanence.types import Data, Params

BatchNormMode: TypeAlias = Literal["frozen", "training"]


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
    """A fine-tuned model together with the public one it was initialised from; `initial` lacks layers at the end that
    were re-initialised, such as a new head, where their initial weights are not public."""

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
    gradient: Params  # without those of parameters that the client keeps frozen or to itself
    labels: Tensor | None
    batch_size: int | None
    shape: tuple[int, ...]
    bounds: Bounds = UNIT
    loss: Loss
    defenses: tuple[Defense, ...] = ()
    batch_norm: BatchNormMode = "frozen"  # of the client's network; in training mode batches have their own statistics
    statistics: Params | None = None  # running means and variances after the batch; None: not sent, or frozen

    def __post_init__(self) -> None:
        check_statistics(self.model, self.at, self.batch_norm, self.statistics)

    @property
    def sent(self) -> Params:
        return self.gradient

    def simulate(self, x: Tensor, labels: Tensor) -> Params:
        return self.simulate_with_statistics(x, labels)[0]

    def simulate_with_statistics(self, x: Tensor, labels: Tensor) -> tuple[Params, Params]:
        """The gradient that a client with the records `x` would send, and its running statistics."""
        names, statistics = tuple(self.gradient), dict[str, Tensor]()
        if self.batch_norm == "training":
            ours, statistics = batch_gradient(self.model, self.at, x, labels, loss=self.loss, names=names)
        else:
            ours = GenericEngine(model=self.model, loss=self.loss, names=names).gradient(self.at, x, labels)
        for defense in self.defenses:
            ours = defense.imitate(ours, self.gradient)
        return ours, statistics


def check_statistics(model: nn.Module, at: Params, batch_norm: BatchNormMode, statistics: Params | None) -> None:
    """Refuse a mode of BatchNorm that there is not, and statistics that the client cannot have sent."""
    if batch_norm not in ("frozen", "training"):
        message = f"`batch_norm` must be `frozen` or `training`, got {batch_norm!r}"
        raise BadInput(message, code="unknown-name", argument="batch_norm")
    names = running_statistics(model)
    if batch_norm == "training" and (missing := [name for name in names if name not in at]):
        message = f"`at` must hold the running statistics of BatchNorm, and lacks `{missing[0]}`: give the state dict"
        raise BadInput(message, code="shape-mismatch", argument="at")
    if statistics is None:
        return
    if batch_norm == "frozen":
        message = "`statistics` come with `batch_norm='training'`: frozen ones are those of `at`, leave them out"
        raise BadInput(message, code="conflict", argument="statistics")
    expected = {name: tuple(at[name].shape) for name in names}
    if (got := {name: tuple(s.shape) for name, s in statistics.items()}) != expected:
        odd = next(name for name in (*expected, *got) if expected.get(name) != got.get(name))
        message = f"`statistics` must be the running means and variances of the model, and differ in `{odd}`"
        raise BadInput(message, code="shape-mismatch", argument="statistics")
