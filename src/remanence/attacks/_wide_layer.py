"""The two layers that a server reads a batch from: Gaussian rows, an activation, and a linear head."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from remanence.errors import BadInput
from remanence.release import KnowsGradient

_KNOWN = (nn.Linear, nn.Flatten)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class WideLayer:
    """In float64. Row j of the gradient is  sum_i (head_j . residual_i) s'(w_j . x_i + b_j) x_i."""

    rows: Tensor  # (m, d)
    offsets: Tensor  # (m,), the biases
    head: Tensor  # (m, outputs)
    gradient: Tensor  # (m, d) of the rows
    of_offsets: Tensor | None  # (m,), their gradient
    of_head: Tensor  # (m, outputs), its gradient
    activation: Callable[[Tensor], Tensor]
    precision: float  # of the numbers sent

    @classmethod
    def of(cls, release: KnowsGradient) -> "WideLayer":
        first, activation, last = _layers(release.model)
        _check(release, first, last)
        at = {name: p.detach().double() for name, p in release.at.items()}
        sent = {name: p.detach().double() for name, p in release.gradient.items()}
        rows, biased = at[f"{first}.weight"], f"{first}.bias" in at
        return cls(
            rows=rows,
            offsets=at[f"{first}.bias"] if biased else rows.new_zeros(len(rows)),
            head=at[f"{last}.weight"].T,
            gradient=sent[f"{first}.weight"],
            of_offsets=sent[f"{first}.bias"] if biased else None,
            of_head=sent[f"{last}.weight"].T,
            activation=activation,
            precision=torch.finfo(release.gradient[f"{first}.weight"].dtype).eps,
        )

    @property
    def rounding(self) -> float:
        """A share of the gradient left unexplained that may be rounding: 4e-10, and 7e-5 in float32."""
        return float(self.precision**0.6)

    @property
    def gap(self) -> float:
        """Singular values below that, beside the largest, are rounding: 2e-12, and 6e-6 in float32."""
        return float(self.precision**0.75)

    @cached_property
    def spread(self) -> float:
        """Of the rows' entries, which moments are taken in units of."""
        return float(self.rows.std())

    def slope(self, x: Tensor) -> Tensor:
        """s', of every element."""
        return _each(grad(self.activation), x)

    def curvature(self, x: Tensor) -> Tensor:
        """s''."""
        return _each(grad(grad(self.activation)), x)


def _each(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    found: Tensor = vmap(function)(x.flatten())
    return found.view_as(x)


def _layers(model: nn.Module) -> tuple[str, nn.Module, str]:
    """The names of the linear layers and the activation between."""
    children = list(model.named_children()) if isinstance(model, nn.Sequential) else []
    linear = [i for i, (_, layer) in enumerate(children) if isinstance(layer, nn.Linear)]
    between = children[linear[0] + 1 : linear[1]] if len(linear) == 2 else []
    others = [layer for _, layer in children[: linear[0]]] if linear else []
    ends = linear and linear[-1] == len(children) - 1
    if len(between) != 1 or not ends or not all(isinstance(layer, nn.Flatten) for layer in others):
        raise BadInput(
            "Stein reads two fully connected layers with one activation between them, got "
            f"{', '.join(type(layer).__name__ for _, layer in children) or type(model).__name__}: use a model such as "
            "`mlp(shape, outputs, hidden=(5000,))`, or GradientMatching for this one"
        )
    return children[linear[0]][0], between[0][1], children[linear[1]][0]


def _check(release: KnowsGradient, first: str, last: str) -> None:
    shapes = {name: tuple(p.shape) for name, p in release.model.named_parameters()}
    for what, params in (("at", release.at), ("gradient", release.gradient)):
        got = {name: tuple(p.shape) for name, p in params.items()}
        if got != shapes:
            odd = sorted(name for name in shapes.keys() | got.keys() if shapes.get(name) != got.get(name))
            raise BadInput(f"`{what}` must hold the parameters of the model, it differs at {', '.join(odd)}")
        if not all(bool(p.isfinite().all()) for p in params.values()):
            raise BadInput(f"`{what}` must be finite, got NaN or infinity: ask for the gradient again")
    if not bool(release.gradient[f"{first}.weight"].any()) or not bool(release.at[f"{last}.weight"].any()):
        raise BadInput("the gradient of the first layer is zero: it tells nothing of the batch")
