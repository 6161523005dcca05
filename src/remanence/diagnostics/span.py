"""The span of the training records, by one SVD of the first layer: how many there were, and whether others lie in it.

Each step of gradient descent moves row j of the first layer, bias included, along  sum_i d_ij [x_i, 1],  where d_ij is
the backpropagated error of record i at neuron j. So trained weights are a remainder of the initial ones plus a
combination of the records. Weight decay leaves (1 - lr wd)^steps of the initial weights; once that has vanished the
layer has the rank of the training set and its rows span the records. The stationarity condition of Buzaglo, Haim et
al., "Deconstructing Data Reconstruction" (NeurIPS 2023), says the same of converged training. Ours: it need not have
converged, mini-batches and momentum are allowed, and where the initial weights are known their remainder is subtracted.
Adam and its relatives scale each coordinate of a step differently, so that a step leaves the span.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import final

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.models.normalisation import InputNormalisation
from remanence.models.operations import Conv, describe
from remanence.models.structure import Unsupported, first_linear
from remanence.releases import KnowsFinal, KnowsInitial, KnowsTraining, require
from remanence.training import SGD, remaining_fraction
from remanence.types import Params

CLEAR = 20.0  # random and half-trained layers show gaps of up to 7 beyond those of the classes (docs/evidence.md)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """The singular value decomposition of a first layer, and the rank that its largest gap shows."""

    values: Tensor  # singular values in descending order, clamped to the rounding of the weights
    directions: Tensor  # (values, columns): right singular vectors; the last column is the bias's, if there is one
    rank: int | None  # independent records, at most as many as were trained on; None where no gap is clear
    gap: float  # the last value within the span over the first one outside; 1 where there can be no gap
    shape: tuple[int, ...]
    inputs: Callable[[Tensor], Tensor] = torch.clone  # from records (n, *shape) to what enters the layer

    @property
    def basis(self) -> Tensor:
        """(rank, columns): an orthonormal basis of the records, each extended by a one where there is a bias."""
        if self.rank is None:
            message = (
                f"the first layer shows no span: beyond those of the classes no singular value is {CLEAR:g} times the "
                f"next, {self.gap:.3g} times at most. There were as many records as features or rows, or as few as "
                "classes, or the initial weights have not decayed: show the initial weights, or give the `rank`"
            )
            raise BadInput(message, code="no-gap", argument="rank")
        return self.directions[: self.rank]

    def outside(self, records: Tensor) -> Tensor:
        """(records,): the fraction of each record's squared norm outside the span; zero, but for rounding, if it was
        trained on."""
        if tuple(records.shape[1:]) != self.shape:
            message = f"`records` must be of the shape {self.shape}, got {tuple(records.shape[1:])}: resize them to it"
            raise BadInput(message, code="shape-mismatch", argument="records")
        basis, x = self.basis, self.inputs(records).flatten(1).to(self.directions)
        if basis.shape[1] > x.shape[1]:
            x = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
        residual = x - x @ basis.T @ basis
        return residual.square().sum(1) / x.square().sum(1).clamp_min(torch.finfo(x.dtype).tiny)


def estimate_span(release: KnowsFinal, *, rank: int | None = None) -> Span:
    """The span by the largest gap between the singular values of the first layer, or by a `rank` that is known.

    Classes make a gap of their own, so only gaps after as many values count. A record that moved the layer less than
    the remainder of the initial weights does not show. Where the release holds the initial weights and the training
    was SGD, or is not known, that remainder is subtracted first.
    """
    require(release, KnowsFinal, by="estimate_span")
    name, normalisation = _first_layer(release)
    layer = _with_bias(release.final, name)
    precision = torch.finfo(layer.dtype).eps
    layer = layer.double() - _remainder(release, name)
    if not bool(layer.isfinite().all()) or not bool(layer.any()):
        message = f"the weights of `{name}` are zero, unchanged or not finite: there is no span to estimate"
        raise BadInput(message, code="not-finite" if not bool(layer.isfinite().all()) else "empty", argument="release")
    _, values, directions = torch.linalg.svd(layer, full_matrices=False)
    values = values.clamp_min(precision * values[0])
    max_rank = len(values) - 1
    if rank is not None and not 1 <= rank <= max_rank:
        message = f"`rank` must lie in 1..{max_rank}, below the full rank of the layer, got {rank}: use another"
        raise BadInput(message, code="out-of-range", argument="rank")
    position = rank or _largest_gap(values, after=release.num_classes)
    within, outside = (float(values[i]) for i in (position - 1, position)) if position else (1.0, 1.0)
    gap = within / outside
    active = _active_features(_of_records(layer, release, normalisation), (within * outside) ** 0.5)
    if gap >= CLEAR and position < active:
        rank = rank or position
    return Span(
        values=values,
        directions=directions,
        rank=rank,
        gap=gap,
        shape=tuple(release.shape),
        inputs=partial(normalisation.inputs, release.final),
    )


def _first_layer(release: KnowsFinal) -> tuple[str, InputNormalisation]:
    """The path of the linear layer that the records enter as they are or normalised, and how they enter it."""
    first = first_linear(release.model, release.shape)
    if not isinstance(first, Unsupported) and (normalisation := first.normalisation) is not None:
        return first.layer.path, normalisation
    why = first.reason if isinstance(first, Unsupported) else f"the net begins with {describe(first.before)}"
    if not isinstance(first, Unsupported) and any(isinstance(each, Conv) for each in first.before):
        why += "; the patches of a few images already span all inputs of a convolution"
    message = f"estimate_span needs a linear layer that the {prod(release.shape)} values of a record enter: {why}"
    raise BadInput(message, code="unsupported-model", argument="release")


def _with_bias(params: Params, name: str) -> Tensor:
    weight, bias = params[f"{name}.weight"].detach(), params.get(f"{name}.bias")
    return weight if bias is None else torch.cat([weight, bias.detach()[:, None]], dim=1)


def _of_records(layer: Tensor, release: KnowsFinal, normalisation: InputNormalisation) -> Tensor:
    """The layer as a sum of the records before they were normalised, where a bias says what of the mean is in it."""
    features = prod(release.shape)
    if layer.shape[1] == features:
        return layer
    params = {name: p.double() for name, p in release.final.items() if p.is_floating_point()}
    scaled = normalisation.to_records(params, layer[:, :features]).flatten(1)
    mean = normalisation.records(params, layer.new_zeros(1, features)).flatten()
    return torch.cat([scaled + torch.outer(layer[:, -1], mean), layer[:, -1:]], dim=1)


def _remainder(release: KnowsFinal, name: str) -> Tensor | float:
    """The remainder of the initial weights in the layer; 0 where they, or the number of steps, are not known."""
    if not isinstance(release, KnowsInitial):
        return 0.0
    if not isinstance(release, KnowsTraining):  # nothing says that any of them decayed
        return _with_bias(release.initial, name).double()
    training = release.training
    if not isinstance(training.optimizer, SGD):
        return 0.0
    if training.weight_decay and (training.batch_size is not None or not isinstance(training.lr_schedule, tuple)):
        return 0.0
    fraction = remaining_fraction(training, training.epochs) if training.weight_decay else 1.0
    remainder = fraction * _with_bias(release.initial, name).double()
    if not training.decay_biases and f"{name}.bias" in release.initial:
        remainder[:, -1] = release.initial[f"{name}.bias"]
    return remainder


def _largest_gap(values: Tensor, *, after: int) -> int:
    """The number of values before the largest gap, or zero where there can be none. The last value of a square matrix
    may be anything, so two must follow."""
    ratios = (values[:-2] / values[1:-1])[after:]
    return after + 1 + int(ratios.argmax()) if len(ratios) else 0


def _active_features(layer: Tensor, level: float) -> int:
    """How many features have columns with a norm above a level within the gap: a pixel that is always black has not."""
    return int((layer.norm(dim=0) > level).sum())
