"""The two layers whose gradient identifies a batch: Gaussian rows, an activation, and a linear head.

In a deeper net they are the last two, and what they identify are the inputs of the first of them; the fully connected
layers before are inverted, one by one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import final

import torch
from torch import Tensor, nn
from torch.func import jacrev, vjp, vmap

from remanence.errors import BadInput
from remanence.models.structure import MLP, parse
from remanence.releases import KnowsGradient
from remanence.types import Params

_OFF, _MAX_OFF = 1e-6, 1e-2  # outputs of a neuron that is off, relative to a record's largest: exact; estimated
_STEPS = 5  # of Gauss-Newton, to invert layers from estimates


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class WideLayer:
    """The two layers and their gradient, in float64.

    Row j of the gradient is  sum_i (head_j . residual_i) s'(w_j . x_i + b_j) x_i.
    """

    rows: Tensor  # (m, d)
    biases: Tensor  # (m,)
    head: Tensor  # (m, outputs)
    grad_rows: Tensor  # (m, d)
    grad_biases: Tensor | None  # (m,)
    grad_head: Tensor  # (m, outputs)
    activation: Callable[[Tensor], Tensor]
    before: tuple["EarlierLayer", ...]  # in their order
    precision: float  # relative rounding error of the values that were sent
    row_std: float  # of the entries of the rows; moments are taken of standardised rows
    noise: float = 0.0  # fraction of the gradient that defenses of the client may have made unexplainable
    to_records: Callable[[Tensor], Tensor] = torch.clone  # from what enters the first layer (n, features) to records

    @classmethod
    def from_release(cls, release: KnowsGradient) -> "WideLayer":
        """The last two layers of a released gradient; networks that have none such are refused."""
        structure = _structure(release)
        *inner, wide, head = structure.layers
        *between, activation = structure.activations
        first, last = wide.path, head.path
        _check(release, first)
        at = {name: p.detach().double() for name, p in release.at.items()}
        sent = {name: p.detach().double() for name, p in release.gradient.items()}
        rows, biased = at[f"{first}.weight"], f"{first}.bias" in at
        return cls(
            rows=rows,
            biases=at[f"{first}.bias"] if biased else rows.new_zeros(len(rows)),
            head=at[f"{last}.weight"].T,
            grad_rows=sent[f"{first}.weight"],
            grad_biases=sent[f"{first}.bias"] if biased else None,
            grad_head=sent[f"{last}.weight"].T,
            activation=activation,
            to_records=partial(structure.records, at),
            before=tuple(EarlierLayer.from_params(at, each.path, s) for each, s in zip(inner, between, strict=True)),
            precision=torch.finfo(release.gradient[f"{first}.weight"].dtype).eps,
            row_std=float(rows.std()),
        )

    @property
    def rounding(self) -> float:
        """The relative residual of a gradient that may be rounding, 4e-10, or 7e-5 in float32, or noise."""
        return max(float(self.precision**0.6), self.noise)

    @property
    def gap(self) -> float:
        """Singular values below that, relative to the largest, are rounding: 2e-12, or 6e-6 in float32."""
        return float(self.precision**0.75)

    @property
    def homogeneous(self) -> bool:
        """Whether the derivative depends on the sign alone, as that of ReLU does."""
        z = torch.linspace(-3, 3, 40, dtype=torch.float64)
        return torch.allclose(self.derivative(z), self.derivative(2 * z), rtol=1e-12, atol=1e-12)

    def inputs(self, records: Tensor) -> Tensor:
        """The inputs of the wide layer for these records, as they enter the first layer."""
        for layer in self.before:
            records = layer.activation(records @ layer.rows.T + layer.biases)
        return records

    def records(self, inputs: Tensor, *, exact: bool) -> Tensor:
        """The records with these inputs of the wide layer, or the nearest ones where the inputs are estimates; as they
        enter the first layer."""
        found = inputs
        for layer in reversed(self.before):
            found = layer.inverted(found, tolerance=max(_OFF, 100 * self.rounding) if exact else inf)
        for _ in range(_STEPS if self.before and not exact else 0):
            found = self._nearer(found, inputs)
        return found

    def _nearer(self, records: Tensor, inputs: Tensor) -> Tensor:
        """A Gauss-Newton step through all layers: inverted one by one, they enlarge a small error of a neuron that is
        nearly off."""
        jacobians = vmap(jacrev(self.inputs))(records)
        residuals = inputs - self.inputs(records)
        proposed = records + _min_norm_solutions(jacobians, residuals)
        nearer = (inputs - self.inputs(proposed)).norm(dim=1) < residuals.norm(dim=1)
        return proposed.where(nearer[:, None], records)

    def derivative(self, x: Tensor) -> Tensor:
        """The derivative s' of the activation, of every element."""
        return _derivative(self.activation)(x)

    def second_derivative(self, x: Tensor) -> Tensor:
        """The second derivative s'' of the activation, of every element."""
        return _derivative(_derivative(self.activation))(x)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class EarlierLayer:
    """A fully connected layer before the wide one."""

    rows: Tensor  # (outputs, inputs)
    biases: Tensor  # (outputs,)
    activation: nn.Module

    @classmethod
    def from_params(cls, at: Params, name: str, activation: nn.Module) -> "EarlierLayer":
        rows = at[f"{name}.weight"]
        return cls(rows=rows, biases=at.get(f"{name}.bias", rows.new_zeros(len(rows))), activation=activation)

    def inverted(self, outputs: Tensor, *, tolerance: float) -> Tensor:
        """The inputs (records, inputs) of the layer with these outputs (records, outputs).

        The informative neurons are those of a ReLU that are on, and all of another activation, weighted by the
        derivative. The input of minimal norm that explains them is taken; it must explain the others too, up to
        `tolerance`.
        """
        informative = torch.ones_like(outputs, dtype=torch.bool)
        if isinstance(self.activation, nn.ReLU):
            informative = outputs > min(tolerance, _MAX_OFF) * outputs.amax(1, keepdim=True)
        values = _inverse(self.activation, outputs)
        weights = _derivative(self.activation)(values).where(informative, 0.0)
        inputs = _min_norm_solutions((w[:, None] * self.rows for w in weights), weights * (values - self.biases))
        errors = (self.activation(inputs @ self.rows.T + self.biases) - outputs).norm(dim=1) / outputs.norm(dim=1)
        if bool((errors > tolerance).any()):
            record, width = int(errors.argmax()), self.rows.shape
            message = (
                f"a layer of {width[0]} neurons before the last two cannot be inverted: record {record} turns "
                f"{int(informative[record].sum())} of them on, and {width[1]} inputs are unknown; use a wider layer"
            )
            raise BadInput(message, code="not-identifiable", argument="release")
        return inputs


def _min_norm_solutions(matrices: Iterable[Tensor], values: Tensor) -> Tensor:
    """The least-squares solution of minimal norm for each record."""
    found = [torch.linalg.pinv(matrix) @ value for matrix, value in zip(matrices, values, strict=True)]
    return torch.stack(found)


def _inverse(activation: nn.Module, y: Tensor) -> Tensor:
    """The inverse of an increasing activation; of a ReLU, where it is on."""
    if isinstance(activation, nn.Tanh):
        return y.clamp(-1 + 1e-15, 1 - 1e-15).atanh()
    if isinstance(activation, nn.Sigmoid):
        return y.logit(eps=1e-15)
    if isinstance(activation, nn.LeakyReLU):
        return torch.where(y < 0, y / activation.negative_slope, y)
    if isinstance(activation, nn.ReLU | nn.Identity):
        return y
    got = type(activation).__name__
    raise BadInput(
        f"Stein inverts ReLU, LeakyReLU, Tanh or Sigmoid before the last two layers, got {got}: use GradientMatching",
        code="unsupported-model",
        argument="release",
    )


def _derivative(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The derivative of a function that acts on each element alone."""

    def derivative(x: Tensor) -> Tensor:
        values, backward = vjp(function, x)[:2]
        found: Tensor = backward(torch.ones_like(values))[0]
        return found

    return derivative


def _structure(release: KnowsGradient) -> MLP:
    """The layers of the network: two or more, on records as they are or normalised."""
    structure = parse(release.model, release.shape)
    if isinstance(structure, MLP) and not any(structure.norms) and len(structure.layers) > 1:
        return structure
    message = (
        f"`model` must be fully connected layers with an activation between each two for Stein, got {structure}: use a "
        "model such as `mlp(shape, outputs, hidden=(5000,))`, or GradientMatching for this one"
    )
    raise BadInput(message, code="unsupported-model", argument="release")


def _check(release: KnowsGradient, first: str) -> None:
    shapes = {name: tuple(p.shape) for name, p in release.model.named_parameters()}
    buffers = {name for name, _ in release.model.named_buffers()}
    for what, params in (("at", release.at), ("gradient", release.gradient)):
        got = {name: tuple(p.shape) for name, p in params.items() if name not in buffers}
        if got != shapes:
            odd = sorted(name for name in shapes.keys() | got.keys() if shapes.get(name) != got.get(name))
            message = f"`{what}` must hold the parameters of the model, it differs at {', '.join(odd)}"
            raise BadInput(message, code="shape-mismatch", argument=what)
        if not all(bool(p.isfinite().all()) for p in params.values()):
            message = f"`{what}` must be finite, got NaN or infinity: request the gradient again"
            raise BadInput(message, code="not-finite", argument=what)
    rows, sent = release.at[f"{first}.weight"], release.gradient[f"{first}.weight"]
    if not bool(sent.any()):
        message = "`gradient` of the rows is zero: it holds nothing of the batch"
        raise BadInput(message, code="empty", argument="gradient")
    if not float(rows.std()) > 0:
        message = "the rows in `at` are all equal, and random ones are needed to separate records"
        raise BadInput(message, code="not-identifiable", argument="at")
