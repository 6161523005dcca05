"""How an objective is minimised, as a frozen record."""

from dataclasses import dataclass, field, replace
from math import cos, pi
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, final

from remanence.errors import check_between, check_min
from remanence.training import Adam, Optimizer


class Schedule(Protocol):
    """The learning rate of a step as a factor of the first one."""

    def __call__(self, step: int, steps: int) -> float: ...


@final
@dataclass(frozen=True, kw_only=True)
class CosineAnnealing:
    """Half a cosine from 1 to 0 over `period` steps, after which it rises and falls again; None: over all steps."""

    period: int | None = None

    def __post_init__(self) -> None:
        check_min(self, period=1)

    def __call__(self, step: int, steps: int) -> float:
        return (1 + cos(pi * step / (self.period or steps))) / 2


@final
@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same learning rate in every step."""

    def __call__(self, step: int, steps: int) -> float:
        return 1.0


@final
@dataclass(frozen=True, kw_only=True)
class MultiStep:
    """Multiplied by `factor` after each of `milestones`, fractions of all steps."""

    milestones: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)
    factor: float = 0.1

    def __post_init__(self) -> None:
        check_between(self, "milestones", 0, 1)
        check_min(self, factor=0)

    def __call__(self, step: int, steps: int) -> float:
        return self.factor ** sum(step >= milestone * steps for milestone in self.milestones)


@final
@dataclass(frozen=True, kw_only=True)
class LBFGS:
    """L-BFGS-B of SciPy, which respects bounds (Byrd, Lu, Nocedal, Zhu 1995); each restart is minimised by itself."""

    history: int = 20  # pairs of steps and gradients that approximate the curvature


@final
@dataclass(frozen=True, kw_only=True)
class Search:
    """The solver's settings. Restarts that diverge are dropped; successive halving (Jamieson and Talwalkar 2016) drops
    the worse half of the others by the objective alone."""

    optimizer: Optimizer | LBFGS = Adam(lr=0.01)  # of the candidates, and of all that is optimised with them
    steps: int = 1000  # of the optimizer
    restarts: int = 1  # from other initial values; the one with the lowest objective is returned
    schedule: Schedule = CosineAnnealing()  # of the learning rate, over the steps
    scales: int = 0  # coarser versions of images, each of half the side, that are updated with the pixels
    halvings: int = 0  # the better half of the restarts goes on, last after 1/2 of the steps, before after 1/4, ...
    signed: bool = False  # the optimizer sees the sign of each gradient alone
    tf32: bool = False  # matrix products and convolutions on a CUDA device round their factors to TF32
    checkpoints: Path | None = field(default=None, repr=False, compare=False)  # folder from which a search resumes

    def __post_init__(self) -> None:
        check_min(self, steps=1, restarts=1, scales=0, halvings=0)


class _Searching(Protocol):
    """An attack that minimises an objective: a frozen dataclass with a field `search`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def search(self) -> Search: ...


A = TypeVar("A", bound=_Searching)


def with_search(attack: A, **changes: Any) -> A:
    """The attack with other settings of its search, e.g. ``with_search(GradientMatching(), steps=200, restarts=1)``."""
    return replace(attack, search=replace(attack.search, **changes))
