"""The gradient of the layer that records enter, row by row: quotients, and the errors that test them.

A row of the gradient of the weights over that of the bias is a record, where the neuron is on for one record alone; the
weights give the error d_j(x) of a record x alone at neuron j for each class, and the gradient of the bias must be that
number (`first_layer`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap
from torch.nn.functional import one_hot

from remanence.attacks.gradients.entry import check_gradient, check_labels, entry_layer
from remanence.bounds import clamp, within
from remanence.errors import NotEnoughKnowledge
from remanence.models import apply
from remanence.models.normalisation import InputNormalisation
from remanence.releases import KnowsGradient
from remanence.training import count_classes
from remanence.types import Params

_ROUNDING = 100  # units in the last place: the error of a gradient relative to the terms that it is a sum of
_CLEAR = 1e-3  # a row whose relative rounding error is smaller can be tested
_OUTSIDE = 0.01  # of the box of the records, by rounding
_SAME = 1e-2  # relative distance of two estimates of one record
_OVERSAMPLED = 8  # dimensions beyond one for each record, to estimate the noise
_MAX_ROWS, _CHUNK = 2048, 128  # tested, the clearest first; at once
_FEW_CLASSES = 10  # of more, fewer records at once


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """A record that was found, with the errors by which its gradient is subtracted."""

    x: Tensor  # as the layer takes it in: flat, and normalised where the network normalises records
    label: Tensor
    errors: Tensor  # (neurons,)

    def looks_like(self, x: Tensor) -> bool:
        return bool(alike(torch.stack([self.x, x]))[0, 1])


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class InputLayer:
    """The layer that the records enter, flat and maybe normalised, and the errors that one would have at its neurons;
    in float64."""

    release: KnowsGradient
    name: str
    normalisation: InputNormalisation
    at: Params
    batch_size: int
    classes: Tensor
    precision: float  # relative rounding error of the values that were sent

    @classmethod
    def from_release(cls, release: KnowsGradient) -> "InputLayer":
        first, normalisation = entry_layer(release, by="FirstLayer")
        name = first.path
        if release.batch_size is None:
            message = "FirstLayer needs `batch_size`, by which the loss of a record is divided: give it"
            raise NotEnoughKnowledge(message, code="not-enough-knowledge", argument="batch_size")
        bias = release.gradient[f"{name}.bias"]
        check_gradient(release, [f"{name}.bias"])
        outputs = apply(release.model, release.at, release.at[f"{name}.bias"].new_zeros(1, *release.shape)).shape[-1]
        check_labels(release, release.batch_size)
        classes = torch.arange(count_classes(release.loss, outputs), device=bias.device)
        return cls(
            release=release,
            name=name,
            normalisation=normalisation,
            at={name: p.detach().double() for name, p in release.at.items()},
            batch_size=release.batch_size,
            classes=classes if release.labels is None else release.labels.unique(),
            precision=torch.finfo(bias.dtype).eps,
        )

    def records(self, x: Tensor) -> Tensor:
        """The records (n, *shape) that enter the layer as `x` (n, features)."""
        return self.normalisation.records(self.at, x)

    def clamped(self, x: Tensor) -> Tensor:
        """What enters the layer for the record in the box that is nearest to the one of `x` (features,)."""
        return self.normalisation.inputs(self.at, clamp(self.records(x[None]), self.release.bounds))[0]

    def error(self, record: Tensor, label: Tensor) -> Tensor:
        """(neurons,): the backpropagated error of one record."""
        error: Tensor = grad(lambda bias: self._losses(record, bias, label[None])[0])(self.at[f"{self.name}.bias"])
        return error

    def errors(self, records: Tensor) -> Tensor:
        """(n, classes, neurons): the errors of records for every possible class."""
        by_class = vmap(self.error, in_dims=(None, 0))
        chunk = max(1, _CHUNK * _FEW_CLASSES // len(self.classes))
        errors: Tensor = vmap(by_class, in_dims=(0, None), chunk_size=chunk)(records, self.classes)
        return errors

    def errors_at(self, record: Tensor, neuron: Tensor) -> Tensor:
        """(classes,): the errors of the record at one neuron, given as a one-hot vector, for every possible class, by
        one pass for all of them: the jvp of their losses, as the gradient of the vjp with respect to its vector."""
        losses, bias = partial(self._losses, record, labels=self.classes), self.at[f"{self.name}.bias"]
        errors: Tensor = grad(lambda vector: vjp(losses, bias)[1](vector)[0] @ neuron)(losses(bias))
        return errors

    def _losses(self, record: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        """(labels,): the fraction of the batch's loss that a record with each of these labels has."""
        output = apply(self.release.model, self.at | {f"{self.name}.bias": bias}, self.records(record[None]))
        losses: Tensor = vmap(lambda label: self.release.loss(output, label[None]))(labels)
        return losses / self.batch_size


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class LayerGradient:
    """The gradient of the layer, or its residual after records were subtracted."""

    sent: Tensor  # as it was sent, for its dtype and device
    weight: Tensor  # (neurons, features)
    bias: Tensor  # (neurons,)
    scale: Tensor  # (neurons,), of the terms that `bias` is a sum of

    @classmethod
    def from_release(cls, release: KnowsGradient, layer: InputLayer) -> "LayerGradient":
        sent, bias = (release.gradient[f"{layer.name}.{kind}"].detach() for kind in ("weight", "bias"))
        return cls(sent=sent, weight=sent.double(), bias=bias.double(), scale=bias.double().abs())

    @property
    def gradient(self) -> Tensor:
        """(neurons, features + 1)."""
        return torch.cat([self.weight, self.bias[:, None]], 1)

    @property
    def norm(self) -> float:
        return float((self.weight.square().sum() + self.bias.square().sum()).sqrt())

    def noise(self, records: int, *, seed: int) -> float:
        """What is left of the gradient outside a random subspace of its columns, of few more dimensions than records;
        relative to its norm."""
        generator = torch.Generator().manual_seed(seed)
        directions = torch.randn(self.weight.shape[1], records + _OVERSAMPLED, generator=generator).to(self.weight)
        basis = torch.linalg.qr(self.weight @ directions)[0]
        return float((self.weight - basis @ (basis.T @ self.weight)).norm() / self.weight.norm())

    def without(self, records: Sequence[Record]) -> "LayerGradient":
        """The residual after subtracting the gradients of these records."""
        if not records:
            return self
        x, errors = torch.stack([each.x for each in records]), torch.stack([each.errors for each in records])
        return replace(
            self,
            weight=self.weight - errors.T @ x,
            bias=self.bias - errors.sum(0),
            scale=self.scale + errors.abs().sum(0),
        )

    def record(self, rows: Tensor, layer: InputLayer) -> Record:
        """The record, with its class, that explains these rows best."""
        bias = self.bias[rows]
        x = (bias @ self.weight[rows]) / bias.square().sum()
        errors = layer.errors(x[None])[0]
        best = (errors[:, rows] - bias).norm(dim=1).argmin()
        return Record(x=x, label=layer.classes[best], errors=errors[best])


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Quotients:
    """The quotients of the rows that can be tested; those in the box of the records, if there are any."""

    rows: Tensor
    x: Tensor  # (rows, features)
    labels: Tensor  # (rows,), the classes that fit best
    misfit: Tensor  # (rows,), relative difference of the bias's gradient and the record's error
    alone: Tensor  # (rows,), whether that may be rounding, and the quotient lies in the box

    @classmethod
    def from_rows(cls, layer: InputLayer, residual: LayerGradient) -> "Quotients":
        rounding = _ROUNDING * layer.precision * residual.scale / residual.bias.abs()
        rows = rounding.argsort()[: int((rounding < _CLEAR).sum())]
        x = residual.weight[rows] / residual.bias[rows, None]
        inside = within(layer.records(x).flatten(1), layer.release.bounds, tolerance=_OUTSIDE).all(1)
        selected = (inside if bool(inside.any()) else ~inside).nonzero().flatten()[:_MAX_ROWS]
        rows, x, inside = rows[selected], x[selected], inside[selected]
        neurons = one_hot(rows, len(residual.bias)).to(x)
        errors = vmap(layer.errors_at, chunk_size=_CHUNK)(x, neurons) if len(rows) else x.new_zeros(0, 1)
        misfit, best = (errors / residual.bias[rows, None] - 1).abs().min(1)
        alone = inside & (misfit < rounding[rows])
        return cls(rows=rows, x=x, labels=layer.classes[best], misfit=misfit, alone=alone)


def alike(x: Tensor) -> Tensor:
    """Which of the inputs (n, features) are estimates of one record, shape (n, n); of a blank one also."""
    same: Tensor = torch.cdist(x, x) <= _SAME * x.norm(dim=1)
    return same
