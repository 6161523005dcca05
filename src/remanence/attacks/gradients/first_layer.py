"""The first layer: the gradients of a neuron that saw one record alone have the record as their quotient.

A linear layer that the records enter has for neuron j the gradients  sum_i d_ij x_i  and  sum_i d_ij  of weights and
bias, d_ij being what the loss of record i owes to the neuron. For one record the quotient is the record, whatever the
net behind (Phong et al. 2018; Geiping et al. 2020, proposition 3.1). In a batch it is where a ReLU is on for one record
only. Fowl et al., "Robbing the Fed" (ICLR 2022), and Boenisch et al., "When the Curious Abandon Honesty" (EuroS&P
2023), have servers send weights that make it so; with ordinary ones, too, some neurons are.

Ours: which quotients are records shows without the truth. A record x alone at neuron j owes it d_j(x), which the
weights give for each class; the gradient of the bias must be that number. A record that was found is taken out of the
gradient, and neurons that it shared with one other tell the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import final

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import one_hot

from remanence.errors import BadInput, NotEnoughKnowledge
from remanence.models import apply
from remanence.releases import KnowsGradient, require
from remanence.types import Params, Reconstruction

_ROUNDING = 100  # in units of the last digit: what sent numbers may be off by, beside what they are sums of
_CLEAR = 1e-3  # a row whose rounding is a smaller share of it can be judged
_OUTSIDE = 0.01  # of the box [0, 1], by rounding
_SAME = 1e-2  # of their norm: two readings of one record
_ROWS, _AT_ONCE = 2048, 128  # looked at, the clearest first


@final
@dataclass(frozen=True, kw_only=True)
class FirstLayer:
    """Nothing is searched or drawn. The objective is the share of the layer's gradient that the sure records leave."""

    guesses: bool = True  # fill the places left with the quotients that come nearest to being records

    def run(self, release: KnowsGradient, *, seed: int) -> Reconstruction:
        require(release, KnowsGradient, by=type(self).__name__)
        layer = _Layer.of(release)
        whole = left = _Rows.of(release, layer)
        sure: list[_Record] = []
        while len(sure) < layer.batch_size and (found := _sure(layer, left)):
            sure += found
            left = left.without(found, layer)
        records = sure + (_guessed(layer, left, sure) if self.guesses else [])
        if not records:
            raise BadInput("no neuron of the first layer saw a record alone: use ReLU, a wider layer or fewer records")
        x = torch.stack([record.x for record in records[: layer.batch_size]]).clamp(0, 1).view(-1, *release.shape)
        labels = torch.stack([record.label for record in records[: layer.batch_size]])
        return Reconstruction(x=x.to(whole.sent), y=labels, objective=left.norm / whole.norm)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Record:
    x: Tensor  # flat
    label: Tensor

    def looks_like(self, x: Tensor) -> bool:
        return bool((self.x - x).norm() < _SAME * x.norm())


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Layer:
    """What the weights tell of a record; in float64."""

    release: KnowsGradient
    name: str
    at: Params
    batch_size: int
    classes: Tensor
    precision: float  # of the numbers sent

    @classmethod
    def of(cls, release: KnowsGradient) -> "_Layer":
        name, last = _names(release)
        if release.batch_size is None:
            raise NotEnoughKnowledge("FirstLayer needs `batch_size`: a record's share of the gradient is one over it")
        bias = release.gradient[f"{name}.bias"]
        if not bool(bias.isfinite().all()) or not bool(bias.any()):
            raise BadInput(f"the gradient of `{name}.bias` is zero or not finite, and rows are to be divided by it")
        values = getattr(release.loss, "values", None)  # of a squared error, whose one output is for several classes
        classes = torch.arange(len(values) if values else last.out_features, device=bias.device)
        return cls(
            release=release,
            name=name,
            at={name: p.detach().double() for name, p in release.at.items()},
            batch_size=release.batch_size,
            classes=classes if release.labels is None else release.labels.unique(),
            precision=torch.finfo(bias.dtype).eps,
        )

    def owed(self, record: Tensor, label: Tensor) -> Tensor:
        """By the loss of the record to every neuron."""

        def loss(bias: Tensor) -> Tensor:
            at = self.at | {f"{self.name}.bias": bias}
            output = apply(self.release.model, at, record.view(1, *self.release.shape))
            return self.release.loss(output, label[None]) / self.batch_size

        owed: Tensor = grad(loss)(self.at[f"{self.name}.bias"])
        return owed

    def owed_at(self, record: Tensor, neuron: Tensor) -> Tensor:
        """To the one neuron that is marked, for every class that the record may have."""
        owed: Tensor = vmap(self.owed, in_dims=(None, 0))(record, self.classes) @ neuron
        return owed


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """The gradient of the layer, or what is left of it."""

    sent: Tensor
    weight: Tensor  # (neurons, features)
    bias: Tensor  # (neurons,)
    scale: Tensor  # (neurons,), of the numbers that `bias` is made of

    @classmethod
    def of(cls, release: KnowsGradient, layer: _Layer) -> "_Rows":
        sent, bias = (release.gradient[f"{layer.name}.{kind}"].detach() for kind in ("weight", "bias"))
        return cls(sent=sent, weight=sent.double(), bias=bias.double(), scale=bias.double().abs())

    @property
    def norm(self) -> float:
        return float((self.weight.square().sum() + self.bias.square().sum()).sqrt())

    def without(self, records: Sequence[_Record], layer: _Layer) -> "_Rows":
        x, labels = torch.stack([each.x for each in records]), torch.stack([each.label for each in records])
        owed = vmap(layer.owed)(x, labels)
        return replace(
            self, weight=self.weight - owed.T @ x, bias=self.bias - owed.sum(0), scale=self.scale + owed.abs().sum(0)
        )

    def record(self, rows: Tensor, layer: _Layer) -> _Record:
        """The one that explains these rows best, and the class that does."""
        bias = self.bias[rows]
        x = (bias @ self.weight[rows]) / bias.square().sum()
        owed = vmap(layer.owed, in_dims=(None, 0))(x, layer.classes)[:, rows]
        return _Record(x=x, label=layer.classes[(owed - bias).norm(dim=1).argmin()])


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Quotients:
    """Of the rows that can be judged, those in the box if any are."""

    rows: Tensor
    x: Tensor  # (rows, features)
    labels: Tensor  # (rows,), the classes that fit best
    misfit: Tensor  # (rows,), by which the bias's gradient differs from what the record owes, beside it
    alone: Tensor  # (rows,), whether that may be rounding, in the box

    @classmethod
    def of(cls, layer: _Layer, left: _Rows) -> "_Quotients":
        rounding = _ROUNDING * layer.precision * left.scale / left.bias.abs()
        rows = rounding.argsort()[: int((rounding < _CLEAR).sum())]
        x = left.weight[rows] / left.bias[rows, None]
        inside = ((x > -_OUTSIDE) & (x < 1 + _OUTSIDE)).all(1)
        kept = (inside if bool(inside.any()) else ~inside).nonzero().flatten()[:_ROWS]
        rows, x, inside = rows[kept], x[kept], inside[kept]
        neurons = one_hot(rows, len(left.bias)).to(x)
        owed = vmap(layer.owed_at, chunk_size=_AT_ONCE)(x, neurons) if len(rows) else x.new_zeros(0, 1)
        misfit, best = (owed / left.bias[rows, None] - 1).abs().min(1)
        alone = inside & (misfit < rounding[rows])
        return cls(rows=rows, x=x, labels=layer.classes[best], misfit=misfit, alone=alone)


def _sure(layer: _Layer, left: _Rows) -> list[_Record]:
    """Records on which two neurons or more agree that saw them alone; where there are none, one that a neuron saw."""
    found = _Quotients.of(layer, left)
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
            records.append(left.record(found.rows[alone[agree[i]]], layer))
    return records


def _guessed(layer: _Layer, left: _Rows, sure: Sequence[_Record]) -> list[_Record]:
    """For the places left, by the misfit; a record that is alone in its batch is what explains all rows best."""
    if len(sure) >= layer.batch_size:
        return []
    if layer.batch_size == 1:
        return [left.record(left.bias.nonzero().flatten(), layer)]
    found, records = _Quotients.of(layer, left), list[_Record]()
    for i in found.misfit.argsort().tolist():
        own = _Record(x=found.x[i].clamp(0, 1), label=found.labels[i])
        if not any(own.looks_like(record.x) for record in (*sure, *records)):
            records.append(own)
    return records


def _names(release: KnowsGradient) -> tuple[str, nn.Linear]:
    """Of the layer that the records enter; and the last layer."""
    layers = [
        (n, m) for n, m in release.model.named_modules() if not list(m.children()) and not isinstance(m, nn.Flatten)
    ]
    name, first = layers[0]
    if not isinstance(first, nn.Linear) or first.in_features != prod(release.shape):
        raise BadInput(
            f"FirstLayer reads a linear layer that the {prod(release.shape)} numbers of a record enter, got {first}: "
            "use GradientMatching"
        )
    if first.bias is None:
        raise BadInput(f"FirstLayer divides by the gradient of the bias of `{name}`, which has none: use Stein")
    return name, next(m for _, m in reversed(layers) if isinstance(m, nn.Linear))
