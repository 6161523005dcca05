"""Candidates in the box [0, 1] with a small objective, from several starts that know nothing of each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import cos, pi
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.func import grad, grad_and_value, vmap
from torch.nn.functional import interpolate

from remanence.engine.cuda import changed_by, replayed, set_lr, torch_optimizer, update
from remanence.errors import Diverged
from remanence.progress import track
from remanence.search.checkpoint import keep, resumed
from remanence.training import Optimizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LOOK = 100  # steps between two looks at whether a search has diverged
_KEPT_EVERY = 30.0  # seconds

Objective: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # of the candidates of one start, and their labels


@final
@dataclass(frozen=True, kw_only=True)
class LBFGS:
    """L-BFGS-B, which keeps to the box (Byrd, Lu, Nocedal, Zhu 1995)."""

    history: int = 20  # pairs of steps and slopes from which the curvature is made up


def search(
    objective: Objective, starts: Tensor, labels: Tensor, *, optimizer: Optimizer | LBFGS, steps: int, label: str
) -> Tensor:
    """Where each of `starts` (start, record, ...) with its `labels` (start, record) ends."""
    if not isinstance(optimizer, LBFGS):
        return _descended(objective, starts, labels, optimizer, steps, label)
    pairs = track(zip(starts, labels, strict=True), total=len(starts), label=label)
    return torch.stack([_curved(objective, start, own, optimizer, steps) for start, own in pairs])


def _descended(
    objective: Objective, starts: Tensor, labels: Tensor, optimizer: Optimizer, steps: int, label: str
) -> Tensor:
    """One stacked gradient serves all starts, and the optimiser works on each element alone; its rate falls on a half
    cosine, and each step is cut to the box."""
    slope = vmap(grad(objective))
    x = nn.Parameter(starts.clone(), requires_grad=False)
    stepper = torch_optimizer(optimizer, [x])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(stepper, steps)
    for _ in track(range(steps), total=steps, label=label):
        x.grad = slope(x.data, labels)
        stepper.step()
        schedule.step()
        x.clamp_(0, 1)
    return x.data


def _curved(objective: Objective, start: Tensor, labels: Tensor, optimizer: LBFGS, steps: int) -> Tensor:
    """A curvature for each start. SciPy works on the host; an evaluation costs far more than to bring it there."""
    from scipy.optimize import Bounds, minimize

    slope_and_value = grad_and_value(objective)

    def evaluate(place: "NDArray[np.float64]") -> tuple[float, "NDArray[np.float64]"]:
        slope, value = slope_and_value(_tensor(place, start), labels)
        return float(value), _array(slope)

    options: dict[str, Any] = {"maxiter": steps, "maxcor": optimizer.history, "ftol": 0.0, "gtol": 0.0}
    found = minimize(evaluate, _array(start), jac=True, method="L-BFGS-B", bounds=Bounds(0, 1), options=options)
    return _tensor(found.x, start).clamp(0, 1)


def search_in_place(
    objective: Callable[[Tensor], Tensor],
    x: nn.Parameter,
    others: Sequence[nn.Parameter] = (),
    *,
    optimizer: Optimizer,
    steps: int,
    label: str,
    octaves: int = 0,
    kept: Path | None = None,
    prepare: Callable[[float], None] = lambda _: None,
) -> None:
    """From one start, for objectives that are large: `x` is moved within the box and `others` freely. The rate falls on
    a half cosine; on a CUDA device a step is captured once.

    Images are also moved as wholes: with `octaves` a step has coarser parts, each of half the side of the one before,
    that the optimiser scales for themselves. A slope by single pixels is mostly noise to it in deep nets.

    What the file `kept` holds is gone on from; it is written every half minute and at the end. `prepare` is told before
    each step which share of them is done: it may fill tensors that the objective reads.
    """
    parts = [nn.Parameter(part) for part in coarser(x, octaves)]
    stepper, reached = torch_optimizer(optimizer, [x, *parts, *others]), x.detach().new_zeros(())

    def step() -> None:
        value = objective(_with_parts(x, parts))
        update(stepper, value)
        with torch.no_grad():
            x.copy_(_with_parts(x, parts).clamp(0, 1))
            for part in parts:
                part.zero_()
            reached.copy_(value)

    done, written = resumed(kept, stepper), perf_counter()
    if done == steps:
        return
    next_step = replayed(step, lambda: [*changed_by([stepper]), reached])
    told = f"{label}, from step {done + 1} on" if done else label
    for place in track(range(done, steps), total=steps - done, label=told):
        set_lr(stepper, optimizer.lr * (1 + cos(pi * place / steps)) / 2)
        prepare(place / steps)
        next_step()
        last, due = place == steps - 1, kept is not None and perf_counter() - written > _KEPT_EVERY
        if (last or due or place % _LOOK == 0) and not (reached.isfinite() and x.isfinite().all()):
            raise _diverged(reached, place + 1)
        if kept is not None and (last or due):
            keep(kept, stepper, place + 1)
            written = perf_counter()


def _diverged(reached: Tensor, step: int) -> Diverged:
    if step > 1:
        return Diverged(f"the search diverged by its step {step}: lower the rate of `optimizer`")
    what = "slope of the objective" if reached.isfinite() else "objective"
    return Diverged(f"the {what} is not finite where the search begins, whatever the rate of `optimizer`")


def coarser(x: Tensor, octaves: int) -> list[Tensor]:
    """Zeros for each octave below these images; what is no image has none."""
    sides = [[side >> k for side in x.shape[2:]] for k in range(1, octaves + 1)] if x.ndim == 4 else []
    return [x.detach().new_zeros(*x.shape[:2], *side) for side in sides if min(side)]


def _with_parts(x: Tensor, parts: Sequence[Tensor]) -> Tensor:
    for part in parts:
        x = x + interpolate(part, size=x.shape[2:], mode="bilinear")
    return x


def _array(x: Tensor) -> "NDArray[np.float64]":
    return x.flatten().double().cpu().numpy()


def _tensor(place: "NDArray[np.float64]", like: Tensor) -> Tensor:
    return torch.from_numpy(place).to(like).view_as(like)
