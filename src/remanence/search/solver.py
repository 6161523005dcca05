"""One loop for all searches: `minimise(objective, search) -> Solution`.

All restarts are updated by one optimizer as a stack; its learning rate follows a schedule, and on a CUDA device a step
is captured once and replayed. A restart whose values are not finite is dropped with a warning, and so is, at halvings,
the worse half of the others; where all have diverged, `Diverged` says so.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from remanence.bounds import width
from remanence.engine import elementwise
from remanence.engine.cuda import changed_by, precision, replayed, torch_optimizer
from remanence.errors import BadInput, Diverged
from remanence.progress import SOON, track
from remanence.search import checkpoint as checkpoints
from remanence.search.objective import Objective, Variable, Variables
from remanence.search.scales import coarser, gradient_at_scale, upsampled
from remanence.search.settings import LBFGS, Search
from remanence.training import SGD, Optimizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CHECK_EVERY = 100  # steps between two checks of divergence: each is a wait for the device
_SAVE_EVERY = 30.0  # seconds


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """Where the remaining restarts ended."""

    variables: Variables
    value: Tensor  # the objective there, shape (restarts,)
    restarts: Tensor  # the indices of those that remain

    def best(self) -> tuple[Variables, int]:
        """The variables of the restart with the lowest objective, and its index among those that remain."""
        index = int(self.value.argmin())
        return {name: value[index] for name, value in self.variables.items()}, index


def minimise(
    objective: Objective, search: Search, *, checkpoint: Path | None = None, label: str = "search"
) -> Solution:
    """Minimise `objective` from its initial variables. A search that was stopped resumes from the file `checkpoint`,
    which is written every half minute and at the end; `label` names the progress bar."""
    with precision(tf32=search.tf32):
        if isinstance(search.optimizer, LBFGS):
            return _by_lbfgs(objective, search.optimizer, search.steps, label)
        return _descend(objective, search, checkpoint, label)


def _descend(objective: Objective, search: Search, checkpoint: Path | None, label: str) -> Solution:
    stack, done, steps = Stack(objective, objective.init(), search), 0, search.steps
    if (saved := checkpoints.load(checkpoint, stack.optimizer, len(stack.restarts), steps)) is not None:
        done = saved.done
        stack = stack.select(saved.restarts) if len(saved.restarts) < len(stack.restarts) else stack
        checkpoints.restore(stack.optimizer, saved.state)
    halvings, saved_at = {steps >> k for k in range(1, search.halvings + 1)}, perf_counter()
    step, resumed = stack.replayed() if done < steps else stack.step, f", from step {done + 1}" if done else ""
    for index in track(range(done, steps), total=steps - done, label=label + resumed, may_stop=True):
        stack.prepare(index, steps, search.schedule(index, steps))
        step()
        done = index + 1
        due = checkpoint is not None and (done == steps or perf_counter() - saved_at > _SAVE_EVERY)
        if due or done in halvings or done == steps or index % _CHECK_EVERY == 0:
            remaining = stack.remaining(done, halve=done in halvings)
            if len(remaining) < len(stack.restarts):
                stack = stack.select(remaining)
                step = stack.replayed() if done < steps else stack.step
        if due and checkpoint is not None:
            checkpoints.save(checkpoint, stack.optimizer, stack.restarts, done)
            saved_at = perf_counter()
    return _solution(stack.objective, stack.values, stack.restarts)


@torch.no_grad()
def _solution(objective: Objective, values: Variables, restarts: Tensor) -> Solution:
    """The objective is evaluated once more, at what is returned."""
    objective.set_progress(1.0)
    value, _ = objective.value_and_grad(values)
    finite = value.isfinite()
    if not bool(finite.any()):
        raise _diverged()
    if not bool(finite.all()):
        _warn(int((~finite).sum()), len(finite))
        index = finite.nonzero()[:, 0]
        values, value = {name: each[index] for name, each in values.items()}, value[index]
        restarts = restarts[index.to(restarts.device)]
    return Solution(variables=values, value=value, restarts=restarts)


@final
class Stack:
    """The variables of the remaining restarts with their optimizer, which `step` updates in place."""

    def __init__(
        self, objective: Objective, variables: dict[str, Variable], search: Search, restarts: Tensor | None = None
    ) -> None:
        self.objective, self.variables, self.search = objective, variables, search
        self.values = {name: variable.init.detach().clone() for name, variable in variables.items()}
        self.coarse = {
            name: coarser(self.values[name], search.scales) if variable.multiscale else []
            for name, variable in variables.items()
        }
        damped = [name for name, variable in variables.items() if variable.damping is not None]
        self.previous = {name: torch.empty_like(self.values[name]) for name in damped}
        count = len(next(iter(self.values.values())))
        self.value = next(iter(self.values.values())).new_zeros(count)
        self.restarts = torch.arange(count) if restarts is None else restarts
        self.leaves = {  # by variable and scale
            (name, scale): nn.Parameter(tensor, requires_grad=False)
            for name in variables
            for scale, tensor in enumerate((self.values[name], *self.coarse[name]))
        }
        settings = search.optimizer
        assert not isinstance(settings, LBFGS)
        self.lrs = [_lr(settings.lr, variable) for variable in variables.values()]
        self.optimizer, self.factor = self._optimizer(settings), 1.0

    def _optimizer(self, settings: Optimizer) -> torch.optim.Optimizer:
        """torch's, with a group for each variable; where restarts have learning rates of their own, a stacked SGD."""
        groups = [[leaf for (owner, _), leaf in self.leaves.items() if owner == name] for name in self.variables]
        if any(isinstance(lr, Tensor) for lr in self.lrs):
            return StackedSGD(settings, groups, self.lrs)
        made: torch.optim.Optimizer | None = None
        for params, lr in zip(groups, self.lrs, strict=True):
            assert isinstance(lr, float)
            if made is None:
                made = torch_optimizer(replace(settings, lr=lr), params)
            else:
                device_lr: Any = torch.tensor(lr, device=params[0].device) if params[0].is_cuda else lr
                made.add_param_group({"params": params, "lr": device_lr})
        assert made is not None
        return made

    def prepare(self, index: int, steps: int, factor: float) -> None:
        """Before a step: the learning rates, the objective's progress, and moments that are to be forgotten."""
        if factor != self.factor:
            self._set_lrs(factor)
        self.objective.set_progress(index / steps)
        for (name, _), leaf in self.leaves.items():
            reset_at = self.variables[name].reset_at
            if reset_at is not None and index == int(reset_at * steps):
                for moment in self.optimizer.state[leaf].values():
                    if isinstance(moment, Tensor):
                        moment.zero_()

    def _set_lrs(self, factor: float) -> None:
        self.factor = factor
        for group, lr in zip(self.optimizer.param_groups, self.lrs, strict=True):
            if isinstance(lr, Tensor):
                group["lr"].copy_(lr.view_as(group["lr"]) * factor)  # in place: a captured step reads it there
            elif isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * factor)
            else:
                group["lr"] = lr * factor

    @torch.no_grad()
    def step(self) -> None:
        """Update all variables once."""
        value, grads = self.objective.value_and_grad(self.values)
        self.value.copy_(value)
        for (name, scale), leaf in self.leaves.items():
            if name in grads:
                grad = grads[name] if not scale else gradient_at_scale(grads[name], self.coarse[name][scale - 1])
                grad = grad.sign() if self.search.signed else grad
                # fused optimizers refuse another layout
                leaf.grad = grad if grad.stride() == leaf.stride() else torch.empty_like(leaf).copy_(grad)
        for name, previous in self.previous.items():
            previous.copy_(self.values[name])
        self.optimizer.step()
        for name, variable in self.variables.items():
            x = self.values[name]
            for part in self.coarse[name]:
                x.add_(upsampled(part, x))
                part.zero_()
            if variable.damping is not None:
                x.lerp_(self.previous[name], variable.damping)
            if variable.bounds is not None:
                x.clamp_(*variable.bounds)

    def replayed(self) -> Callable[[], None]:
        """`step`, on a CUDA device captured."""
        if not self.objective.capturable:
            return self.step
        return replayed(self.step, lambda: [*changed_by([self.optimizer]), *self.values.values(), self.value])

    def remaining(self, done: int, *, halve: bool) -> Tensor:
        """Positions of the restarts that go on: all that are finite, or the better half of them."""
        finite = self.value.isfinite()
        for values in self.values.values():
            finite = finite & values.flatten(1).isfinite().all(1)
        left = int(finite.sum())
        if not left:
            raise _diverged(done, objective_is_finite=bool(self.value.isfinite().any()))
        if left < len(finite):
            _warn(len(finite) - left, len(finite))
        left = (left + 1) // 2 if halve else left
        return self.value.where(finite, torch.inf).argsort()[:left].sort().values

    def select(self, index: Tensor) -> "Stack":
        """These restarts alone, with their moments."""
        index = index.to(self.value.device)

        def chosen(name: str, variable: Variable) -> Variable:
            lr, damping = variable.lr, variable.damping
            return replace(
                variable,
                init=self.values[name][index],
                lr=lr[index.to(lr.device)] if isinstance(lr, Tensor) else lr,
                damping=None if damping is None else damping[index],
            )

        variables = {name: chosen(name, variable) for name, variable in self.variables.items()}
        restarts = self.restarts[index.to(self.restarts.device)]
        new = Stack(self.objective.select(index), variables, self.search, restarts)
        new.value.copy_(self.value[index])
        for key, leaf in self.leaves.items():
            for name, moment in self.optimizer.state.get(leaf, {}).items():
                if isinstance(moment, Tensor):
                    stacked = moment.shape == leaf.shape
                    new.optimizer.state[new.leaves[key]][name] = moment[index] if stacked else moment.clone()
        return new


def _lr(lr: float, variable: Variable) -> float | Tensor:
    """The learning rate of a variable: its own, or the optimizer's in units of the width of its box."""
    if variable.lr is not None:
        return variable.lr
    return lr if variable.bounds is None else lr * width(variable.bounds)


@final
class StackedSGD(torch.optim.Optimizer):
    """SGD with momentum, in place, whose learning rates may be tensors (restarts,): each restart has its own."""

    def __init__(self, settings: Optimizer, groups: list[list[nn.Parameter]], lrs: Sequence[float | Tensor]) -> None:
        if not isinstance(settings, SGD):
            message = f"`optimizer` must be SGD where restarts have learning rates of their own, got {settings}"
            raise BadInput(message, code="wrong-type", argument="optimizer")
        columns = [
            torch.as_tensor(lr).to(params[0]).view(-1, *[1] * (params[0].ndim - 1))
            for params, lr in zip(groups, lrs, strict=True)
        ]
        super().__init__(
            [{"params": params, "lr": lr} for params, lr in zip(groups, columns, strict=True)],
            {"momentum": settings.momentum},
        )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                update = p.grad
                if group["momentum"]:
                    state = self.state[p]
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = torch.zeros_like(p)
                    update = state["momentum_buffer"]
                    if elementwise.applies(p, update, p.grad):
                        elementwise.momentum_step(p.data, update, p.grad, group["lr"], group["momentum"])
                        continue
                    torch.add(p.grad, update, alpha=group["momentum"], out=update)
                p.addcmul_(group["lr"], update, value=-1)


def _diverged(step: int | None = None, *, objective_is_finite: bool = False) -> Diverged:
    if step == 1:
        what = "gradient of the objective" if objective_is_finite else "objective"
        text = f"the {what} is not finite at the initial values, whatever the learning rate of `optimizer`"
        return Diverged(text, code="not-finite", argument="search")
    when = "" if step is None else f" by its step {step}"
    text = f"the search diverged{when}: lower the learning rate of `optimizer`"
    return Diverged(text, code="diverged", argument="search")


def _warn(diverged: int, restarts: int) -> None:
    text = f"{diverged} of {restarts} restarts of a search diverged and were dropped: lower their learning rate"
    warnings.warn(text, RuntimeWarning, stacklevel=3)


def _by_lbfgs(objective: Objective, optimizer: LBFGS, steps: int, label: str) -> Solution:
    """SciPy works on the host, in float64; an evaluation costs far more than to bring it there."""
    from scipy.optimize import Bounds, minimize

    objective.set_progress(1.0)
    variables = objective.init()
    count = len(next(iter(variables.values())).init)
    names, found = list(variables), list[Variables]()
    for restart in track(range(count), total=count, label=label, may_stop=True):
        one = objective.select(torch.tensor([restart]))
        initial = {name: variables[name].init[restart : restart + 1] for name in names}
        bounds = [variables[name].bounds or (-torch.inf, torch.inf) for name in names]
        low, high = (
            torch.cat([torch.full((initial[n].numel(),), b[side]) for n, b in zip(names, bounds, strict=True)]).numpy()
            for side in (0, 1)
        )

        def evaluate(
            flat: "NDArray[np.float64]", one: Objective = one, initial: Variables = initial
        ) -> tuple[float, "NDArray[np.float64]"]:
            value, grads = one.value_and_grad(_unflattened(flat, initial))
            return float(value), _flattened(grads, names)

        taken = track(range(steps), total=steps, label=f"{label}, L-BFGS", after=SOON, may_stop=True)
        next(taken, None)  # the first step begins

        def halt(_: "NDArray[np.float64]", taken: Iterator[int] = taken) -> None:
            if next(taken, None) is None:  # no steps or no time are left: SciPy ends with what it has
                raise StopIteration

        options: dict[str, Any] = {"maxiter": steps, "maxcor": optimizer.history, "ftol": 0.0, "gtol": 0.0}
        start = _flattened(initial, names)
        box = Bounds(low, high)
        ended = minimize(evaluate, start, jac=True, method="L-BFGS-B", bounds=box, options=options, callback=halt)
        found.append(_unflattened(ended.x, initial))
    values = {name: torch.cat([each[name] for each in found]) for name in names}
    for name, variable in variables.items():
        if variable.bounds is not None:
            values[name].clamp_(*variable.bounds)
    restarts = torch.arange(len(found))
    return _solution(objective if len(found) == count else objective.select(restarts), values, restarts)


def _flattened(values: Variables, names: list[str]) -> "NDArray[np.float64]":
    return torch.cat([values[name].flatten().double().cpu() for name in names]).numpy()


def _unflattened(flat: "NDArray[np.float64]", like: Variables) -> Variables:
    parts = torch.from_numpy(flat).split([value.numel() for value in like.values()])
    return {name: part.to(like[name]).view_as(like[name]) for name, part in zip(like, parts, strict=True)}
