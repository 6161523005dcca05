"""Features of flat parameter vectors: standardised over the shadow models, clipped, reduced; or a digest of them.

`WeightFeatures` says which features, `fit` estimates them from shadow models, and what it returns is applied to a
released model. Standardisation is the paper's (Balle et al. 2022); the guard against rounding, PCA, the rows of the
first layer and the digest are ours.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, final

import torch
from torch import Tensor

from remanence.errors import BadInput, check_min
from remanence.shadow.rows import Rows

MIN_STD_RATIO = 1e-4
_BLOCK = 1024  # rows or columns at a time: a bank fills a good part of the memory, and one copy of it is enough
_OVERSAMPLING, _POWER_ITERATIONS = 32, 4  # of the randomised SVD


@final
@dataclass(frozen=True, kw_only=True)
class WeightFeatures:
    """Which features of the weights a reconstructor takes; the paper standardises and does nothing else."""

    # not in the paper: released models far outside the shadows' range otherwise dominate the error
    clip: float | None = 5.0  # bound of the standardised weights
    # not in the paper: weights whose standard deviation is below this ratio of the largest hold rounding alone and are
    # dropped. Where shadows disagree very much about some weights, others that did change may lie below it
    min_std_ratio: float = MIN_STD_RATIO
    pca: int | None = None  # not in the paper, whose 55,208 inputs on CIFAR-10 take 98 % of the work
    digest: bool = False  # ours, for few shadows: predict the gates from a `Digest` and not from all weights

    def __post_init__(self) -> None:
        check_min(self, clip=0, min_std_ratio=0, pca=1)
        if self.min_std_ratio >= 1:
            message = f"`min_std_ratio` is a ratio and must lie in [0, 1), got {self.min_std_ratio}"
            raise BadInput(message, code="out-of-range", argument="min_std_ratio")
        if self.digest and self.pca is not None:
            message = "`digest` and `pca` are two ways to reduce the weights: choose one"
            raise BadInput(message, code="conflict", argument="digest")

    def fit(self, weights: Tensor, rows: Tensor, *, layer: Rows | None, seed: int) -> "FittedFeatures":
        """Estimate the features from the models `rows` of `weights`; the rows of `layer`, if any, are appended."""
        if self.digest and layer:
            return Digest.fit(weights, layer, clip=self.clip, rows=rows, min_std_ratio=self.min_std_ratio)
        scaler = Scaler.fit(weights, clip=self.clip, rows=rows, min_std_ratio=self.min_std_ratio)
        if self.pca is not None:
            scaler = scaler.reduced(weights, self.pca, rows=rows, seed=seed)
        return replace(scaler, rows=layer)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Scaler:
    """Standardises each coordinate over the shadows, clips it, and projects on the principal `axes` if it has any.

    A coordinate that never receives a gradient has no standard deviation but rounding: divided by it, noise would
    become signal, so its `std` is set to infinity. The `rows` of the first layer, if any, are appended without
    clipping, each divided by one number, so that the ratios within a row stay those of a record's features.
    """

    mean: Tensor  # (parameters,)
    std: Tensor  # (parameters,), infinite where it is rounding
    clip: float | None
    axes: Tensor | None = None  # (parameters, axes)
    rows: Rows | None = None

    @classmethod
    def fit(
        cls, weights: Tensor, *, clip: float | None, rows: Tensor | None = None, min_std_ratio: float = MIN_STD_RATIO
    ) -> "Scaler":
        """Mean and standard deviation over the models `rows` of `weights`, or over all."""
        rows = torch.arange(len(weights), device=weights.device) if rows is None else rows
        parts = [torch.std_mean(columns[rows], dim=0) for columns in weights.split(_BLOCK, dim=1)]
        std, mean = (torch.cat(part) for part in zip(*parts, strict=True))
        active = std > min_std_ratio * std.max()
        return cls(mean=mean, std=torch.where(active, std, torch.inf), clip=clip)

    def reduced(self, weights: Tensor, count: int, *, rows: Tensor, seed: int) -> "Scaler":
        """A scaler that also projects on the first `count` principal axes of the models `rows` of `weights`."""
        rank = min(len(rows), weights.shape[1])
        if not 1 <= count <= rank:
            message = f"`pca` must lie in 1..{rank}, the rank of the bank, got {count}: use fewer axes"
            raise BadInput(message, code="out-of-range", argument="pca")
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(weights.shape[1], min(rank, count + _OVERSAMPLING), generator=generator).to(weights)
        axes, variance = principal_axes(partial(self._blocks, weights, rows), start, count)
        # One factor for all axes: divided each by its standard deviation, those that hold rounding would count as much
        # as the others (digits, 1,000 shadows, 300 axes: MSE 0.024 instead of 0.015).
        return replace(self, axes=axes * (len(rows) / variance.mean()).sqrt())

    def recentred(self, mean: Tensor, *, clip: float | None) -> "Scaler":
        """The scaler with another mean and bound."""
        return replace(self, mean=mean, clip=clip)

    @property
    def active(self) -> Tensor:
        """(features,): 1 where a feature carries information, else 0; without the appended rows."""
        return self.std.isfinite().to(self.mean) if self.axes is None else torch.ones_like(self.axes[0])

    def __call__(self, weights: Tensor) -> Tensor:
        """Features (models, features) of flat parameter vectors (models, parameters)."""
        check_size(weights, len(self.mean))
        count = len(self.active)
        made = weights.new_empty(len(weights), count + (self.rows.count * self.rows.features if self.rows else 0))
        for block, part in zip(made.split(_BLOCK), weights.split(_BLOCK), strict=True):
            standard = self.standardised(part)
            block[:, :count] = standard if self.axes is None else standard @ self.axes
            if self.rows:
                block[:, count:] = self.row_deltas(part, self.rows).flatten(1)
        return made

    def row_deltas(self, weights: Tensor, rows: Rows) -> Tensor:
        """(models, rows, features): each row less its mean, divided by the largest standard deviation in it."""
        std = torch.where(self.std.isfinite(), self.std, 0.0)
        scale = rows.select(std[None]).amax(2).clamp_min(1e-4 * std.max())
        return rows.select(weights - self.mean) / scale[:, :, None]

    def standardised(self, weights: Tensor) -> Tensor:
        """Standardised and clipped weights (models, parameters)."""
        standard = (weights - self.mean).div_(self.std)
        return standard if self.clip is None else standard.clamp_(-self.clip, self.clip)

    def _blocks(self, weights: Tensor, rows: Tensor) -> Iterator[Tensor]:
        return (self.standardised(weights[some]) for some in rows.split(_BLOCK))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Digest:
    """A few hundred features to predict gates from, followed by the rows that the gates multiply (ours).

    A gate depends on how far the record has moved each row. The inner products of the rows' changes determine that up
    to the sign; biases and later layers determine the sign. All is divided by the size of the rows' change: what a
    record looks like does not depend on how much was left to learn from it.
    """

    weight_scaler: Scaler  # of the parameters
    rows: Rows
    digest_scaler: Scaler  # of the digest

    @classmethod
    def fit(
        cls, weights: Tensor, layer: Rows, *, clip: float | None, rows: Tensor, min_std_ratio: float = MIN_STD_RATIO
    ) -> "Digest":
        """Means and standard deviations over the models `rows` of `weights`."""
        layer = replace(layer, other=layer.other.to(weights.device))
        scaler = Scaler.fit(weights, clip=None, rows=rows, min_std_ratio=min_std_ratio)
        unscaled = cls(weight_scaler=scaler, rows=layer, digest_scaler=scaler)
        digests = torch.cat([unscaled._digest(some)[0] for some in weights.split(_BLOCK)])
        return replace(unscaled, digest_scaler=Scaler.fit(digests, clip=clip, rows=rows))

    def recentred(self, mean: Tensor, *, clip: float | None) -> "Digest":
        """The digest with another mean of the weights and another bound of the features."""
        return replace(
            self,
            weight_scaler=replace(self.weight_scaler, mean=mean),
            digest_scaler=replace(self.digest_scaler, clip=clip),
        )

    @property
    def active(self) -> Tensor:
        """(features,): 1 where a feature carries information, else 0; without the appended rows."""
        return self.digest_scaler.active

    def __call__(self, weights: Tensor) -> Tensor:
        """Features (models, features) of flat parameter vectors (models, parameters)."""
        check_size(weights, len(self.weight_scaler.mean))
        count = len(self.active)
        made = weights.new_empty(len(weights), count + self.rows.count * self.rows.features)
        for block, part in zip(made.split(_BLOCK), weights.split(_BLOCK), strict=True):
            digest, rows = self._digest(part)
            block[:, :count], block[:, count:] = self.digest_scaler(digest), rows.flatten(1)
        return made

    def _digest(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The digest, and the rows divided by their root mean square."""
        rows = self.weight_scaler.row_deltas(weights, self.rows)
        size = rows.square().mean((1, 2)).sqrt().clamp_min(torch.finfo(rows.dtype).eps)
        rows = rows / size[:, None, None]
        upper = torch.triu_indices(self.rows.count, self.rows.count, device=rows.device)
        products = (rows @ rows.mT / self.rows.features)[:, upper[0], upper[1]]
        other = self.weight_scaler.standardised(weights)[:, self.rows.other]
        return torch.cat([other / size[:, None], products, size.log()[:, None]], dim=1), rows


FittedFeatures: TypeAlias = Scaler | Digest


def check_size(weights: Tensor, parameters: int) -> None:
    """Refuse models (models, parameters) with another number of parameters than the shadows."""
    if weights.shape[1] != parameters:
        message = (
            f"the reconstructor takes models of {parameters} parameters, got {weights.shape[1]}: "
            "fit it on shadows of this model"
        )
        raise BadInput(message, code="shape-mismatch", argument="release")


def principal_axes(blocks: Callable[[], Iterator[Tensor]], start: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first `count` right singular vectors of the matrix with rows `blocks`, and the squared singular values.

    Subspace iteration from random directions (Halko, Martinsson, Tropp 2011): the matrix is only ever multiplied.
    """
    basis = torch.linalg.qr(start).Q
    for _ in range(_POWER_ITERATIONS):
        image = torch.zeros_like(basis)
        for block in blocks():
            image += block.T @ (block @ basis)
        basis = torch.linalg.qr(image).Q
    gram = basis.new_zeros(basis.shape[1], basis.shape[1])
    for block in blocks():
        projected = block @ basis
        gram += projected.T @ projected
    values, vectors = torch.linalg.eigh(gram)
    return basis @ vectors[:, -count:].flip(1), values[-count:].flip(0)
