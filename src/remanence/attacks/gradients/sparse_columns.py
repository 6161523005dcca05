"""Backpropagated errors of single records from the gradient of a ReLU layer: the sparse vectors of its column space.

The gradient of weight and bias is  G = sum_i d_i p_i = L R,  d_i being the errors of record i at the neurons and p_i
the record with a one behind it: d_i = L q_i, and it is zero where the record is off. SPEAR (Dimitrov et al., NeurIPS
2024) samples rows until all of them are off for one record, and needs exponentially many samples. Ours: a point near a
record, such as the quotient of a row, has nearly the same gates, and its preactivations z say how surely. So

    minimise  sum_j |z_j| |L_j q - gate_j V_j e|^(1/2)   over q and e,

V being the next layer's weight and e the error behind it, by iteratively reweighted least squares (Chartrand and Yin,
ICASSP 2008): gates that are wrong are outliers. Errors that are sums over local steps are not of this form, but still
zero where the record is off at every step: there the sum is over neurons that are off alone.

With errors D_F that were found, the rows of G are  D_F P + those of the other records: rows at which no other record is
on give P, the records, by a regression that is robust in the same way; what it leaves of the others are quotients of
fewer records, the next starting points.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log
from typing import final

import torch
from torch import Tensor

from remanence.progress import track

_ROUNDS, _STARTS = 12, 160  # of starting points; in a round
_MIXED = 40  # of the starting points of a round are mixtures of two others
_WORK = 8e8  # multiplications of one reweighting, by which the starting points of large batches are fewer
_CHUNK = 32  # starting points at once
_ZERO = 1e-6  # of the largest error: a neuron that is off; or so many times the relative noise:
_NOISE = 3
_MAX_ZERO = 0.1
_POWER = 0.5  # of the errors that are minimised
_FIRST, _SLOWLY = 0.3, 0.7  # what is added to errors before they are inverted; its factor at each reweighting
_INACTIVE = 1e-6  # of the largest row: no record is on
_SPARE = 8  # neurons, or errors that are explained, beyond one for each unknown
_NEAR = 0.1  # of the mean error: what combinations of the next layer's weights may be away from an error
_MISSING = 0.03  # fraction of a record's errors that may be unexplained; or so many times that of the best record:
_WORSE = 3
_MORE, _FEW = 2, 8  # times as many, where fewer than one in so many records that remain are new
_WIDE = 4  # times the outputs of the next layer are more than the neurons: its weights say nothing of errors
_SAME = 0.99  # cosine of two estimates of one record's errors; of different records it was at most 0.982
_DEPENDENT = 0.01  # distance from the combinations of errors that were found
_PASSES = 4  # of gates, errors and records
_NOISY = 6  # times the mean of errors where the record is off: a larger error says whether its gate is on
_GATES = 0.85  # least fraction of gates of a record that agree with its errors
_PATIENCE = 4  # rounds without a new record
_TINY = 1e-20  # instead of zero, where it is divided by


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ReluLayer:
    """What is known of the layer."""

    weight: Tensor  # (neurons, features)
    bias: Tensor  # (neurons,)
    next_weight: Tensor  # (outputs, neurons)
    # inputs (n, features) -> those near the box of the records, moved into it, the nearest first
    near: Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Factors:
    """Records of the batch, as they enter the layer, with their errors: sum_i errors_i x_i is their gradient."""

    x: Tensor  # (n, features)
    errors: Tensor  # (n, neurons)
    accepted: Tensor  # (found,), which of the errors that were found these are


def factorise(layer: ReluLayer, gradient: Tensor, *, records: int, seed: int, points: Tensor | None = None) -> Factors:
    """Those of the `records` of a batch whose errors are found; `gradient` (neurons, features + 1) is that of weight
    and bias. Starts from `points` (n, features), else from the quotients of rows."""
    system = _System.from_gradient(layer, gradient, records)
    rows, unknowns = system.rows, records + system.span.shape[1]
    found, fit = rows.new_zeros(0, records), rows.new_zeros(0)
    count = max(_CHUNK, min(_STARTS, int(_WORK / (len(rows) * unknowns**2))))
    generator = torch.Generator().manual_seed(seed)
    points, slack, idle = system.points(rows)[:count] if points is None else points, 1.0, 0
    for _ in track(range(_ROUNDS), total=_ROUNDS, label="sparse errors", after=1.0, may_stop=True):
        if not len(points) or len(rows) < unknowns + _SPARE:
            break
        z = points @ system.weight.T + system.bias
        q, explained = system.sparsest(z, system.span)
        missing = 1 - float(torch.cat([fit, explained]).max())
        if missing > _MISSING:  # not one gradient: zeros are exact, the span is not
            others, explained_too = system.sparsest(z, system.span[:, :0])
            better = explained_too > explained
            q, explained = torch.where(better[:, None], others, q), torch.maximum(explained_too, explained)
        min_fit = max(1 - slack * max(_MISSING, _WORSE * missing), (unknowns + _SPARE) / len(rows))
        near, known = explained >= min_fit, len(found)
        found, fit = _independent(torch.cat([found, q[near]]), torch.cat([fit, explained[near]]), records)
        idle = 0 if len(found) > known else idle + 1
        slack *= _MORE if _FEW * (len(found) - known) < records - known else 1
        if len(found) == records:
            factors = system.solved(found)
            if len(factors.x) == records:
                return factors
            found, fit = found[factors.accepted], fit[factors.accepted]
        if idle == _PATIENCE:
            break
        points = system.points(_regression(rows, found)[1] if len(found) else rows)
        points = torch.cat([points[: count - _MIXED], _mixed(points, _MIXED, generator)]) if len(points) else points
    return system.solved(found)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _System:
    """The gradient as L R, of which the rows of L and the neurons at which a record is on."""

    layer: ReluLayer
    left: Tensor  # (neurons, records)
    right: Tensor  # (records, features + 1)
    zero: float  # of the largest error: a neuron that is off
    rows: Tensor  # (active, records), of `left`
    weight: Tensor  # (active, features)
    bias: Tensor  # (active,)
    span: Tensor  # (active, outputs), orthonormal: what errors of one gradient are combinations of

    @classmethod
    def from_gradient(cls, layer: ReluLayer, gradient: Tensor, records: int) -> "_System":
        left, values, right = torch.linalg.svd(gradient, full_matrices=False)
        left, right = left[:, :records], values[:records, None] * right[:records]
        noise = float(values[records] / values[records - 1].clamp_min(1e-300)) if len(values) > records else 0.0
        norms = left.norm(dim=1)
        active = norms > max(_INACTIVE, noise) * norms.max()
        span = torch.linalg.qr(layer.next_weight[:, active].T)[0]
        return cls(
            layer=layer,
            left=left,
            right=right,
            zero=min(max(_ZERO, _NOISE * noise), _MAX_ZERO),
            rows=left[active],
            weight=layer.weight[active],
            bias=layer.bias[active],
            span=span[:, : 0 if _WIDE * span.shape[1] > len(span) else None],
        )

    def points(self, rows: Tensor) -> Tensor:
        """The points (n, features) that combinations (m, records) of the rows of R are multiples of, those near the box
        of the records."""
        inputs = rows @ self.right
        clear = inputs[:, -1].abs() > 1e-6 * inputs.norm(dim=1)
        return self.layer.near(inputs[clear, :-1] / inputs[clear, -1:])

    def sparsest(self, z: Tensor, span: Tensor) -> tuple[Tensor, Tensor]:
        """Directions of sparse errors (n, records) near gates (n, active), and the fraction of errors explained."""
        q = torch.cat([_sparsest(self.rows, each, span, self.zero) for each in z.split(_CHUNK)])
        return q, _explained(q @ self.rows.T, self.span, self.zero)[0]

    def solved(self, found: Tensor) -> Factors:
        """The records of the directions `found` (n, records) whose gates agree with their errors."""
        if not len(found):
            return Factors(x=self.right[:0, :-1], errors=self.left.T[:0], accepted=found[:, 0] > 0)
        gates, z = None, self.bias
        for _ in range(_PASSES):
            found, exact = _denoised(self.rows, found, gates, self.span, self.zero)
            inputs = _regression(self.rows, found)[0] @ self.right
            x = inputs[:, :-1] / inputs[:, -1:]
            gates = z = x @ self.weight.T + self.bias
        errors = found @ self.rows.T
        on = errors.abs() > self.zero * errors.abs().amax(1, keepdim=True)
        accepted = torch.eq(on, z > 0).double().mean(1) >= _GATES
        if exact.double().mean() > 0.5:  # the others are mixtures, then
            accepted &= exact
        return Factors(x=x[accepted], errors=(inputs[:, -1:] * (found @ self.left.T))[accepted], accepted=accepted)


def _sparsest(rows: Tensor, z: Tensor, span: Tensor, zero: float) -> Tensor:
    """Unit vectors q (n, records) for which  sum_j |z_j| |rows_j q + gate_j span_j e|^p  is least with some e, the
    gates being those of preactivations z (n, neurons); near the minimum of p = 2. Without a span, of neurons that are
    off."""
    records = rows.shape[1]
    system = torch.cat([rows.expand(len(z), -1, -1), (z > 0)[:, :, None] * span], 2)
    trusted = z.abs() * ((z < 0) | bool(span.shape[1])) / z.abs().amax(1, keepdim=True)
    v = _smallest(system, trusted, system.new_ones(len(z), system.shape[2]), steps=6)
    added = _FIRST
    for _ in range(ceil(log(zero / _FIRST, _SLOWLY)) + 3):
        size = torch.cat([v[:, :records] @ rows.T, v[:, records:] @ span.T], 1).abs().amax(1, keepdim=True)
        away = (system @ v[:, :, None])[:, :, 0] / size
        v = _smallest(system, trusted / (away.square() + added**2) ** (1 - _POWER / 2), v, steps=2)
        added = max(_SLOWLY * added, zero)
    q: Tensor = v[:, :records] / v[:, :records].norm(dim=1, keepdim=True).clamp_min(1e-300)
    return q


def _smallest(system: Tensor, weights: Tensor, start: Tensor, *, steps: int) -> Tensor:
    """The eigenvectors of the smallest eigenvalues of system^T diag(weights) system, by inverse iteration."""
    gram = (system.mT * weights[:, None]) @ system
    ridge = 1e-13 * gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(_TINY)[:, None, None]
    factor = torch.linalg.cholesky(gram + ridge * torch.eye(system.shape[-1]).to(system))
    vector = start[:, :, None]
    for _ in range(steps):
        vector = torch.cholesky_solve(vector, factor)
        vector = vector / vector.norm(dim=1, keepdim=True)
    return vector[:, :, 0]


def _explained(errors: Tensor, span: Tensor, zero: float) -> tuple[Tensor, Tensor]:
    """The fraction (n,) of errors that are zero or near to a combination of `span`, by least absolute deviations, and
    the combinations (n, neurons). In one gradient it is one, after local steps gates that change are missing."""
    on = (errors.abs() > zero * errors.abs().amax(1, keepdim=True)).to(errors)
    mean = (errors.abs() * on).sum(1, keepdim=True).clamp_min(_TINY) / on.sum(1, keepdim=True).clamp_min(1)
    combined, weights = torch.zeros_like(errors), on
    for _ in range(15 if span.shape[1] else 0):
        gram = (span.T * weights[:, None]) @ span
        ridge = 1e-9 * gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(_TINY)[:, None, None]
        gram = gram + ridge * torch.eye(span.shape[1]).to(gram)
        e = torch.linalg.solve(gram, ((weights * errors) @ span)[:, :, None])
        combined = (span @ e)[:, :, 0]
        weights = on / ((errors - combined).abs() / mean).clamp_min(_NEAR / 10)
    near = (errors - combined).abs() < _NEAR * mean
    return torch.where(on > 0, near, 1.0).mean(1), combined


def _denoised(rows: Tensor, found: Tensor, z: Tensor | None, span: Tensor, zero: float) -> tuple[Tensor, Tensor]:
    """The directions (n, records) once more. Where their errors are  gate * (span e)  up to the noise, as in one
    gradient: from the e for which this comes nearest to the column space. Else from all rows at which they are zero.
    And which of them (n,) are the former.

    Gates of errors that are smaller than the noise are those of the record, once its preactivations `z` are known.
    """
    errors = found @ rows.T
    off = (errors.abs() < zero * errors.abs().amax(1, keepdim=True)).to(rows)
    sparse = _smallest(rows, off, found, steps=4)
    if not span.shape[1]:
        return sparse, torch.zeros_like(found[:, 0], dtype=torch.bool)
    combined = _explained(errors, span, zero)[1]
    gates = errors / combined > 0.5
    if z is not None:
        noise = (errors.abs() * (z < 0)).sum(1) / (z < 0).sum(1).clamp_min(1)
        gates = torch.where(combined.abs() > _NOISY * noise[:, None], gates, z > 0)
    gated = gates[:, :, None] * span
    inside, total = rows.T @ gated, gated.mT @ gated
    outside = total - inside.mT @ inside
    factor = torch.linalg.cholesky(total + 1e-13 * torch.eye(span.shape[1]).to(total))
    half = torch.linalg.solve_triangular(factor, outside, upper=False)
    whitened = torch.linalg.solve_triangular(factor, half.mT, upper=False)
    vectors = torch.linalg.eigh((whitened + whitened.mT) / 2)[1][:, :, :1]
    words = (gated @ torch.linalg.solve_triangular(factor.mT, vectors, upper=True))[:, :, 0]
    q = words @ rows
    away = (words - q @ rows.T).norm(dim=1) / words.norm(dim=1)
    return torch.where((away < zero)[:, None], q / q.norm(dim=1, keepdim=True), sparse), away < zero


def _independent(q: Tensor, fit: Tensor, records: int) -> tuple[Tensor, Tensor]:
    """The directions of the best fit, `records` at most, of which none is one before it or a combination of those."""
    order = fit.argsort(descending=True, stable=True)
    q, fit, chosen, basis = q[order], fit[order], list[int](), q.new_zeros(0, q.shape[1])
    for i, each in enumerate(q):
        if len(chosen) == records or (chosen and float((q[chosen] @ each).abs().max()) > _SAME):
            continue
        outside = each - (each @ basis.T) @ basis
        outside = outside - (outside @ basis.T) @ basis
        if float(outside.norm()) > _DEPENDENT:
            chosen.append(i)
            basis = torch.cat([basis, (outside / outside.norm())[None]])
    return q[chosen], fit[chosen]


def _regression(rows: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """The records (n, records) of the errors  rows @ found.T,  and what they leave of the rows.

    As L = sum_i L q_i p_i, a record p_k is orthogonal to every q_i but its own: what is unknown of it lies in the
    complement of `found` and is fitted to all rows, most of which may belong to other records also.
    """
    free = torch.linalg.qr(found.T, mode="complete")[0][:, len(found) :]
    errors, target = rows @ found.T, rows @ free
    fitted = torch.linalg.pinv(errors) @ target
    scale, added = target.norm(dim=1).mean().clamp_min(1e-300), _FIRST
    for _ in range(25 if free.shape[1] else 0):
        away = (target - errors @ fitted).norm(dim=1) / scale
        weights = (away.square() + added**2)[:, None] ** ((_POWER - 2) / 4)
        fitted = torch.linalg.pinv(weights * errors) @ (weights * target)
        added = max(_SLOWLY * added, _ZERO)
    return torch.linalg.pinv(found).T + fitted @ free.T, (target - errors @ fitted) @ free.T


def _mixed(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random convex combinations (count, features) of two points each."""
    weight = torch.rand(count, 1, generator=generator).to(points)
    pairs = torch.randint(len(points), (2, count), generator=generator).to(points.device)
    return weight * points[pairs[0]] + (1 - weight) * points[pairs[1]]
