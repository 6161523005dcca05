"""The first layer: where one record alone activates a neuron, the record is a quotient of the neuron's gradients.

A linear layer that the records enter has for neuron j the gradients  sum_i d_ij x_i  and  sum_i d_ij  of weights and
bias, d_ij being the backpropagated error of record i at the neuron. For one record the quotient is the record, whatever
the net after it (Phong et al. 2018; Geiping et al. 2020, proposition 3.1). In a batch it is where a ReLU is on for one
record only. Fowl et al., "Robbing the Fed" (ICLR 2022), and Boenisch et al., "When the Curious Abandon Honesty"
(EuroS&P 2023), have servers send weights that make it so; with ordinary ones it holds for some neurons.

Ours: which quotients are records is decided without the truth. The weights give the error d_j(x) of a record x alone at
neuron j for each class, and the gradient of the bias must be that number (`row_quotients`). The gradient of a record
that was found is subtracted, and neurons that it shared with one other record give the other. Where that ends, the
gradient of the remaining records is factorised into records and errors by the zeros of the errors (`sparse_columns`),
from quotients or else from points near all of them (`row_matching`). Where the layer puts out logits, fewer records
than classes follow from its gradient (`softmax_decoding`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks.gradients.labels import infer_labels
from remanence.attacks.gradients.row_matching import RowSpace
from remanence.attacks.gradients.row_quotients import InputLayer, LayerGradient, Quotients, Record, alike
from remanence.attacks.gradients.softmax_decoding import decode_inputs
from remanence.attacks.gradients.sparse_columns import ReluLayer, factorise
from remanence.bounds import clamp, sample, width
from remanence.errors import BadInput
from remanence.models.structure import MLP, parse
from remanence.releases import KnowsGradient, require
from remanence.seeds import derive_seed
from remanence.training import CrossEntropy
from remanence.types import Reconstruction

_EXPLAINED = 1e-3  # relative difference of the errors that zeros and the weights give
_NOISY = 2e-5  # relative noise above which a verified quotient is not exact
_FAR = 0.3  # outside the box of the records: no starting point
_MANY = 64  # records that remain: points are matched before quotients are tried
_LABELLINGS = 2  # matchings whose labels are inferred, from random points and then from those that were matched
_NOISE = 256  # random records with which labels are inferred


@final
@dataclass(frozen=True, kw_only=True)
class FirstLayer:
    """Exact records by division, without a search; the objective is the relative residual of the layer's gradient after
    the records that are certain."""

    factorising: bool = True  # find the records that no neuron has alone by the zeros of their errors
    guesses: bool = True  # complete the batch with the quotients that come nearest to being records

    def run(self, release: KnowsGradient, *, seed: int) -> Reconstruction:
        require(release, KnowsGradient, by=type(self).__name__)
        layer = InputLayer.from_release(release)
        total = LayerGradient.from_release(release, layer)
        certain = _before_logits(layer, total, seed) if self.factorising else []
        if not certain and self.factorising and total.noise(layer.batch_size, seed=derive_seed(seed, "noise")) > _NOISY:
            found = _factorised(layer, total, layer.batch_size, seed)  # what is verified by rounding is not exact
            certain = found if len(found) == layer.batch_size else []
        residual = total.without(certain)
        while len(certain) < layer.batch_size:
            found = _certain(layer, residual)
            if not found and self.factorising:
                found = _factorised_from_anywhere(layer, residual, certain, seed)
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


def _certain(layer: InputLayer, residual: LayerGradient) -> list[Record]:
    """Records on which two or more neurons agree that they alone activate; where there are none, one of one neuron."""
    found = Quotients.from_rows(layer, residual)
    alone = found.alone.nonzero().flatten()
    if not len(alone):
        return []
    x = found.x[alone]
    agree = alike(x)
    votes, records = agree.sum(1), list[Record]()
    for i in votes.argsort(descending=True).tolist():
        if votes[i] < 2 and records:
            break
        if not any(record.looks_like(x[i]) for record in records):
            records.append(residual.record(found.rows[alone[agree[i]]], layer))
    return records


def _factorised_from_anywhere(
    layer: InputLayer, residual: LayerGradient, certain: Sequence[Record], seed: int
) -> list[Record]:
    """Records by the zeros of their errors, from quotients and where these give none from matched points; of many
    records from matched points first, which takes less time."""
    remaining = layer.batch_size - len(certain)
    for matched in (remaining > _MANY, remaining <= _MANY):
        points = _matched(layer, residual, certain, seed) if matched else None
        if found := _factorised(layer, residual, remaining, seed, points):
            return found
    return []


def _factorised(
    layer: InputLayer, residual: LayerGradient, remaining: int, seed: int, points: Tensor | None = None
) -> list[Record]:
    """Those of the `remaining` records that the zeros of their errors give, from `points` or from quotients."""
    relu, gradient = _relu_layer(layer), residual.gradient
    if remaining < 2 or remaining > min(gradient.shape) or relu is None:  # more have no errors of their own in it
        return []
    if points is not None and not len(points):
        return []
    factors = factorise(relu, gradient, records=remaining, seed=derive_seed(seed, "mixtures"), points=points)
    if not len(factors.x):
        return []
    x = layer.normalisation.inputs(layer.at, clamp(layer.records(factors.x), layer.release.bounds))
    away, fits = (
        (layer.errors(x) - factors.errors[:, None]).norm(dim=2) / factors.errors.norm(dim=1, keepdim=True)
    ).min(1)
    return [
        Record(x=x[i], label=layer.classes[fits[i]], errors=factors.errors[i])
        for i in range(len(x))
        if len(x) == remaining or away[i] < _EXPLAINED
    ]


def _matched(layer: InputLayer, residual: LayerGradient, certain: Sequence[Record], seed: int) -> Tensor:
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
    noise = _noise(release, seed).to(residual.weight)
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
    coefficients = derive_seed(seed, "coefficients")
    points, found = space.sample(seed=coefficients).to(residual.weight), [each.x[None] for each in certain]
    for _ in range(_LABELLINGS if release.labels is None else 1):
        like = clamp(layer.records(torch.cat([points, *found])), release.bounds)
        labels = infer_labels(release, like) if release.labels is None else release.labels
        errors = partial(backpropagated, _without(labels, [each.label for each in certain]))
        points = space.match(weight, bias, errors, seed=coefficients).to(residual.weight)
        points = points[points.isfinite().all(1)]
    return points


def _without(labels: Tensor, certain: Sequence[Tensor]) -> Tensor:
    """The remaining labels; where inferred ones lack a certain one, without others."""
    remaining = labels.tolist()
    for label in certain:
        remaining.remove(int(label) if int(label) in remaining else remaining[-1])
    return labels.new_tensor(remaining)


def _before_logits(layer: InputLayer, residual: LayerGradient, seed: int) -> list[Record]:
    """All records, where the layer puts out logits under cross-entropy and they are fewer than the classes."""
    structure, release = parse(layer.release.model, layer.release.shape), layer.release
    linear = isinstance(structure, MLP) and len(structure.layers) == 1
    if not linear or layer.batch_size == 1 or release.loss != CrossEntropy():
        return []
    labels = release.labels
    if labels is None:
        labels = infer_labels(release, _noise(release, seed))
    weight, bias = (layer.at[f"{layer.name}.{kind}"] for kind in ("weight", "bias"))
    x = decode_inputs(residual.gradient, weight, bias, labels, precision=layer.precision, seed=seed)
    if x is None:
        return []
    return [Record(x=each, label=y, errors=layer.error(each, y)) for each, y in zip(x, labels, strict=True)]


def _noise(release: KnowsGradient, seed: int) -> Tensor:
    """Random records, with which labels are inferred where no others are known."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "records"))
    return sample(_NOISE, *release.shape, bounds=release.bounds, generator=generator)


def _relu_layer(layer: InputLayer) -> ReluLayer | None:
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


def _guesses(layer: InputLayer, residual: LayerGradient, certain: Sequence[Record]) -> list[Record]:
    """Further records in the order of their misfit; in a batch of one, the record that explains all rows best."""
    if len(certain) >= layer.batch_size:
        return []
    if layer.batch_size == 1:
        return [residual.record(residual.bias.nonzero().flatten(), layer)]
    found, records = Quotients.from_rows(layer, residual), list[Record]()
    for i in found.misfit.argsort().tolist():
        guess = Record(x=layer.clamped(found.x[i]), label=found.labels[i], errors=torch.zeros_like(residual.bias))
        if not any(guess.looks_like(record.x) for record in (*certain, *records)):
            records.append(guess)
    return records
