"""Optimizers as pure pairs of `init` and `update`: one step serves a single model and a stack of models, and can be
differentiated."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, final

import torch
from torch import Tensor

from remanence.errors import BadInput, check_above, check_min
from remanence.types import Params

State: TypeAlias = tuple[Params, ...]


class Optimizer(Protocol):
    """A frozen dataclass, so that `replace(optimizer, lr=...)` changes its learning rate."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def lr(self) -> float: ...

    def init(self, params: Params) -> State: ...

    def update(self, params: Params, grads: Params, state: State, step: int) -> tuple[Params, State]: ...


@final
@dataclass(frozen=True, kw_only=True)
class SGD:
    """v <- momentum v + g; theta <- theta - lr v: torch's SGD without dampening or Nesterov."""

    lr: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_min(self, lr=0, momentum=0)

    def init(self, params: Params) -> State:
        return ({name: torch.zeros_like(p) for name, p in params.items()},) if self.momentum else ()

    def update(self, params: Params, grads: Params, state: State, step: int) -> tuple[Params, State]:
        if self.momentum:
            grads = {name: g.add(state[0][name], alpha=self.momentum) for name, g in grads.items()}
            state = (grads,)
        # add, not sub, whose derivative takes one more kernel
        return {name: p.add(grads[name], alpha=-self.lr) for name, p in params.items()}, state


@final
@dataclass(frozen=True, kw_only=True)
class Adam:
    """Kingma and Ba 2015, with bias correction."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_min(self, lr=0)

    def init(self, params: Params) -> State:
        return tuple({name: torch.zeros_like(p) for name, p in params.items()} for _ in range(2))

    def update(self, params: Params, grads: Params, state: State, step: int) -> tuple[Params, State]:
        first = {name: self.beta1 * state[0][name] + (1 - self.beta1) * g for name, g in grads.items()}
        second = {name: self.beta2 * state[1][name] + (1 - self.beta2) * g * g for name, g in grads.items()}
        rate, scale = self.lr / (1 - self.beta1 ** (step + 1)), 1 - self.beta2 ** (step + 1)
        updated = {n: p - rate * first[n] / (_root(second[n] / scale) + self.eps) for n, p in params.items()}
        return updated, (first, second)


@final
@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Loshchilov and Hutter 2019: Adam whose weight decay acts on the weights, not through the gradient."""

    lr: float = 1e-3
    weight_decay: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_min(self, lr=0, weight_decay=0)

    def init(self, params: Params) -> State:
        return self._adam().init(params)

    def update(self, params: Params, grads: Params, state: State, step: int) -> tuple[Params, State]:
        decayed = {name: p * (1 - self.lr * self.weight_decay) for name, p in params.items()}
        return self._adam().update(decayed, grads, state, step)

    def _adam(self) -> Adam:
        return Adam(lr=self.lr, beta1=self.beta1, beta2=self.beta2, eps=self.eps)


@final
@dataclass(frozen=True, kw_only=True)
class RMSProp:
    """Tieleman and Hinton 2012, without momentum or centring."""

    lr: float = 1e-3
    decay: float = 0.9
    eps: float = 1e-8
    eps_in_root: bool = False  # True: sqrt(second moment + eps), as in optax; False: sqrt(second moment) + eps, torch's

    def __post_init__(self) -> None:
        check_min(self, lr=0)

    def init(self, params: Params) -> State:
        return ({name: torch.zeros_like(p) for name, p in params.items()},)

    def update(self, params: Params, grads: Params, state: State, step: int) -> tuple[Params, State]:
        second = {name: self.decay * state[0][name] + (1 - self.decay) * g * g for name, g in grads.items()}
        inside, outside = (self.eps, 0.0) if self.eps_in_root else (0.0, self.eps)
        updated = {n: p - self.lr * grads[n] / (_root(second[n] + inside) + outside) for n, p in params.items()}
        return updated, (second,)


@final
@dataclass(frozen=True, kw_only=True)
class QuasiNewton:
    """L-BFGS to the minimum of a linear model's regularised loss, in at most as many steps as the training has epochs;
    `remanence.engine` runs it. It has no learning rate, and cannot be simulated step by step."""

    tolerance: float = 1e-9  # it stops where no entry of the mean gradient is larger
    preconditioned: bool = True  # by the Hessian, and ensembles start where they meet; scikit-learn's L-BFGS is not
    lr: float = 1.0

    def __post_init__(self) -> None:
        check_above(self, tolerance=0)

    def init(self, params: Params) -> State:
        message = "`optimizer` QuasiNewton is not taken step by step, as this needs: give SGD, Adam, AdamW or RMSProp"
        raise BadInput(message, code="unsupported-training", argument="optimizer")

    def update(self, params: Params, grads: Params, state: State, step: int) -> tuple[Params, State]:
        return params, self.init(params)


def _root(second: Tensor) -> Tensor:
    """The square root of a second moment, which is 0 for weights of a closed ReLU: there the derivative of a plain root
    would be infinite."""
    return second.clamp_min(torch.finfo(second.dtype).tiny).sqrt()
