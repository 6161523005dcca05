"""Stein: a batch from one gradient, by moments of Gaussian weights and a tensor decomposition.

Wang, Lee, Lei, "Reconstructing Training Data from Model Gradient, Provably" (AISTATS 2023), algorithm 1 and appendix B:
a server that sends weights with Gaussian rows estimates from the gradient a third-order tensor whose factors are the
records; that is `Stein.paper()`. Ours: the rows of the gradient lie exactly in the span of the batch, which an SVD
finds without sampling error, and within it the gradient is a small system of equations. In deeper nets (algorithm 2)
the last two layers give the inputs of the first of them, and the layers before are inverted.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final, get_args

import torch
from torch import Tensor
from torch.func import grad, vmap

from remanence.attacks.gradients.entry import check_labels
from remanence.attacks.gradients.tensor.decomposition import decompose
from remanence.attacks.gradients.tensor.identifiability import (
    check_determined,
    check_independent,
    estimate_noise,
    estimate_rank,
    hermite_coefficients,
    identifying_order,
    vanishes,
)
from remanence.attacks.gradients.tensor.moments import (
    Moments,
    MomentsInBlocks,
    leading_span,
    span_in_blocks,
    span_of_rows,
)
from remanence.attacks.gradients.tensor.refinement import InSpan, row_space
from remanence.attacks.gradients.tensor.wide_layer import WideLayer
from remanence.bounds import UNIT, Bounds, clamp
from remanence.errors import BadInput, check_min, unknown_name
from remanence.models import apply
from remanence.progress import SOON, track
from remanence.releases import KnowsGradient, require
from remanence.seeds import derive_seed
from remanence.training import count_classes
from remanence.types import Reconstruction, float_like

Source: TypeAlias = Literal["rows", "head"]
Contraction: TypeAlias = Literal["first moment", "ones", "ones, one sign"]
_STEPS, _SELECTIONS, _LAST_STEPS = 150, 2, 10  # on a subset; how often two selections of more rows follow; on these


@final
@dataclass(frozen=True, kw_only=True)
class Stein:
    """Records at the scale that explains the gradient, or of a known norm; `Stein.paper()` is the published method."""

    source: Source = "rows"  # use the gradient of the first layer (appendix B), or of the last, "head" (algorithm 1)
    exact_span: bool = True  # ours: the span by an SVD of the gradient of the rows; False: by the second moment
    contraction: Contraction = (
        "first moment"  # of an odd or even activation's moments, with a vector the paper leaves open
    )
    plug_in: int = 0  # ours: rounds in which an estimated span is estimated again from the directions found in it
    refine: bool = True  # ours: solve the equations of the gradient, beginning from the estimate
    norm: float | None = None  # of every record, where it is known; the paper assumes 1
    clamp: bool = True  # ours: clamp the records to the box of the release
    projections: int = 100  # random contractions of the tensor
    restarts: int = 3  # estimates to refine, until one explains the gradient
    reseeds: int = 4  # per restart: how often the record that contributes least is replaced

    @classmethod
    def paper(cls) -> "Stein":
        """The published estimator: algorithm 1 for the gradient of the rows, unit vectors, no refinement."""
        return cls(exact_span=False, refine=False, norm=1.0, clamp=False)

    def __post_init__(self) -> None:
        if self.source not in get_args(Source):
            raise unknown_name("source", self.source, get_args(Source), argument="source")
        if self.contraction not in get_args(Contraction):
            raise unknown_name("contraction", self.contraction, get_args(Contraction), argument="contraction")
        check_min(self, projections=1, restarts=1, plug_in=0, reseeds=0)

    def run(self, release: KnowsGradient, *, seed: int) -> Reconstruction:
        require(release, KnowsGradient, by=type(self).__name__)
        layer = WideLayer.from_release(release)
        identifying_order(layer.activation)
        rank_seed = derive_seed(seed, "rank")
        count = estimate_rank(layer, seed=rank_seed) if release.batch_size is None else release.batch_size
        check_independent(layer, count, seed=rank_seed)
        check_determined(layer, count, norm_known=self.norm is not None)
        if layer.before and not self.exact_span:
            message = "`exact_span=False` estimates the span from two layers only: leave it out for deeper nets"
            raise BadInput(message, code="unsupported-model", argument="exact_span")
        if release.defenses:
            layer = replace(layer, noise=estimate_noise(layer, count, seed=rank_seed))
        found: list[_Found] = []
        restarts = self.restarts if self.refine else 1
        for restart in track(range(restarts), total=restarts, label="restarts", may_stop=True):
            found.append(self._restart(layer, count, seed=derive_seed(seed, "attempt", restart), part=restart > 0))
            if found[-1].objective < layer.rounding:
                break
        best = min(found, key=lambda each: each.objective)
        x = self._normed(layer.records(best.inputs, exact=best.objective < layer.rounding))
        order, labels = _labels(release, layer, x)
        x = self._clamped(layer.to_records(x[order]), release.bounds).to(float_like(release.at))
        return Reconstruction(x=x, y=labels, objective=best.objective)

    def run_in_blocks(
        self, blocks: Callable[[], Iterable[WideLayer]], count: int, *, seed: int, bounds: Bounds = UNIT
    ) -> Reconstruction:
        """Reconstruct `count` records from two layers whose many rows come a block at a time, again at every call of
        `blocks`: the memory is that of a block, and of the rows within the span. One restart, no labels."""
        moments = MomentsInBlocks(
            blocks=lambda: (self._moments(block, seed=derive_seed(seed, "outputs")) for block in blocks())
        )
        activation = next(iter(blocks())).activation
        if self.exact_span:
            span = span_in_blocks(
                lambda: (block.grad_rows for block in blocks()), count, seed=derive_seed(seed, "span")
            )
        else:
            span = self._estimated_span(activation, moments, count)
        span, directions = self._estimate(moments, span, activation, seed=derive_seed(seed, "draws"))
        found = self._solve(InSpan.in_blocks(blocks(), span), directions, span)
        return Reconstruction(x=self._clamped(self._normed(found.inputs), bounds), objective=found.objective)

    def _restart(self, layer: WideLayer, count: int, *, seed: int, part: bool) -> "_Found":
        """An estimate by moments, of all rows or of a random half of them, and its refinement."""
        moments = self._moments(layer, seed=derive_seed(seed, "outputs"))
        span = self._span(layer, moments, count, seed=derive_seed(seed, "span"))
        if part:
            rows = torch.randperm(len(moments.rows), generator=torch.Generator().manual_seed(seed))[::2]
            moments = Moments(rows=moments.rows[rows], sent=moments.sent[rows])
        span, directions = self._estimate(moments, span, layer.activation, seed=derive_seed(seed, "draws"))
        return self._solve(InSpan.in_blocks([layer], span), directions, span)

    def _estimate(
        self, moments: Moments | MomentsInBlocks, span: Tensor, activation: Callable[[Tensor], Tensor], *, seed: int
    ) -> tuple[Tensor, Tensor]:
        """The span (d, b), and unit vectors (b, b) along the records in it.

        Contracted with the direction of one record the moment shows that record most clearly, so an estimated span is
        estimated again, `plug_in` times, from the directions found in it."""
        order = identifying_order(activation)
        directions = self._directions(moments, span, order, seed=seed)
        if self.plug_in and (self.exact_span or not vanishes(2, hermite_coefficients(activation))):
            message = (
                "`plug_in` is for a span that is estimated from a contracted moment, where the second Hermite "
                "coefficient vanishes: leave it out"
            )
            raise BadInput(message, code="conflict", argument="plug_in")
        for again in range(self.plug_in):
            contracted = [moments.second_contracted(direction) for direction in directions @ span.T]
            span = leading_span(torch.stack([moment @ moment for moment in contracted]).sum(0), span.shape[1])
            directions = self._directions(moments, span, order, seed=derive_seed(seed, "again", again))
        return span, directions

    def _solve(self, equations: InSpan, directions: Tensor, span: Tensor) -> "_Found":
        """Records along the directions, refined if asked for."""
        subset = equations.subset(len(directions))
        records = subset.scaled(subset.signed(directions, span))
        found = _Found(
            inputs=records @ span.T, objective=_relative_residual(equations, records, subset.residuals_for(records))
        )
        rounds = 1 + self.reseeds if self.refine else 0
        for index in track(range(rounds), total=rounds, label="refinements", may_stop=True):
            if index:
                records = subset.reseeded(found.inputs @ span, span)
            found = min(found, self._refined(equations, records, span), key=lambda each: each.objective)
            if found.objective < equations.layer.rounding or len(directions) == 1:
                break
        return found

    def _refined(self, equations: InSpan, records: Tensor, span: Tensor) -> "_Found":
        """Solve on a subset of the rows, then on more of them, selected in two manners, and under noise on all."""
        records, residuals = equations.subset(len(records)).solve(records, steps=_STEPS)
        objective = _relative_residual(equations, records, residuals)
        selections = (equations.clearest, equations.likeliest) * _SELECTIONS
        for select in track(selections, total=len(selections), label="more rows", after=SOON, may_stop=True):
            if objective < equations.layer.rounding:
                break
            records, residuals = select(records, residuals).solve(records, steps=_LAST_STEPS)
            objective = _relative_residual(equations, records, residuals)
        if equations.layer.noise:
            records, residuals = equations.solve(records, steps=_LAST_STEPS)
            objective = _relative_residual(equations, records, residuals)
        return _Found(inputs=records @ span.T, objective=objective)

    def _directions(self, moments: Moments | MomentsInBlocks, span: Tensor, order: int, *, seed: int) -> Tensor:
        """(b, b): unit vectors along the records, in the basis `span`.

        In an exact span the rows are first whitened: the covariance of trained or repeated weights is not the identity.
        """
        root = torch.eye(span.shape[1]).to(span)
        if self.exact_span:
            inside = moments.within(span)
            centred = inside.rows - inside.rows.mean(0)
            values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
            root = vectors * values.clamp_min(1e-12 * values[-1]).sqrt() @ vectors.T
            sent = inside.sent @ root if inside.sent.ndim == 2 else inside.sent
            moments = Moments(rows=centred @ torch.linalg.inv(root), sent=sent)
            span = torch.eye(len(root)).to(span)
        tensor = moments.third(span) if order == 3 else moments.third_contracted(span, self._contracting(moments))
        factors, _ = decompose(tensor, seed=seed, projections=self.projections)
        found = factors @ torch.linalg.inv(root)
        unit: Tensor = found / found.norm(dim=1, keepdim=True)
        return unit

    def _normed(self, x: Tensor) -> Tensor:
        return x if self.norm is None else x * (self.norm / x.norm(dim=1, keepdim=True))

    def _clamped(self, x: Tensor, bounds: Bounds) -> Tensor:
        return clamp(x, bounds) if self.clamp else x

    def _moments(self, layer: WideLayer, *, seed: int) -> Moments:
        """The moments; where there are several outputs, of a random combination of them."""
        outputs = layer.head.shape[1]
        mix = torch.randn(outputs, generator=torch.Generator().manual_seed(seed)).to(layer.head)
        rows = layer.rows / layer.row_std
        if self.source == "head":
            return Moments(rows=rows, sent=layer.grad_head @ (mix if outputs > 1 else torch.ones_like(mix)))
        return Moments(rows=rows, sent=(layer.head @ mix)[:, None] * layer.grad_rows)

    def _span(self, layer: WideLayer, moments: Moments, count: int, *, seed: int) -> Tensor:
        if self.exact_span and layer.noise:  # without a gap a few power iterations do not converge
            return leading_span(layer.grad_rows.T @ layer.grad_rows, count)
        if self.exact_span:
            return span_of_rows(layer.grad_rows, count, seed=seed)[0]
        return self._estimated_span(layer.activation, moments, count)

    def _estimated_span(
        self, activation: Callable[[Tensor], Tensor], moments: Moments | MomentsInBlocks, count: int
    ) -> Tensor:
        """The leading eigenvectors of the second moment, or of the contracted third.

        The eigenvalues of the contracted one are residual c_3 (a . x): of one sign under a large bias on the output, if
        a is ones and the entries of each record have a positive sum. Then those of the other sign are noise.
        """
        if vanishes(2, hermite_coefficients(activation)):
            one_sign = self.contraction == "ones, one sign"
            return leading_span(moments.second_contracted(self._contracting(moments)), count, one_sign=one_sign)
        return leading_span(moments.second(), count)

    def _contracting(self, moments: Moments | MomentsInBlocks) -> Tensor:
        """The unit vector (d,) along which a moment is contracted: `a` of remarks 3 and 4."""
        first = moments.first
        vector = first if self.contraction == "first moment" else torch.ones_like(first)
        unit: Tensor = vector / vector.norm()
        return unit


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Found:
    """A solution, and how well it explains the gradient."""

    inputs: Tensor  # (records, features), of the wide layer
    objective: float  # the norm of the residual relative to that of the gradient


def _relative_residual(equations: InSpan, records: Tensor, residuals: Tensor) -> float:
    return float(equations.misfit(records, residuals).norm() / equations.sent.norm())


def _labels(release: KnowsGradient, layer: WideLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    """The order of the records and their labels: the nearest class of each, or the known labels as they were given."""
    distances = _label_distances(release, layer, x)
    if release.labels is None:
        return torch.arange(len(x), device=x.device), distances.argmin(0)
    check_labels(release, len(x))
    from scipy.optimize import linear_sum_assignment

    order = linear_sum_assignment(distances[release.labels].cpu().numpy())[1]
    return torch.from_numpy(order).to(x.device), release.labels


def _label_distances(release: KnowsGradient, layer: WideLayer, x: Tensor) -> Tensor:
    """(classes, records): the distance between the residual at the model's output that the gradient shows and the one
    of a record with that label."""
    inputs = layer.inputs(x)
    span = torch.linalg.qr(inputs.T).Q
    residuals = InSpan.in_blocks([layer], span).residuals_for(inputs @ span)
    at = {name: p.double() for name, p in release.at.items()}
    outputs = apply(release.model, at, layer.to_records(x))
    basis, count = row_space(layer.head), len(x)

    def residual(output: Tensor, label: Tensor) -> Tensor:
        return release.loss(output[None], label[None]) / count

    distances = []
    for label in range(count_classes(release.loss, layer.head.shape[1])):
        labels = torch.full((count,), label, device=x.device)
        distances.append((vmap(grad(residual))(outputs, labels) @ basis - residuals).norm(dim=1))
    return torch.stack(distances)
