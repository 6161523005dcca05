"""Stein: a batch from one gradient, by moments of Gaussian weights and a tensor decomposition.

Wang, Lee, Lei, "Reconstructing Training Data from Model Gradient, Provably" (AISTATS 2023), algorithm 1 and appendix B:
a server that sends weights with Gaussian rows estimates from the gradient a third-order tensor whose factors are the
records. The paper's is `Stein(exact=False, refine=False, norm=1.0, box=False)`. Ours: the rows of the gradient lie
exactly in the span of the batch, which an SVD finds without the error of a sample, and within it the gradient is a
small system of equations. In deeper nets (algorithm 2) the last two layers are read and those before inverted.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final, get_args

import torch
from torch import Tensor
from torch.func import grad, vmap

from remanence.attacks.gradients.tensor.decomposition import decompose
from remanence.attacks.gradients.tensor.hermite import hermite_coefficients, telling_order, vanishes
from remanence.attacks.gradients.tensor.moments import (
    Moments,
    MomentsInBlocks,
    leading_span,
    span_in_blocks,
    span_of_rows,
)
from remanence.attacks.gradients.tensor.refinement import InSpan, row_space
from remanence.attacks.gradients.tensor.wide_layer import WideLayer
from remanence.errors import BadInput, unknown_name
from remanence.models import apply
from remanence.progress import track
from remanence.releases import KnowsGradient, require
from remanence.seeds import derive_seed
from remanence.types import Reconstruction

Source: TypeAlias = Literal["rows", "head"]
_TIMES = 2  # equations for each unknown, at least
_MOST, _WIDE = 64, 10.0  # records looked for where their number is not known; a gap between singular values
_SLACK = 1.1  # over the noise that is expected
_ROUNDS, _AGAIN, _LAST = 150, 2, 10  # steps on some rows; how often on two choices of more where these do not settle it


@final
@dataclass(frozen=True, kw_only=True)
class Stein:
    """The records come in the scale that explains the gradient, or with the norm that they are known to have."""

    source: Source = "rows"  # the gradient of the first layer (appendix B), or of the last (algorithm 1)
    exact: bool = True  # the span by an SVD of the gradient of the rows; False: by the second moment
    plug_in: int = (
        0  # not in the paper: how often an estimated span is estimated anew, along each direction found in it
    )
    refine: bool = True  # not in the paper
    norm: float | None = None  # of every record, where it is known; the paper assumes 1
    box: bool = True  # not in the paper: cut to [0, 1], where records lie
    draws: int = 100
    tries: int = 3  # guesses to refine, until one explains the gradient
    reseeds: int = 4  # records of each that are put elsewhere, the one missed least each time

    def __post_init__(self) -> None:
        if self.source not in get_args(Source):
            raise unknown_name("source", self.source, get_args(Source))
        for name in ("draws", "tries"):
            if getattr(self, name) < 1:
                raise BadInput(f"`{name}` must be 1 or more, got {getattr(self, name)}")

    def run(self, release: KnowsGradient, *, seed: int) -> Reconstruction:
        require(release, KnowsGradient, by=type(self).__name__)
        layer = WideLayer.of(release)
        telling_order(layer.activation)
        count = _rank(layer, seed=derive_seed(seed, "rank")) if release.batch_size is None else release.batch_size
        _check_count(layer, count, seed=derive_seed(seed, "rank"))
        self._check_identified(layer, count)
        if release.defenses:
            layer = replace(layer, noise=_noise(layer, count, seed=derive_seed(seed, "rank")))
        found: list[_Found] = []
        tries = self.tries if self.refine else 1
        for attempt in track(range(tries), total=tries, label="tries"):
            found.append(self._attempt(layer, count, seed=derive_seed(seed, "attempt", attempt), part=attempt > 0))
            if found[-1].objective < layer.rounding:
                break
        best = min(found, key=lambda each: each.objective)
        x = self._sized(layer.records(best.inputs, exact=best.objective < layer.rounding))
        order, labels = _labels(release, layer, x)
        x = self._boxed(x[order]).view(-1, *release.shape).to(next(iter(release.at.values())))
        return Reconstruction(x=x, y=labels, objective=best.objective)

    def run_in_blocks(self, blocks: Callable[[], Iterable[WideLayer]], count: int, *, seed: int) -> Reconstruction:
        """The records of two layers with so many rows that these come a block at a time, again at every call: the
        memory is that of a block, and of the rows within the span of the `count` records. One guess, no labels."""
        moments = MomentsInBlocks(
            blocks=lambda: (self._moments(block, seed=derive_seed(seed, "outputs")) for block in blocks())
        )
        activation = next(iter(blocks())).activation
        if self.exact:
            span = span_in_blocks(lambda: (block.gradient for block in blocks()), count, seed=derive_seed(seed, "span"))
        else:
            span = _estimated_span(activation, moments, count)
        span, directions = self._guess(moments, span, activation, seed=derive_seed(seed, "draws"))
        found = self._explained(InSpan.in_blocks(blocks(), span), directions, span)
        return Reconstruction(x=self._boxed(self._sized(found.inputs)), objective=found.objective)

    def _check_identified(self, layer: WideLayer, count: int) -> None:
        """Refuse a gradient that other records explain as well."""
        equations = len(layer.rows) * (count + (layer.of_offsets is not None))
        unknowns = count * (count + row_space(layer.head).shape[1])
        if equations < _TIMES * unknowns:
            raise BadInput(
                f"{len(layer.rows)} rows give {equations} equations for {unknowns} unknowns of {count} records, and "
                f"{_TIMES} times as many are asked for: other batches may explain the gradient; use a wider layer"
            )
        if self.norm is None and layer.of_offsets is None and layer.homogeneous:
            raise BadInput(
                "without biases and with an activation such as ReLU a record of twice the length and half the residual "
                "gives the same gradient: say the `norm` of the records"
            )
        if layer.before and not self.exact:
            raise BadInput("`exact=False` estimates the span from two layers only: leave it out for deeper nets")

    def _attempt(self, layer: WideLayer, count: int, *, seed: int, part: bool) -> "_Found":
        """A guess by moments, of all rows or of a random half of them, and what it becomes."""
        moments = self._moments(layer, seed=derive_seed(seed, "outputs"))
        span = self._span(layer, moments, count, seed=derive_seed(seed, "span"))
        if part:
            rows = torch.randperm(len(moments.rows), generator=torch.Generator().manual_seed(seed))[::2]
            moments = Moments(rows=moments.rows[rows], sent=moments.sent[rows])
        span, directions = self._guess(moments, span, layer.activation, seed=derive_seed(seed, "draws"))
        return self._explained(InSpan.of(layer, span), directions, span)

    def _guess(
        self,
        moments: Moments | MomentsInBlocks,
        span: Tensor,
        activation: Callable[[Tensor], Tensor],
        *,
        seed: int,
    ) -> tuple[Tensor, Tensor]:
        """The span, and directions in it. Along one record the moment shows that record alone, and as large as can be;
        a first guess of the directions is near enough to them."""
        order = telling_order(activation)
        directions = self._directions(moments, span, order, seed=seed)
        if self.plug_in and (self.exact or not vanishes(2, hermite_coefficients(activation))):
            raise BadInput(
                "`plug_in` is for a span that is estimated along one direction, where the second Hermite coefficient "
                "vanishes: leave it out"
            )
        for again in range(self.plug_in):
            along = [moments.second_along(direction) for direction in directions @ span.T]
            span = leading_span(torch.stack([moment @ moment for moment in along]).sum(0), span.shape[1])
            directions = self._directions(moments, span, order, seed=derive_seed(seed, "again", again))
        return span, directions

    def _explained(self, equations: InSpan, directions: Tensor, span: Tensor) -> "_Found":
        """Records along the directions, and what they become."""
        some = equations.some(len(directions))
        records = some.scaled(some.signed(directions, span))
        found = _Found(inputs=records @ span.T, objective=self._left(equations, records, some.residuals_for(records)))
        rounds = 1 + self.reseeds if self.refine else 0
        for _ in track(range(rounds), total=rounds, label="refinements"):
            found = min(found, self._refined(equations, records, span), key=lambda each: each.objective)
            if found.objective < equations.layer.rounding or len(directions) == 1:
                break
            records = some.reseeded(found.inputs @ span, span)
        return found

    def _refined(self, equations: InSpan, records: Tensor, span: Tensor) -> "_Found":
        records, residuals = equations.some(len(records)).solved(records, rounds=_ROUNDS)
        left = self._left(equations, records, residuals)
        for chosen in (equations.clearest, equations.likeliest) * _AGAIN:
            if left < equations.layer.rounding:
                break
            records, residuals = chosen(records, residuals).solved(records, rounds=_LAST)
            left = self._left(equations, records, residuals)
        if equations.layer.noise:
            records, residuals = equations.solved(records, rounds=_LAST)
            left = self._left(equations, records, residuals)
        return _Found(inputs=records @ span.T, objective=left)

    def _directions(self, moments: Moments | MomentsInBlocks, span: Tensor, order: int, *, seed: int) -> Tensor:
        """Unit vectors along the records, in the basis `span`.

        In an exact span the rows are first whitened: weights that were trained, or that repeat others, have other
        covariances than the identity.
        """
        root = torch.eye(span.shape[1]).to(span)
        if self.exact:
            inside = moments.within(span)
            places = inside.rows - inside.rows.mean(0)
            values, turn = torch.linalg.eigh(places.T @ places / len(places))
            root = turn * values.clamp_min(1e-12 * values[-1]).sqrt() @ turn.T
            own = inside.sent @ root if inside.sent.ndim == 2 else inside.sent
            moments, span = Moments(rows=places @ torch.linalg.inv(root), sent=own), torch.eye(len(root)).to(span)
        tensor = moments.third(span) if order == 3 else moments.third_along(span, _unit(moments.first))
        factors, _ = decompose(tensor, seed=seed, draws=self.draws)
        found = factors @ torch.linalg.inv(root)
        unit: Tensor = found / found.norm(dim=1, keepdim=True)
        return unit

    def _sized(self, x: Tensor) -> Tensor:
        return x if self.norm is None else x * (self.norm / x.norm(dim=1, keepdim=True))

    def _boxed(self, x: Tensor) -> Tensor:
        return x.clamp(0, 1) if self.box else x

    @staticmethod
    def _left(equations: InSpan, records: Tensor, residuals: Tensor) -> float:
        return float(equations.misfit(records, residuals).norm() / equations.sent.norm())

    def _moments(self, layer: WideLayer, *, seed: int) -> Moments:
        """With several outputs the residuals are seen through a random combination of them."""
        outputs = layer.head.shape[1]
        mix = torch.randn(outputs, generator=torch.Generator().manual_seed(seed)).to(layer.head)
        rows = layer.rows / layer.spread
        if self.source == "head":
            return Moments(rows=rows, sent=layer.of_head @ (mix if outputs > 1 else torch.ones_like(mix)))
        return Moments(rows=rows, sent=(layer.head @ mix)[:, None] * layer.gradient)

    def _span(self, layer: WideLayer, moments: Moments, count: int, *, seed: int) -> Tensor:
        if self.exact and layer.noise:  # no gap that a few rounds of a power method would end at
            return leading_span(layer.gradient.T @ layer.gradient, count)
        if self.exact:
            return span_of_rows(layer.gradient, count, seed=seed)[0]
        return _estimated_span(layer.activation, moments, count)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Found:
    inputs: Tensor  # (records, features), of the wide layer
    objective: float  # the share of the gradient that they leave unexplained


def _estimated_span(activation: Callable[[Tensor], Tensor], moments: Moments | MomentsInBlocks, count: int) -> Tensor:
    if vanishes(2, hermite_coefficients(activation)):
        return leading_span(moments.second_along(_unit(moments.first)), count)
    return leading_span(moments.second(), count)


def _labels(release: KnowsGradient, layer: WideLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    """The order of the records and their labels: the nearest class of each, or the known ones in the order given."""
    apart = _apart(release, layer, x)
    if release.labels is None:
        return torch.arange(len(x), device=x.device), apart.argmin(0)
    if release.labels.shape != x.shape[:1]:
        shape = tuple(release.labels.shape)
        raise BadInput(f"`labels` must be one for each of the {len(x)} records, got {shape}: give all of them, or none")
    from scipy.optimize import linear_sum_assignment

    order = linear_sum_assignment(apart[release.labels].cpu().numpy())[1]
    return torch.from_numpy(order).to(x.device), release.labels


def _apart(release: KnowsGradient, layer: WideLayer, x: Tensor) -> Tensor:
    """(classes, records): how far the residual at the model's output, were the record of the class, is from the one
    that the gradient shows."""
    inputs = layer.inputs(x)
    span = torch.linalg.qr(inputs.T).Q
    residuals = InSpan.of(layer, span).residuals_for(inputs @ span)
    at = {name: p.double() for name, p in release.at.items()}
    outputs = apply(release.model, at, x.view(-1, *release.shape))
    turn, count = row_space(layer.head), len(x)

    def residual(output: Tensor, label: Tensor) -> Tensor:
        return release.loss(output[None], label[None]) / count

    found = []
    values = getattr(release.loss, "values", None)  # of a squared error, whose one output stands for several classes
    for label in range(len(values) if values else layer.head.shape[1]):
        wanted = torch.full((count,), label, device=x.device)
        found.append((vmap(grad(residual))(outputs, wanted) @ turn - residuals).norm(dim=1))
    return torch.stack(found)


def _rank(layer: WideLayer, *, seed: int) -> int:
    """How many independent records the gradient shows: its singular values before what is rounding, or a wide gap."""
    values = span_of_rows(layer.gradient, min(_MOST, *layer.gradient.shape), seed=seed)[1]
    kept = int((values > layer.gap * values[0]).sum())
    if kept < len(values) or kept == 1:
        return kept
    gaps = values[:-1] / values[1:]
    if float(gaps.max()) < _WIDE:
        raise BadInput(
            f"the gradient shows {kept} directions or more and no gap between them, which does not tell how many "
            "records it is of: say `batch_size`"
        )
    return int(gaps.argmax()) + 1


def _check_count(layer: WideLayer, count: int, *, seed: int) -> None:
    rows, features = layer.gradient.shape
    if count < 1:
        raise BadInput(f"`batch_size` must be a number of records, got {count}")
    if count > min(rows, features):
        raise BadInput(f"a gradient of {rows} rows and {features} features cannot tell {count} records apart: use more")
    values = span_of_rows(layer.gradient, count, seed=seed)[1]
    rank = int((values > layer.gap * values[0]).sum())
    if rank < count:
        raise BadInput(
            f"the gradient shows {rank} independent directions and the batch has {count} records: some of them depend "
            "on others linearly, or leave no trace, and cannot be told apart"
        )


def _noise(layer: WideLayer, count: int, *, seed: int) -> float:
    """The share of what is read, the gradient within the span and that of the biases, that noise as large as the one
    outside the span makes up; 0 where it may be rounding."""
    span, features = span_of_rows(layer.gradient, count, seed=seed)[0], layer.gradient.shape[1]
    inside, whole = layer.gradient @ span, layer.gradient.norm()
    biases = torch.zeros_like(whole) if layer.of_offsets is None else layer.of_offsets.norm()
    share = (layer.gradient - inside @ span.T).norm() / whole * (features / max(1, features - count)) ** 0.5
    within = share * torch.hypot(whole * (count / features) ** 0.5, biases) / torch.hypot(inside.norm(), biases)
    return _SLACK * float(within) if float(within) > layer.rounding else 0.0


def _unit(vector: Tensor) -> Tensor:
    unit: Tensor = vector / vector.norm()
    return unit
