"""What one SVD of the first layer tells: how many records were trained on, their span, and whether others lie in it.

Each step of gradient descent moves row j of the first layer, bias included, along  sum_i d_ij [x_i, 1],  d_ij being
what the loss of record i owes to neuron j. So trained weights are what is left of the first ones and a combination of
the records. Weight decay leaves (1 - lr wd)^steps of the first ones; once they have died the layer has the rank of the
training set and its rows span the records. The stationarity condition of Buzaglo, Haim et al., "Deconstructing Data
Reconstruction" (NeurIPS 2023), says the same of where training ends. Ours: it need not have ended, mini-batches and
momentum may be used, and where the first weights are known what is left of them is subtracted. Adam and its kin scale
every number of a step by itself, so that a step leaves the span.
"""

from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor, nn

from remanence.errors import BadInput
from remanence.releases import KnowsFinal, KnowsTraining, require
from remanence.training import SGD, remaining_fraction
from remanence.types import Params

CLEAR = 20.0  # random and half-trained layers show gaps of up to 7 beyond those of the classes (docs/evidence.md)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """`rank` is None where no gap between the singular values is clear: then nothing can be said."""

    values: Tensor  # the singular values of the first layer, falling; none below the rounding of the weights
    directions: Tensor  # (values, columns), one right singular vector for each; the last column is the bias's
    rank: int | None  # how many independent records can be seen: no more than were trained on
    gap: float  # the last value within the span over the first one outside; one where there is no place for a gap
    shape: tuple[int, ...]

    @property
    def basis(self) -> Tensor:
        """(rank, columns), orthonormal: the span of the records, each with a one behind it where there is a bias."""
        if self.rank is None:
            raise BadInput(
                f"the first layer shows no span: beyond those of the classes no singular value is {CLEAR:g} times the "
                f"next, {self.gap:.3g} times at most. There were as many records as features or rows, or as few as "
                "classes, or the first weights have not died out: show the first weights, or say the `rank`"
            )
        return self.directions[: self.rank]

    def outside(self, records: Tensor) -> Tensor:
        """The share of each record's energy that lies outside the span: nothing, but for rounding, if it was trained
        on. Records must be as the network saw them, centred if they were."""
        if tuple(records.shape[1:]) != self.shape:
            raise BadInput(f"`records` must be of the shape {self.shape}, got {tuple(records.shape[1:])}")
        basis, x = self.basis, records.flatten(1).to(self.directions)
        if basis.shape[1] > x.shape[1]:
            x = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
        left = x - x @ basis.T @ basis
        return left.square().sum(1) / x.square().sum(1).clamp_min(torch.finfo(x.dtype).tiny)


def estimate_span(release: KnowsFinal, *, rank: int | None = None) -> Span:
    """The span by the largest gap between the singular values of the first layer, or by a `rank` that is known.

    Classes make a gap of their own, so only those behind as many values are looked at. A record that moved the layer
    less than what is left of the first weights is not seen. Where the release shows the first weights, and SGD took
    them from there, what is left of them is subtracted first.
    """
    require(release, KnowsFinal, by="estimate_span")
    name = _first_layer(release)
    layer = _with_bias(release.final, name)
    precision = torch.finfo(layer.dtype).eps
    layer = layer.double() - _left_of_start(release, name)
    if not bool(layer.isfinite().all()) or not bool(layer.any()):
        raise BadInput(f"the weights of `{name}` are zero, never moved or not finite: there is no span to read")
    _, values, directions = torch.linalg.svd(layer, full_matrices=False)
    values = values.clamp_min(precision * values[0])
    most = len(values) - 1
    if rank is not None and not 1 <= rank <= most:
        raise BadInput(f"`rank` must lie in 1..{most}, below that of any matrix of this size, got {rank}")
    place = rank or _largest_gap(values, beyond=release.num_classes)
    within, outside = (float(values[i]) for i in (place - 1, place)) if place else (1.0, 1.0)
    gap = within / outside
    if gap >= CLEAR and place < _took_part(layer, (within * outside) ** 0.5):
        rank = rank or place
    return Span(values=values, directions=directions, rank=rank, gap=gap, shape=tuple(release.shape))


def _first_layer(release: KnowsFinal) -> str:
    layers = [(name, layer) for name, layer in release.model.named_modules() if not list(layer.children())]
    name, first = next((each for each in layers if not isinstance(each[1], nn.Flatten)), ("", nn.Identity()))
    if isinstance(first, nn.Linear) and first.in_features == prod(release.shape):
        return name
    why = ": the patches of a few images already span all that its filters see" if isinstance(first, nn.Conv2d) else ""
    raise BadInput(
        f"estimate_span needs a linear layer that the {prod(release.shape)} numbers of a record enter, got {first}{why}"
    )


def _with_bias(params: Params, name: str) -> Tensor:
    weight, bias = params[f"{name}.weight"].detach(), params.get(f"{name}.bias")
    return weight if bias is None else torch.cat([weight, bias.detach()[:, None]], dim=1)


def _left_of_start(release: KnowsFinal, name: str) -> Tensor | float:
    """Nothing that is known where no start is shown, or where it is not known how many steps were taken."""
    if not isinstance(release, KnowsTraining) or not isinstance(release.training.optimizer, SGD):
        return 0.0
    training = release.training
    if training.weight_decay and (training.batch_size is not None or not isinstance(training.lr_schedule, tuple)):
        return 0.0
    left = remaining_fraction(training, training.epochs) if training.weight_decay else 1.0
    return left * _with_bias(release.initial, name).double()


def _largest_gap(values: Tensor, *, beyond: int) -> int:
    """The number of values before it, or zero where there is no place for one. The last value of a square matrix may be
    anything, so two must lie behind."""
    ratios = (values[:-2] / values[1:-1])[beyond:]
    return beyond + 1 + int(ratios.argmax()) if len(ratios) else 0


def _took_part(layer: Tensor, level: float) -> int:
    """The features whose columns rise above a level within the gap: a pixel that is always black does not."""
    return int((layer.norm(dim=0) > level).sum())
