"""Records written in the rows of a first layer that training with weight decay has left a sum of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from remanence.attacks.weights.residual import Layer
from remanence.search.whitening import WhitenedLayer

_GAP = 30.0  # between two singular values, where the rank ends
_FEWEST = 10  # directions, to begin with
_LEAST = 1e-4  # of the largest singular value, that the smallest of an evened layer count as


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RowSpace:
    """The rows of the first layer: records are  z @ basis + centre,  and `layers` read z.

    With W = U S V' and a whitening of p the basis B is S^p V', the layer reads with W B', and what the candidates are
    to explain is U S^(1-p).

    Where [W b] = A [X 1] has no more rank than W, as the records were not centred, all of them lie where  x.c = 1  with
    c = W^+ b. Of those points the nearest to `grey` then is the centre m, and W - b m' = A (X - 1 m') has the rest.
    """

    layers: tuple[Layer, ...]
    basis: Tensor
    centre: Tensor | None
    count: int | None  # of records; None where no gap between the singular values tells the rank
    steepness: float  # one over the typical norm of a row

    @classmethod
    def of(
        cls, layers: tuple[Layer, ...], whitening: float, grey: Tensor, *, most: int | None = None, inner: float = 0.0
    ) -> "RowSpace":
        """`most` is the rank where no gap tells it; `inner` whitens the layers between the first and the last."""
        weight, bias, count, centre = layers[0].weight, layers[0].bias, _count(layers[0]), None
        left, values, right = _cut_svd(weight, most if count is None else None)
        if bias is not None and len(values) == count != 1 and bool(bias.any()):
            level = ((bias @ left) / values) @ right
            inside = grey @ right.T @ right
            centre = inside + (1 - inside @ level) / level.square().sum() * level
            left, values, right = _cut_svd(weight - torch.outer(bias, centre), count - 1)
        basis, target = values[:, None] ** whitening * right, left * values ** (1 - whitening)
        unit = float(target.square().sum())
        first = Layer(
            weight=weight @ basis.T,
            bias=bias if bias is None or centre is None else bias + weight @ centre,
            target=target,
            bias_target=bias,
            unit=unit,
            bias_unit=unit if bias is None or centre is None else unit * _whitened_unit(bias, centre, whitening),
        )
        between = [_evened(layer, inner, len(values)) if inner else _in_units(layer) for layer in layers[1:-1]]
        return cls(
            layers=(first, *between, *map(_in_units, layers[1:][-1:])),
            basis=basis,
            centre=centre,
            count=count,
            steepness=float(values.square().sum() / len(weight)) ** -0.5,
        )

    def records_at(self, z: Tensor) -> Tensor:
        return z @ self.basis if self.centre is None else z @ self.basis + self.centre

    def single(self) -> "RowSpace":
        """In float32."""
        layers = tuple(
            Layer(
                weight=layer.weight.float(),
                bias=None if layer.bias is None else layer.bias.float(),
                target=layer.target.float(),
                bias_target=None if layer.bias_target is None else layer.bias_target.float(),
                unit=layer.unit,
                bias_unit=layer.bias_unit,
                around=layer.around and (layer.around[0].float(), layer.around[1].float()),
            )
            for layer in self.layers
        )
        centre = None if self.centre is None else self.centre.float()
        return replace(self, layers=layers, basis=self.basis.float(), centre=centre)

    def coordinates(self, noise: Tensor) -> Tensor:
        """Of images as near to `noise` as the span has them, of which pixels have the mean square one."""
        z = noise @ self.basis.T / self.basis.square().sum(1)  # whose rows are orthogonal
        return z / (z @ self.basis).square().mean(-1, keepdim=True).sqrt()

    @property
    def pixel(self) -> float:
        """The root mean square of the coordinates of images whose pixels have the mean square one."""
        return float((self.basis.square().sum(1).reciprocal().mean() * self.basis.shape[1] / len(self.basis)).sqrt())

    def growing(self, stages: int) -> Iterator["RowSpace"]:
        """The leading directions alone, more in each stage by equal ratios, and in the last one all."""
        whole = len(self.basis)
        fewest = min(_FEWEST, whole)
        for stage in range(1, stages):
            yield self._leading(round(fewest * (whole / fewest) ** ((stage - 1) / (stages - 1))))
        yield self

    def _leading(self, count: int) -> "RowSpace":
        first = self.layers[0]
        target = first.target[:, :count]
        unit = float(target.square().sum())
        cut = replace(
            first,
            weight=first.weight[:, :count],
            target=target,
            unit=unit,
            bias_unit=first.bias_unit * unit / first.unit,
        )
        return replace(self, layers=(cut, *self.layers[1:]), basis=self.basis[:count])


def rank_of(values: Tensor) -> int | None:
    """Where falling singular values drop most, if they drop by so much that it is no accident."""
    whole = values.clamp_min(values[0] * torch.finfo(values.dtype).eps)
    drops = whole[:-1] / whole[1:]
    return int(drops.argmax()) + 1 if len(drops) and float(drops.max()) > _GAP else None


def _count(first: Layer) -> int | None:
    """Of the records: the rank of the first layer with its bias, where there is one."""
    both = first.weight if first.bias is None else torch.cat([first.weight, first.bias[:, None]], dim=1)
    return rank_of(torch.linalg.svdvals(both))


def _cut_svd(weight: Tensor, most: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """As far as the singular values tell the rank, or else as they are more than rounding."""
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    rank = most or rank_of(values) or int((values > values[0] * torch.finfo(values.dtype).eps).sum())
    return left[:, :rank], values[:rank], right[:rank]


def _in_units(layer: Layer) -> Layer:
    unit = float(layer.weight.square().sum())
    return replace(layer, unit=unit, bias_unit=unit)


def _evened(layer: Layer, power: float, records: int) -> Layer:
    """With  W = U S V'  what is left is compared as  S^(-p/2) U' . V S^(-p/2).  The classes make up most of a layer,
    and what tells their records apart has small singular values. The smallest are what is left of the first weights:
    those beyond half the number of records, or of all, count as the one there."""
    evened = WhitenedLayer.from_matrix(
        layer.weight, power=power, rank=min(records, *layer.weight.shape) // 2, min_ratio=_LEAST
    )
    return replace(
        layer,
        target=evened.target,
        around=(evened.left, evened.right),
        unit=float(evened.target.square().sum()),
        bias_unit=float(layer.weight.square().sum()),
    )


def _whitened_unit(bias: Tensor, centre: Tensor, whitening: float) -> float:
    """Of the bias, which stands for b m': one more direction of W, of this singular value, and of the length of m."""
    reach = centre.norm()
    return float((bias.norm() * reach) ** (2 * whitening) / reach**2)
