"""The first layer: where one record alone activates a neuron, the record is a quotient of the neuron's gradients.

A linear layer that the records enter has for neuron j the gradients  sum_i d_ij x_i  and  sum_i d_ij  of weights and
bias, d_ij being the backpropagated error of record i at the neuron. For one record the quotient is the record, whatever
the net after it (Phong et al. 2018; Geiping et al. 2020, proposition 3.1). In a batch it is where a ReLU is on for one
record only. Fowl et al., "Robbing the Fed" (ICLR 2022), and Boenisch et al., "When the Curious Abandon Honesty"
(EuroS&P 2023), have servers send weights that make it so; with ordinary ones it holds for some neurons.

Ours: which quotients are records is decided without the truth. The weights give the error d_j(x) of a record x alone at
neuron j for each class, and the gradient of the bias must be that number. The gradient of a record that was found is
subtracted, and neurons that it shared with one other record give the other. Where that ends, the gradient of the
remaining records is factorised into records and errors by the zeros of the errors (`sparse_columns`), from quotients or
else from points near all of them (`row_matching`). Where the layer puts out logits, fewer records than classes follow
from its gradient (`softmax_decoding`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import one_hot

from remanence.attacks.gradients.entry import entry_layer
from remanence.attacks.gradients.labels import infer_labels
from remanence.attacks.gradients.row_matching import RowSpace
from remanence.attacks.gradients.softmax_decoding import decode_inputs
from remanence.attacks.gradients.sparse_columns import ReluLayer, factorise
from remanence.bounds import clamp, sample, width, within
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
_EXPLAINED = 1e-3  # relative difference of the errors that zeros and the weights give
_NOISY, _OVERSAMPLED = 2e-5, 8  # relative noise above which a verified quotient is not exact; to estimate it
_FAR = 0.3  # outside the box of the records: no starting point
_MANY = 64  # records that remain: points are matched before quotients are tried
_LABELLINGS = 2  # matchings whose labels are inferred, from random points and then from those that were matched
_NOISE = 256  # random records with which labels are inferred
_MAX_ROWS, _CHUNK = 2048, 128  # tested, the clearest first; at once


@final
@dataclass(frozen=True, kw_only=True)
class FirstLayer:
    """Exact records by division, without a search; the objective is the relative residual of the layer's gradient after
    the records that are certain."""

    factorising: bool = True  # find the records that no neuron has alone by the zeros of their errors
    guesses: bool = True  # complete the batch with the quotients that come nearest to being records

    def run(self, release: KnowsGradient, *, seed: int) -> Reconstruction:
        require(release, KnowsGradient, by=type(self).__name__)
        layer = _Layer.from_release(release)
        total = residual = _Rows.from_release(release, layer)
        certain = _before_logits(layer, total, seed) if self.factorising else []
        if not certain and self.factorising and total.noise(layer.batch_size) > _NOISY:
            found = _factorised(layer, total, layer.batch_size, seed)  # what is verified by rounding is not exact
            certain = found if len(found) == layer.batch_size else []
        residual = total.without(certain)
        while (remaining := layer.batch_size - len(certain)) > 0:
            found = _certain(layer, residual)
            for matched in (remaining > _MANY, remaining <= _MANY) if self.factorising else ():
                if not found:
                    points = _matched(layer, residual, certain, seed) if matched else None
                    found = _factorised(layer, residual, remaining, seed, points)
            if not found:
                break
            certain += found
            residual = residual.without(found)
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
    errors: Tensor  # (neurons,)

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

    def errors(self, records: Tensor) -> Tensor:
        """(n, classes, neurons): the errors of records for every possible class."""
        by_class = vmap(self.error, in_dims=(None, 0))
        errors: Tensor = vmap(by_class, in_dims=(0, None), chunk_size=_CHUNK)(records, self.classes)
        return errors

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
    def gradient(self) -> Tensor:
        """(neurons, features + 1)."""
        return torch.cat([self.weight, self.bias[:, None]], 1)

    @property
    def norm(self) -> float:
        return float((self.weight.square().sum() + self.bias.square().sum()).sqrt())

    def noise(self, records: int) -> float:
        """What is left of the gradient outside a random subspace of its columns, of few more dimensions than records;
        relative to its norm."""
        generator = torch.Generator().manual_seed(0)
        directions = torch.randn(self.weight.shape[1], records + _OVERSAMPLED, generator=generator).to(self.weight)
        basis = torch.linalg.qr(self.weight @ directions)[0]
        return float((self.weight - basis @ (basis.T @ self.weight)).norm() / self.weight.norm())

    def without(self, records: Sequence[_Record]) -> "_Rows":
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

    def record(self, rows: Tensor, layer: _Layer) -> _Record:
        """The record, with its class, that explains these rows best."""
        bias = self.bias[rows]
        x = (bias @ self.weight[rows]) / bias.square().sum()
        errors = layer.errors(x[None])[0]
        best = (errors[:, rows] - bias).norm(dim=1).argmin()
        return _Record(x=x, label=layer.classes[best], errors=errors[best])


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


def _factorised(
    layer: _Layer, residual: _Rows, remaining: int, seed: int, points: Tensor | None = None
) -> list[_Record]:
    """Those of the `remaining` records that the zeros of their errors give, from `points` or from quotients."""
    relu, gradient = _relu_layer(layer), residual.gradient
    if remaining < 2 or remaining > min(gradient.shape) or relu is None:  # more have no errors of their own in it
        return []
    if points is not None and not len(points):
        return []
    factors = factorise(relu, gradient, records=remaining, seed=seed, points=points)
    if not len(factors.x):
        return []
    x = layer.normalisation.inputs(layer.at, clamp(layer.records(factors.x), layer.release.bounds))
    away, fits = (
        (layer.errors(x) - factors.errors[:, None]).norm(dim=2) / factors.errors.norm(dim=1, keepdim=True)
    ).min(1)
    return [
        _Record(x=x[i], label=layer.classes[fits[i]], errors=factors.errors[i])
        for i in range(len(x))
        if len(x) == remaining or away[i] < _EXPLAINED
    ]


def _matched(layer: _Layer, residual: _Rows, certain: Sequence[_Record], seed: int) -> Tensor:
    """Points near the records without those that are certain, by matching gradients in the row space; none where the
    labels cannot be inferred."""
    release, structure = layer.release, parse(layer.release.model, layer.release.shape)
    count = layer.batch_size - len(certain)
    if not isinstance(structure, MLP) or any(structure.norms) or _relu_layer(layer) is None:
        return residual.weight[:0]
    shown = structure.layers[-1].has_bias and structure.layers[-1].bias in release.gradient
    if release.labels is None and not (shown and isinstance(release.loss, CrossEntropy)):
        return residual.weight[:0]
    if not 2 <= count <= min(residual.gradient.shape):
        return residual.weight[:0]
    generator = torch.Generator().manual_seed(seed)
    noise = sample(_NOISE, *release.shape, bounds=release.bounds, generator=generator).to(residual.weight)
    norm = float((layer.normalisation.inputs(layer.at, noise).square().sum(1) + 1).mean().sqrt())
    space = RowSpace.from_gradient(residual.gradient, records=count, norm=norm)
    following = list(zip(structure.layers[1:], [*structure.activations[1:], nn.Identity()], strict=True))
    at = {name: p.float() for name, p in layer.at.items()}

    def backpropagated(labels: Tensor, activations: Tensor) -> Tensor:
        values = inputs = activations.detach().requires_grad_()
        for linear, activation in following:
            bias = at[linear.bias] if linear.has_bias else None
            values = activation(nn.functional.linear(values, at[linear.weight], bias))
        loss = release.loss(values, labels) * (count / layer.batch_size)
        return torch.autograd.grad(loss, inputs)[0]

    weight, bias = (at[f"{layer.name}.{kind}"] for kind in ("weight", "bias"))
    points, found = space.sample(seed=seed).to(residual.weight), [each.x[None] for each in certain]
    for _ in range(_LABELLINGS if release.labels is None else 1):
        like = clamp(layer.records(torch.cat([points, *found])), release.bounds)
        labels = infer_labels(release, like) if release.labels is None else release.labels
        left = _without(labels, [each.label for each in certain])
        points = space.match(weight, bias, partial(backpropagated, left), seed=seed).to(residual.weight)
        points = points[points.isfinite().all(1)]
    return points


def _without(labels: Tensor, certain: Sequence[Tensor]) -> Tensor:
    """The labels that are left; where inferred ones lack a certain one, without others."""
    remaining = labels.tolist()
    for label in certain:
        remaining.remove(int(label) if int(label) in remaining else remaining[-1])
    return labels.new_tensor(remaining)


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
    x = decode_inputs(residual.gradient, weight, bias, labels, precision=layer.precision, seed=seed)
    if x is None:
        return []
    return [_Record(x=each, label=y, errors=layer.error(each, y)) for each, y in zip(x, labels, strict=True)]


def _relu_layer(layer: _Layer) -> ReluLayer | None:
    """The layer with the next one, where there is one behind a ReLU."""
    structure = parse(layer.release.model, layer.release.shape)
    if not isinstance(structure, MLP) or len(structure.layers) < 2 or structure.norms[0] is not None:
        return None
    if not isinstance(structure.activations[0], nn.ReLU):
        return None

    def near(x: Tensor) -> Tensor:
        records = layer.records(x[x.norm(dim=1).argsort(stable=True)])
        inside = clamp(records, layer.release.bounds)
        away = (records - inside).flatten(1).abs().amax(1)
        nearest = away.argsort(stable=True)[: int((away < _FAR * width(layer.release.bounds)).sum())]
        return layer.normalisation.inputs(layer.at, inside[nearest])

    return ReluLayer(
        weight=layer.at[f"{layer.name}.weight"],
        bias=layer.at[f"{layer.name}.bias"],
        next_weight=layer.at[structure.layers[1].weight],
        near=near,
    )


def _guesses(layer: _Layer, residual: _Rows, certain: Sequence[_Record]) -> list[_Record]:
    """Further records in the order of their misfit; in a batch of one, the record that explains all rows best."""
    if len(certain) >= layer.batch_size:
        return []
    if layer.batch_size == 1:
        return [residual.record(residual.bias.nonzero().flatten(), layer)]
    found, records = _Quotients.from_rows(layer, residual), list[_Record]()
    for i in found.misfit.argsort().tolist():
        guess = _Record(x=layer.clamped(found.x[i]), label=found.labels[i], errors=torch.zeros_like(residual.bias))
        if not any(guess.looks_like(record.x) for record in (*certain, *records)):
            records.append(guess)
    return records
