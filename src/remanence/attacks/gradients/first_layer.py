"""The first layer: where one record alone activates a neuron, the record is a quotient of the neuron's gradients.

A linear layer that the records enter has for neuron j the gradients  sum_i d_ij x_i  and  sum_i d_ij  of weights and
bias, d_ij being the backpropagated error of record i at the neuron. For one record the quotient is the record, whatever
the net after it (Phong et al. 2018; Geiping et al. 2020, proposition 3.1). In a batch it is where a ReLU is on for one
record only. Fowl et al., "Robbing the Fed" (ICLR 2022), and Boenisch et al., "When the Curious Abandon Honesty"
(EuroS&P 2023), have servers send weights that make it so; with ordinary ones it holds for some neurons.

Ours: which quotients are records is decided without the truth. The weights give the error d_j(x) of a record x alone at
neuron j for each class, and the gradient of the bias must be that number. The gradient of a record that was found is
subtracted, and neurons that it shared with one other record give the other. Where that ends, the errors of the
remaining records are decoded (`gate_decoding`); once there is one for each, least squares give the records. Where the
layer puts out logits, fewer records than classes follow from its gradient (`softmax_decoding`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import one_hot

from remanence.attacks.gradients.entry import entry_layer
from remanence.attacks.gradients.gate_decoding import ReluLayer, decode
from remanence.attacks.gradients.labels import infer_labels
from remanence.attacks.gradients.softmax_decoding import decode_inputs
from remanence.bounds import clamp, sample, within
from remanence.errors import BadInput, NotEnoughKnowledge
from remanence.models import apply
from remanence.models.normalisation import InputNormalisation
from remanence.models.structure import MLP, parse
from remanence.releases import KnowsGradient, require
from remanence.training import CrossEntropy
from remanence.types import Params, Reconstruction

_ROUNDING = 100  # units in the last place: the error of a gradient relative to the terms that it is a sum of
_CLEAR = 1e-3  # a row whose relative rounding error is smaller can be tested
_OUTSIDE = 0.01  # of the box of the records, by rounding
_SAME = 1e-2  # relative distance of two estimates of one record
_EXPLAINED = 0.02  # relative residual of the layer's gradient after records that were decoded
_SPARE = 16  # active neurons beyond one for each unknown of a decoded record
_REFITS = 3  # of decoded records, by least squares
_FAR = 0.3  # outside the box of the records: no starting point
_NOISE = 256  # random records with which labels are inferred
_MAX_ROWS, _CHUNK = 2048, 128  # tested, the clearest first; at once


@final
@dataclass(frozen=True, kw_only=True)
class FirstLayer:
    """Exact records by division, without a search; the objective is the relative residual of the layer's gradient after
    the records that are certain."""

    decoding: bool = True  # decode the gates of the records that no neuron has alone
    guesses: bool = True  # complete the batch with the quotients that come nearest to being records

    def run(self, release: KnowsGradient, *, seed: int) -> Reconstruction:
        require(release, KnowsGradient, by=type(self).__name__)
        layer = _Layer.from_release(release)
        total = residual = _Rows.from_release(release, layer)
        certain = _before_logits(layer, total, seed) if self.decoding else []
        residual = residual.without(certain, layer) if certain else residual
        while len(certain) < layer.batch_size and (found := _certain(layer, residual)):
            certain += found
            residual = residual.without(found, layer)
        if self.decoding and (decoded := _decoded(layer, residual, layer.batch_size - len(certain), seed)):
            certain += decoded
            residual = residual.without(decoded, layer)
        records = certain + (_guesses(layer, residual, certain) if self.guesses else [])
        if not records:
            raise BadInput(
                "no neuron of the first layer is active on one record alone: use ReLU, a wider layer or fewer records",
                code="not-identifiable",
                argument="release",
            )
        x = clamp(layer.records(torch.stack([each.x for each in records[: layer.batch_size]])), release.bounds)
        labels = torch.stack([record.label for record in records[: layer.batch_size]])
        return Reconstruction(x=x.to(total.sent), y=labels, objective=residual.norm / total.norm)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Record:
    x: Tensor  # as the layer takes it in: flat, and normalised where the network normalises records
    label: Tensor

    def looks_like(self, x: Tensor) -> bool:
        return bool((self.x - x).norm() < _SAME * x.norm())


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Layer:
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
    def from_release(cls, release: KnowsGradient) -> "_Layer":
        first, normalisation = entry_layer(release, by="FirstLayer")
        name = first.path
        if release.batch_size is None:
            message = "FirstLayer needs `batch_size`, by which the loss of a record is divided: give it"
            raise NotEnoughKnowledge(message, code="not-enough-knowledge", argument="batch_size")
        bias = release.gradient[f"{name}.bias"]
        if not bool(bias.isfinite().all()) or not bool(bias.any()):
            raise BadInput(
                f"`gradient` of `{name}.bias` is zero or not finite, and rows are divided by it: request it again",
                code="not-finite" if not bool(bias.isfinite().all()) else "empty",
                argument="gradient",
            )
        values = getattr(release.loss, "values", None)  # of a squared error, whose one output is for several classes
        outputs = apply(release.model, release.at, release.at[f"{name}.bias"].new_zeros(1, *release.shape)).shape[-1]
        classes = torch.arange(len(values) if values else outputs, device=bias.device)
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

        def loss(bias: Tensor) -> Tensor:
            at = self.at | {f"{self.name}.bias": bias}
            output = apply(self.release.model, at, self.records(record[None]))
            return self.release.loss(output, label[None]) / self.batch_size

        error: Tensor = grad(loss)(self.at[f"{self.name}.bias"])
        return error

    def errors_at(self, record: Tensor, neuron: Tensor) -> Tensor:
        """(classes,): the errors of the record at one neuron, given as a one-hot vector, for every possible class."""
        errors: Tensor = vmap(self.error, in_dims=(None, 0))(record, self.classes) @ neuron
        return errors


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """The gradient of the layer, or its residual after records were subtracted."""

    sent: Tensor  # as it was sent, for its dtype and device
    weight: Tensor  # (neurons, features)
    bias: Tensor  # (neurons,)
    scale: Tensor  # (neurons,), of the terms that `bias` is a sum of

    @classmethod
    def from_release(cls, release: KnowsGradient, layer: _Layer) -> "_Rows":
        sent, bias = (release.gradient[f"{layer.name}.{kind}"].detach() for kind in ("weight", "bias"))
        return cls(sent=sent, weight=sent.double(), bias=bias.double(), scale=bias.double().abs())

    @property
    def norm(self) -> float:
        return float((self.weight.square().sum() + self.bias.square().sum()).sqrt())

    def without(self, records: Sequence[_Record], layer: _Layer) -> "_Rows":
        """The residual after subtracting the gradients of these records."""
        x, labels = torch.stack([each.x for each in records]), torch.stack([each.label for each in records])
        errors = vmap(layer.error)(x, labels)
        return replace(
            self,
            weight=self.weight - errors.T @ x,
            bias=self.bias - errors.sum(0),
            scale=self.scale + errors.abs().sum(0),
        )

    def record(self, rows: Tensor, layer: _Layer) -> _Record:
        """The record, with its class, that explains these rows best."""
        bias = self.bias[rows]
        x = (bias @ self.weight[rows]) / bias.square().sum()
        errors = vmap(layer.error, in_dims=(None, 0))(x, layer.classes)[:, rows]
        return _Record(x=x, label=layer.classes[(errors - bias).norm(dim=1).argmin()])


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Quotients:
    """The quotients of the rows that can be tested; those in the box of the records, if there are any."""

    rows: Tensor
    x: Tensor  # (rows, features)
    labels: Tensor  # (rows,), the classes that fit best
    misfit: Tensor  # (rows,), relative difference of the bias's gradient and the record's error
    alone: Tensor  # (rows,), whether that may be rounding, and the quotient lies in the box

    @classmethod
    def from_rows(cls, layer: _Layer, residual: _Rows) -> "_Quotients":
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


def _certain(layer: _Layer, residual: _Rows) -> list[_Record]:
    """Records on which two or more neurons agree that they alone activate; where there are none, one of one neuron."""
    found = _Quotients.from_rows(layer, residual)
    alone = found.alone.nonzero().flatten()
    if not len(alone):
        return []
    x = found.x[alone]
    agree = torch.cdist(x, x) < _SAME * x.norm(dim=1)
    votes, records = agree.sum(1), list[_Record]()
    for i in votes.argsort(descending=True).tolist():
        if votes[i] < 2 and records:
            break
        if not any(record.looks_like(x[i]) for record in records):
            records.append(residual.record(found.rows[alone[agree[i]]], layer))
    return records


def _decoded(layer: _Layer, residual: _Rows, remaining: int, seed: int) -> list[_Record]:
    """All `remaining` records, where the errors of each can be decoded and they explain the residual; else none."""
    active = residual.bias.abs() > _ROUNDING * layer.precision * residual.scale
    relu = _relu_layer(layer)
    if remaining < 2 or relu is None or int(active.sum()) < remaining + len(relu.next_weight) + _SPARE:
        return []
    quotients = residual.weight[active] / residual.bias[active, None]
    near = within(layer.records(quotients).flatten(1), layer.release.bounds, tolerance=_FAR).all(1)
    if not bool(near.any()):
        return []
    starts = torch.stack([layer.clamped(x) for x in quotients[near]])
    gradient = torch.cat([residual.weight, residual.bias[:, None]], 1)
    errors = decode(relu, gradient, starts, records=remaining, seed=seed)
    if len(errors) < remaining:
        return []
    scales = torch.linalg.pinv(errors.T) @ residual.bias[:, None]  # lstsq differs from run to run
    errors = scales * errors
    best, lowest = list[_Record](), _EXPLAINED
    for _ in range(_REFITS):
        x = torch.linalg.pinv(errors.T) @ residual.weight
        x = layer.normalisation.inputs(layer.at, clamp(layer.records(x), layer.release.bounds))
        by_class = vmap(vmap(layer.error, in_dims=(None, 0)), in_dims=(0, None), chunk_size=_CHUNK)(x, layer.classes)
        fits = (by_class - errors[:, None]).norm(dim=2).argmin(1)
        records = [_Record(x=each, label=layer.classes[fit]) for each, fit in zip(x, fits, strict=True)]
        if (left := residual.without(records, layer).norm / residual.norm) < lowest:
            best, lowest = records, left
        errors = by_class[torch.arange(len(x)), fits]
    return best


def _before_logits(layer: _Layer, residual: _Rows, seed: int) -> list[_Record]:
    """All records, where the layer puts out logits under cross-entropy and they are fewer than the classes."""
    structure, release = parse(layer.release.model, layer.release.shape), layer.release
    linear = isinstance(structure, MLP) and len(structure.layers) == 1
    if not linear or layer.batch_size == 1 or release.loss != CrossEntropy():
        return []
    labels = release.labels
    if labels is None:
        generator = torch.Generator().manual_seed(seed)
        labels = infer_labels(release, sample(_NOISE, *release.shape, bounds=release.bounds, generator=generator))
    weight, bias = (layer.at[f"{layer.name}.{kind}"] for kind in ("weight", "bias"))
    gradient = torch.cat([residual.weight, residual.bias[:, None]], 1)
    x = decode_inputs(gradient, weight, bias, labels, precision=layer.precision, seed=seed)
    return [] if x is None else [_Record(x=each, label=label) for each, label in zip(x, labels, strict=True)]


def _relu_layer(layer: _Layer) -> ReluLayer | None:
    """The layer with the next one, where there is one behind a ReLU."""
    structure = parse(layer.release.model, layer.release.shape)
    if not isinstance(structure, MLP) or len(structure.layers) < 2 or structure.norms[0] is not None:
        return None
    second = structure.layers[1]
    if not isinstance(structure.activations[0], nn.ReLU) or not second.has_bias:
        return None

    def error(x: Tensor, label: Tensor) -> Tensor:
        def loss(bias: Tensor) -> Tensor:
            output = apply(layer.release.model, layer.at | {second.bias: bias}, layer.records(x[None]))
            return layer.release.loss(output, label[None]) / layer.batch_size

        found: Tensor = grad(loss)(layer.at[second.bias])
        return found

    def errors(x: Tensor) -> Tensor:
        found: Tensor = vmap(vmap(error, in_dims=(None, 0)), in_dims=(0, None), chunk_size=_CHUNK)(x, layer.classes)
        return found

    return ReluLayer(
        weight=layer.at[f"{layer.name}.weight"],
        bias=layer.at[f"{layer.name}.bias"],
        next_weight=layer.at[second.weight],
        next_errors=errors,
    )


def _guesses(layer: _Layer, residual: _Rows, certain: Sequence[_Record]) -> list[_Record]:
    """Further records in the order of their misfit; in a batch of one, the record that explains all rows best."""
    if len(certain) >= layer.batch_size:
        return []
    if layer.batch_size == 1:
        return [residual.record(residual.bias.nonzero().flatten(), layer)]
    found, records = _Quotients.from_rows(layer, residual), list[_Record]()
    for i in found.misfit.argsort().tolist():
        guess = _Record(x=layer.clamped(found.x[i]), label=found.labels[i])
        if not any(guess.looks_like(record.x) for record in (*certain, *records)):
            records.append(guess)
    return records
