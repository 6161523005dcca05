"""Records in the coordinates of a first layer's rows, which training with weight decay has left a sum of records."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt
from typing import final

import torch
from torch import Tensor

from remanence.attacks.weights.residual import Layer
from remanence.engine.decompositions import singular_values, svd
from remanence.errors import BadInput
from remanence.search import WhitenedLayer, balanced, given

_GAP = 30.0  # ratio of two singular values between which the rank ends
_MIN_DIRECTIONS = 10  # of the first level of a curriculum
_LEFTOVER_BIAS = 4.0  # variances of the initial bias, up to which a bias is taken for one in the span of the weights
_ABOVE = 1.05  # times the largest singular value of noise, which varies
_EXCESS = 3  # candidates for each direction above noise: too many cost time alone, too few cost records
_MIN_RATIO = 1e-4  # of the largest singular value, to which the smallest of a whitened layer are raised


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RowSpace:
    """The rows of the first layer: records are  z @ basis + centre,  and the inputs of `layers` are z.

    With W = U S V' and a whitening of p the basis B is S^p V', the layer is W B', and what the candidates are to
    explain is U S^(1-p).

    Where [W b] = A [X 1] has no more rank than W, as the records were not centred, all of them lie where  x.c = 1  with
    c = W^+ b. The centre m then is the point of this plane that is nearest to `grey`, and W - b m' = A (X - 1 m') holds
    the remaining directions.
    """

    layers: tuple[Layer, ...]
    basis: Tensor
    centre: Tensor | None
    count: int | None  # of records, the rank; None where neither a gap between singular values nor `max_rank` gives it
    beta_scale: float  # one over the typical norm of a row: a surrogate's beta in units of pre-activations

    @classmethod
    def from_layers(
        cls,
        layers: tuple[Layer, ...],
        whitening: float,
        grey: Tensor,
        *,
        max_rank: int | None = None,
        inner: float = 0.0,
    ) -> "RowSpace":
        """`max_rank` is the rank where no gap gives it; `inner` whitens the layers between the first and the last."""
        weight, bias, count, centre = layers[0].weight, layers[0].bias, _count(layers[0]), None
        rank = max_rank if count is None else None
        left, values, right = _truncated_svd(weight, rank)
        noise = leftover_std(weight, singular_values(weight), len(values)) if count is None else 0.0
        if bias is not None and _uncentred(bias, left, values, count, noise):
            level = ((bias @ left) / values) @ right
            inside = grey @ right.T @ right
            centre = inside + (1 - inside @ level) / level.square().sum() * level
            left, values, right = _truncated_svd(weight - torch.outer(bias, centre), len(values) - 1)
        floor = values.clamp_min(edge(weight, noise)) ** whitening
        basis, target = floor[:, None] * right, left * values / floor
        scale = float(target.square().sum())
        first = Layer(
            weight=weight @ basis.T,
            bias=bias if bias is None or centre is None else bias + weight @ centre,
            target=target,
            bias_target=bias,
            activation=layers[0].activation,
            scale=scale,
            bias_scale=scale if bias is None or centre is None else scale * _bias_scale(bias, centre, whitening),
        )
        between = [_whitened(layer, inner, len(values)) if inner else _normalised(layer) for layer in layers[1:-1]]
        return cls(
            layers=(first, *between, *map(_normalised, layers[1:][-1:])),
            basis=basis,
            centre=centre,
            count=count or rank,
            beta_scale=float(values.square().sum() / len(weight)) ** -0.5,
        )

    def records(self, z: Tensor) -> Tensor:
        """The flat records at coordinates z (..., directions)."""
        return z @ self.basis if self.centre is None else z @ self.basis + self.centre

    def to_float32(self) -> "RowSpace":
        layers = tuple(
            replace(
                layer,
                weight=layer.weight.float(),
                bias=None if layer.bias is None else layer.bias.float(),
                target=layer.target.float(),
                bias_target=None if layer.bias_target is None else layer.bias_target.float(),
                whitening=layer.whitening and (layer.whitening[0].float(), layer.whitening[1].float()),
            )
            for layer in self.layers
        )
        centre = None if self.centre is None else self.centre.float()
        return replace(self, layers=layers, basis=self.basis.float(), centre=centre)

    def labels(self, candidates: int | None, labels: tuple[int, ...] | None, num_classes: int) -> Tensor:
        """The labels of as many candidates as are asked for or as the rank says: those given, or as many of each
        class."""
        count = candidates or self.count
        if count is None:
            message = (
                "no direction of the first linear layer stands out of noise, so that nothing gives the number of "
                "records (it was not trained with weight decay): set `candidates`"
            )
            raise BadInput(message, code="not-enough-knowledge", argument="candidates")
        chosen = balanced(count, num_classes) if labels is None else given(labels, count, num_classes)
        return chosen.to(self.basis.device)

    def coordinates(self, noise: Tensor) -> Tensor:
        """Coordinates of the images in the span that are nearest to `noise`, scaled to pixels of mean square one."""
        z = noise @ self.basis.T / self.basis.square().sum(1)  # whose rows are orthogonal
        return z / (z @ self.basis).square().mean(-1, keepdim=True).sqrt()

    @property
    def pixel(self) -> float:
        """The root mean square of the coordinates of images whose pixels have the mean square one."""
        return float((self.basis.square().sum(1).reciprocal().mean() * self.basis.shape[1] / len(self.basis)).sqrt())

    def curriculum(self, levels: int) -> Iterator["RowSpace"]:
        """The leading directions alone, more in each level by equal ratios, and in the last one all."""
        total = len(self.basis)
        fewest = min(_MIN_DIRECTIONS, total)
        for level in range(1, levels):
            yield self._leading(round(fewest * (total / fewest) ** ((level - 1) / (levels - 1))))
        yield self

    def _leading(self, count: int) -> "RowSpace":
        first = self.layers[0]
        target = first.target[:, :count]
        scale = float(target.square().sum())
        truncated = replace(
            first,
            weight=first.weight[:, :count],
            target=target,
            scale=scale,
            bias_scale=first.bias_scale * scale / first.scale,
        )
        return replace(self, layers=(truncated, *self.layers[1:]), basis=self.basis[:count])


def leftover_std(weight: Tensor, values: Tensor, rank: int) -> float:
    """The standard deviation of what is left of the initial weights, of which all have one: by the singular `values`
    beyond the first `rank`, which hold the records."""
    rows, columns = (max(side - rank, 1) for side in weight.shape)
    return sqrt(float(values[rank:].square().sum()) / (rows * columns))


def edge(weight: Tensor, std: float) -> float:
    """The largest singular value of independent noise of this standard deviation, in the shape of `weight`."""
    return std * sum(map(sqrt, weight.shape))


def above_noise(weight: Tensor, values: Tensor, rank: int) -> Tensor:
    """Which singular `values` stand above what is left of the initial weights, by those beyond the first `rank`."""
    return values > _ABOVE * edge(weight, leftover_std(weight, values, rank))


def likely_count(weight: Tensor) -> int | None:
    """A number that is probably not below that of the records: a multiple of the directions above what is left of the
    initial weights, noise whose standard deviation the directions below tell; None where no direction is above."""
    values, above = singular_values(weight), 0
    while (more := int(above_noise(weight, values, above).sum())) > above:
        above = more
    return min(_EXCESS * above, min(weight.shape) // 2) or None


def rank_by_gap(values: Tensor) -> int | None:
    """The index of the largest drop between falling singular values; None where no drop is large."""
    values = values.clamp_min(values[0] * torch.finfo(values.dtype).eps)
    drops = values[:-1] / values[1:]
    return int(drops.argmax()) + 1 if len(drops) and float(drops.max()) > _GAP else None


def _count(first: Layer) -> int | None:
    """The number of records: the rank of the first layer with its bias, where there is one."""
    both = first.weight if first.bias is None else torch.cat([first.weight, first.bias[:, None]], dim=1)
    return rank_by_gap(singular_values(both))


def _uncentred(bias: Tensor, left: Tensor, values: Tensor, count: int | None, noise: float) -> bool:
    """Whether the bias, a sum of the columns of A, lies in the span of  W = A X,  as it does unless the mean of the
    records is zero; by the ranks, or else up to what is left of the initial bias."""
    if not bool(bias.any()) or len(values) < 2:
        return False
    if count is not None:
        return len(values) == count
    inside = bias @ left
    outside = bias - left @ inside
    variance = _LEFTOVER_BIAS * noise**2
    return float(outside.square().sum()) < variance * len(bias) and float(inside.square().sum()) > variance * len(
        inside
    )


def _truncated_svd(weight: Tensor, max_rank: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The SVD up to the rank that a gap gives, or else up to singular values that are mere rounding."""
    left, values, right = svd(weight)
    rank = max_rank or rank_by_gap(values) or int((values > values[0] * torch.finfo(values.dtype).eps).sum())
    return left[:, :rank], values[:rank], right[:rank]


def _normalised(layer: Layer) -> Layer:
    """The layer with residuals over its own squared norm."""
    scale = float(layer.weight.square().sum())
    return replace(layer, scale=scale, bias_scale=scale)


def _whitened(layer: Layer, power: float, records: int) -> Layer:
    """With  W = U S V'  the residual is compared as  S^(-p/2) U' . V S^(-p/2).  The classes make up most of a layer;
    what distinguishes their records has small singular values. The smallest are what is left of the initial weights:
    those beyond half the number of records, or of all, are raised to the one there, or to the largest of noise."""
    rank = min(records, *layer.weight.shape) // 2
    values = singular_values(layer.weight)
    ratio = edge(layer.weight, leftover_std(layer.weight, values, records)) / float(values[0])
    whitened = WhitenedLayer.from_matrix(layer.weight, power=power, rank=rank, min_ratio=max(_MIN_RATIO, ratio))
    return replace(
        layer,
        target=whitened.target,
        whitening=(whitened.left, whitened.right),
        scale=float(whitened.target.square().sum()),
        bias_scale=float(layer.weight.square().sum()),
    )


def _bias_scale(bias: Tensor, centre: Tensor, whitening: float) -> float:
    """The scale of the bias, which stands for b m': one more direction of W, with the norm of m."""
    norm = centre.norm()
    return float((bias.norm() * norm) ** (2 * whitening) / norm**2)
