"""The two layers that a server reads a batch from: Gaussian rows, an activation, and a linear head.

In a deeper net they are the last two, and what is read are the inputs of the first of them; where fully connected
layers come before, these are inverted, one by one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, prod
from typing import final

import torch
from torch import Tensor, nn
from torch.func import jacrev, vjp, vmap

from remanence.errors import BadInput
from remanence.releases import KnowsGradient
from remanence.types import Params

_ON, _MOST_OFF = 1e-6, 1e-2  # of a record's largest output: what is read of a neuron that is off, and what is left
_STEPS = 5  # to invert layers from estimates


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
    before: tuple["Before", ...]  # in their order
    precision: float  # of the numbers sent
    spread: float  # of the rows' entries, which moments are taken in units of
    noise: float = 0.0  # the share of the gradient that a client's defenses may have left unexplainable

    @classmethod
    def of(cls, release: KnowsGradient) -> "WideLayer":
        before, first, activation, last = _layers(release.model)
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
            before=tuple(Before.of(at, name, s) for name, s in before),
            precision=torch.finfo(release.gradient[f"{first}.weight"].dtype).eps,
            spread=float(rows.std()),
        )

    @property
    def rounding(self) -> float:
        """A share of the gradient left unexplained that may be rounding, 4e-10, and 7e-5 in float32, or noise."""
        return max(float(self.precision**0.6), self.noise)

    @property
    def gap(self) -> float:
        """Singular values below that, beside the largest, are rounding: 2e-12, and 6e-6 in float32."""
        return float(self.precision**0.75)

    @property
    def homogeneous(self) -> bool:
        """Whether the slope depends on the sign alone, as ReLU's does."""
        z = torch.linspace(-3, 3, 40, dtype=torch.float64)
        return torch.allclose(self.slope(z), self.slope(2 * z), rtol=1e-12, atol=1e-12)

    def inputs(self, records: Tensor) -> Tensor:
        """What the wide layer sees of these records."""
        for layer in self.before:
            records = layer.activation(records @ layer.rows.T + layer.offsets)
        return records

    def records(self, inputs: Tensor, *, exact: bool) -> Tensor:
        """What makes these inputs of the wide layer; what comes nearest to it where they are estimates."""
        found = inputs
        for layer in reversed(self.before):
            found = layer.inverted(found, tolerance=max(_ON, 100 * self.rounding) if exact else inf)
        for _ in range(_STEPS if self.before and not exact else 0):
            found = self._nearer(found, inputs)
        return found

    def _nearer(self, records: Tensor, inputs: Tensor) -> Tensor:
        """A step of Gauss and Newton through all layers: inverted one by one, they take a small error of a neuron that
        is nearly off for a large one."""
        slopes = vmap(jacrev(self.inputs))(records)
        left = inputs - self.inputs(records)
        moved = records + _shortest(slopes, left)
        nearer = (inputs - self.inputs(moved)).norm(dim=1) < left.norm(dim=1)
        return moved.where(nearer[:, None], records)

    def slope(self, x: Tensor) -> Tensor:
        """s', of every element."""
        return _derivative(self.activation)(x)

    def curvature(self, x: Tensor) -> Tensor:
        """s''."""
        return _derivative(_derivative(self.activation))(x)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Before:
    """A fully connected layer on the way to the wide one."""

    rows: Tensor
    offsets: Tensor
    activation: nn.Module

    @classmethod
    def of(cls, at: Params, name: str, activation: nn.Module) -> "Before":
        rows = at[f"{name}.weight"]
        return cls(rows=rows, offsets=at.get(f"{name}.bias", rows.new_zeros(len(rows))), activation=activation)

    def inverted(self, outputs: Tensor, *, tolerance: float) -> Tensor:
        """From what the layer puts out for each record to what it took in.

        The neurons that tell are those of a ReLU that are on, all of another activation, each as much as its slope
        says. The shortest input that explains them is taken; it must explain the others too, but for `tolerance`.
        """
        told = torch.ones_like(outputs, dtype=torch.bool)
        if isinstance(self.activation, nn.ReLU):
            told = outputs > min(tolerance, _MOST_OFF) * outputs.amax(1, keepdim=True)
        values = _inverse(self.activation, outputs)
        weights = _derivative(self.activation)(values).where(told, 0.0)
        inputs = _shortest((w[:, None] * self.rows for w in weights), weights * (values - self.offsets))
        left = (self.activation(inputs @ self.rows.T + self.offsets) - outputs).norm(dim=1) / outputs.norm(dim=1)
        if bool((left > tolerance).any()):
            record, width = int(left.argmax()), self.rows.shape
            raise BadInput(
                f"a layer of {width[0]} neurons before the last two cannot be inverted: record {record} turns "
                f"{int(told[record].sum())} of them on, and {width[1]} inputs are to be told; use a wider layer"
            )
        return inputs


def _shortest(matrices: Iterable[Tensor], values: Tensor) -> Tensor:
    """For each record the shortest vector that its matrix takes nearest to its values."""
    found = [torch.linalg.pinv(matrix) @ value for matrix, value in zip(matrices, values, strict=True)]
    return torch.stack(found)


def _inverse(activation: nn.Module, y: Tensor) -> Tensor:
    """Of a rising activation; a ReLU's where it is on."""
    if isinstance(activation, nn.Tanh):
        return y.clamp(-1 + 1e-15, 1 - 1e-15).atanh()
    if isinstance(activation, nn.Sigmoid):
        return y.logit(eps=1e-15)
    if isinstance(activation, nn.LeakyReLU):
        return torch.where(y < 0, y / activation.negative_slope, y)
    if isinstance(activation, nn.ReLU | nn.Identity):
        return y
    got = type(activation).__name__
    raise BadInput(f"Stein inverts layers with ReLU, LeakyReLU, Tanh or Sigmoid before the last two, got {got}")


def _derivative(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Of a function that acts on each number alone."""

    def derivative(x: Tensor) -> Tensor:
        values, pull = vjp(function, x)[:2]
        found: Tensor = pull(torch.ones_like(values))[0]
        return found

    return derivative


def _layers(model: nn.Module) -> tuple[list[tuple[str, nn.Module]], str, nn.Module, str]:
    """The names of fully connected layers with the activation behind each, the last two apart."""
    # not `named_children`, which names an activation that is used twice only once
    children = [(n, c) for n, c in model._modules.items() if c is not None and not isinstance(c, nn.Flatten)]
    pairs = list(zip(children[::2], children[1::2], strict=False))
    plain = all(isinstance(a[1], nn.Linear) and not isinstance(b[1], nn.Linear) for a, b in pairs)
    ends = len(children) % 2 == 1 and len(children) >= 3 and isinstance(children[-1][1], nn.Linear)
    if not isinstance(model, nn.Sequential) or not plain or not ends:
        got = ", ".join(type(layer).__name__ for layer in model.children()) or type(model).__name__
        raise BadInput(
            f"Stein reads fully connected layers with an activation between each two, got {got}: use a model such as "
            "`mlp(shape, outputs, hidden=(5000,))`, or GradientMatching for this one"
        )
    *before, (first, activation) = pairs
    for _, (_, each) in pairs:
        _check_elementwise(each)
    return [(a[0], b[1]) for a, b in before], first[0], activation[1], children[-1][0]


def _check_elementwise(activation: nn.Module) -> None:
    z = torch.tensor([[-0.7, 0.4], [1.3, 0.2]], dtype=torch.float64)
    try:
        alone = torch.stack([activation(value) for value in z.flatten()]).view_as(z)
    except (IndexError, RuntimeError):
        alone = None
    if alone is None or not torch.allclose(alone, activation(z)):
        got = type(activation).__name__
        raise BadInput(f"Stein needs activations that act on each number alone, got {got}: use another attack")


def _check(release: KnowsGradient, first: str, last: str) -> None:
    shapes = {name: tuple(p.shape) for name, p in release.model.named_parameters()}
    for what, params in (("at", release.at), ("gradient", release.gradient)):
        got = {name: tuple(p.shape) for name, p in params.items()}
        if got != shapes:
            odd = sorted(name for name in shapes.keys() | got.keys() if shapes.get(name) != got.get(name))
            raise BadInput(f"`{what}` must hold the parameters of the model, it differs at {', '.join(odd)}")
        if not all(bool(p.isfinite().all()) for p in params.values()):
            raise BadInput(f"`{what}` must be finite, got NaN or infinity: ask for the gradient again")
    rows, sent = release.at[f"{first}.weight"], release.gradient[f"{first}.weight"]
    if not bool(sent.any()):
        raise BadInput("the gradient of the rows is zero: it tells nothing of the batch")
    if not float(rows.std()) > 0:
        raise BadInput("the rows in `at` are all equal, and random ones are needed to tell records apart")
    inputs = next(iter(release.model.parameters())).shape[1]
    if prod(release.shape) != inputs:
        raise BadInput(f"`shape` must hold the {inputs} numbers that the model takes in, got {release.shape}")
