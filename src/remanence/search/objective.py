"""What is minimised: an objective over named variables, each with a leading dimension of independent restarts."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

from torch import Tensor

from remanence.bounds import Bounds

Variables: TypeAlias = dict[str, Tensor]  # values by name, each of shape (restarts, ...)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Variable:
    """Initial values of one variable, shape (restarts, ...), and how the solver updates them."""

    init: Tensor
    lr: float | Tensor | None = None  # a tensor (restarts,) gives each restart its own; None: the optimizer's,
    # which is in units of the width of the box
    bounds: Bounds | None = None  # to which values are clamped after each step
    multiscale: bool = False  # images (restarts, n, c, h, w) that may be updated at coarser scales too
    damping: Tensor | None = None  # fraction of each update that is taken back; broadcasts to the values
    reset_at: float | None = None  # fraction of the steps after which the optimizer forgets its moments of them


class Objective(Protocol):
    """A differentiable function of variables, evaluated for all restarts at once.

    On a CUDA device a step is captured and replayed where the objective is `capturable`: tensors that depend on the
    progress of the search are then filled in place by `set_progress`.
    """

    @property
    def capturable(self) -> bool: ...

    def init(self) -> dict[str, Variable]:
        """The variables with their initial values."""

    def set_progress(self, progress: float) -> None:
        """Prepare for a step before which this fraction of the search is done; 1 at the end."""

    def value_and_grad(self, v: Variables) -> tuple[Tensor, Variables]:
        """The value (restarts,), and the gradient by each variable; one without a gradient is not updated."""

    def select(self, restarts: Tensor) -> "Objective":
        """The objective of these restarts alone."""
