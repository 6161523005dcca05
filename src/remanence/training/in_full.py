"""Full-batch training in place: on a CUDA device each step is the same captured graph, without a sync."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

from remanence.engine.cuda import changed_by, copied, replayed, set_rate, torch_optimizer
from remanence.errors import BadInput, check_above
from remanence.progress import track
from remanence.training.clipping import squared_norms, times
from remanence.training.optimizers import Optimizer
from remanence.types import Params

_PART = 1000  # epochs between two updates of the progress that is shown


@final
@dataclass(frozen=True, kw_only=True)
class UntilRest:
    """The rate goes through `factors`, to the next one where the pull on the weights no longer falls, and then it ends.

    The pull is how far they moved between two looks, over the rate: steps to and fro across a kink of ReLU cancel, as
    they do in the conditions of rest, while the gradient of a single step stays as large as it was.
    """

    look: int = 1000  # epochs between two looks
    falls: float = 0.9  # at least to this share of its least so far
    factors: tuple[float, ...] = (1.0, 0.2, 0.04, 0.008)


@final
@dataclass(frozen=True, kw_only=True)
class ByLoss:
    """The rate rises as the loss falls (Lyu and Li 2020): without weight decay only the direction of the weights
    converges, at a constant rate with one over the log of the epochs. Of a linear model it then does with one over the
    epochs; deep ones come far nearer too.

    Steps go down the log of the loss, each by at most `fall` to first order, and with momentum by 1 / (1 - momentum)
    times that.
    """

    fall: float = 0.3
    lowered: tuple[tuple[float, float], ...] = ((0.6, 0.3), (0.8, 0.1))  # (share of the epochs, factor of both rates)

    def __post_init__(self) -> None:
        check_above(self, fall=0)
        if not all(0 < share < 1 and factor > 0 for share, factor in self.lowered):
            raise BadInput(
                f"`lowered` of ByLoss must hold pairs of a share of the epochs and a factor above 0, got {self.lowered}"
            )

    def bounded(self, slopes: Params, lr: float, *, stacked: bool = False) -> Params:
        """Those of the log of the loss, as long as the rate `lr` should see them; of a stack each model's own."""
        return times(slopes, (self.fall / (lr * squared_norms(slopes, stacked=stacked))).clamp_max(1.0))


Stages: TypeAlias = tuple[tuple[int, float], ...] | UntilRest | ByLoss


def train_in_full(
    gradient: Callable[[Params], Params],
    initial: Params,
    optimizer: Optimizer,
    *,
    epochs: int,
    stages: Stages,
) -> Params:
    """`gradient` is that of the loss and the decay, or as `ByLoss` bounds it; `epochs` are the most."""
    params = {name: p.detach().clone() for name, p in initial.items()}
    trained = {name: nn.Parameter(params[name]) for name in gradient(params)}
    mover = torch_optimizer(optimizer, list(trained.values()))

    @torch.no_grad()
    def step() -> None:
        for name, slope in gradient(params).items():
            trained[name].grad = slope
        mover.step()

    go = replayed(step, lambda: changed_by([mover]))

    def set_factor(factor: float) -> None:
        set_rate(mover, factor * optimizer.lr)

    if isinstance(stages, UntilRest):
        parts, length = _until_rest(go, set_factor, list(trained.values()), stages, epochs), stages.look
    else:
        parts, length = _in_stages(go, set_factor, _factors(stages, epochs), epochs), _PART
    seen = track(parts, total=ceil(epochs / length), label="training") if epochs > length else parts
    for _ in seen:
        pass
    return params


def _factors(stages: tuple[tuple[int, float], ...] | ByLoss, epochs: int) -> dict[int, float]:
    """Of the rate, by the epoch from where on each holds."""
    return {int(share * epochs): f for share, f in stages.lowered} if isinstance(stages, ByLoss) else dict(stages)


def _in_stages(
    go: Callable[[], None], set_factor: Callable[[float], None], factors: Mapping[int, float], epochs: int
) -> Iterator[None]:
    """Yields after each part."""
    for begun in range(0, epochs, _PART):
        for epoch in range(begun, min(begun + _PART, epochs)):
            if epoch in factors:
                set_factor(factors[epoch])
            go()
        yield


def _until_rest(
    go: Callable[[], None], set_factor: Callable[[float], None], weights: Sequence[Tensor], rule: UntilRest, epochs: int
) -> Iterator[None]:
    """Yields after each look."""
    left = epochs
    for factor in rule.factors:
        set_factor(factor)
        least, pull = inf, 0.0
        while left and pull <= rule.falls * least:
            least, before = min(least, pull or inf), copied(weights)
            for _ in range(taken := min(rule.look, left)):
                go()
            left -= taken
            squares = [(now.detach() - then).square().sum() for now, then in zip(weights, before, strict=True)]
            pull = float(torch.stack(squares).sum().sqrt()) / factor
            yield
