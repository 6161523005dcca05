"""Backpropagated errors of single records from the gradient of a ReLU layer: the sparse vectors of its column space.

The gradient of weight and bias is  G = sum_i d_i p_i = L R,  d_i being the errors of record i at the neurons and p_i
the record with a one behind it: d_i = L q_i, and it is zero where the record is off. SPEAR (Dimitrov et al., NeurIPS
2024) samples rows until all of them are off for one record, and needs exponentially many samples. Ours: a point near a
record, such as the quotient of a row, is off at nearly the same neurons, and its preactivations z say how surely. So

    minimise  sum_j max(0, -z_j) |L_j q|^(1/2)   subject to  |q| = 1

by iteratively reweighted least squares (Chartrand and Yin, ICASSP 2008): gates that are wrong are outliers. Nothing is
asked of the errors but their zeros. Hence sums of gradients over local steps are read like one gradient, as the records
are the same in each and few gates change. With errors D_F that were found, the rows of G are  D_F P + those of the
other records: rows at which no other record is on give P, the records, by a regression that is robust in the same way;
what it leaves of the others are quotients of fewer records, the next starting points.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log
from typing import final

import torch
from torch import Tensor

from remanence.progress import track

_ROUNDS, _STARTS = 8, 160  # of starting points; in a round
_MIXED = 40  # of the starting points of a round are mixtures of two others
_WORK = 8e8  # multiplications of one reweighting, by which the starting points of large batches are fewer
_CHUNK = 32  # starting points at once
_ZERO = 1e-6  # of the largest error: a neuron that is off; or so many times the relative noise:
_NOISE = 10
_MAX_ZERO = 0.1
_POWER = 0.5  # of the errors that are minimised
_FIRST = 0.1  # what is added to errors before they are inverted; it is halved at each reweighting
_INACTIVE = 1e-6  # of the largest row: no record is on
_SPARE = 8  # neurons that are off beyond one for each unknown; rows that only found records are on at
_NEAR = 0.1  # of the mean error: what combinations of the next layer's weights may be away from an error
_FIT = 0.5  # least fraction of errors that they are near to
_WORSE = 0.9  # the same as a fraction of that of the best record; it falls where no record is new
_SAME = 0.98  # cosine of two estimates of one record's errors; of different records it was at most 0.954
_DEPENDENT = 0.01  # distance from the combinations of errors that were found
_PASSES = 4  # of gates, errors and records
_NOISY = 6  # times the mean of errors where the record is off: a larger error says whether its gate is on
_GATES = 0.85  # least fraction of gates of a record that agree with its errors
_PATIENCE = 3  # rounds without a new record


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ReluLayer:
    """What is known of the layer."""

    weight: Tensor  # (neurons, features)
    bias: Tensor  # (neurons,)
    next_weight: Tensor  # (outputs, neurons)
    near: Callable[[Tensor], Tensor]  # inputs (n, features) -> those near the box of records, moved into it, nearest first


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Factors:
    """Records of the batch, as they enter the layer, with their errors: sum_i errors_i x_i is their gradient."""

    x: Tensor  # (n, features)
    errors: Tensor  # (n, neurons)
    whole: bool  # these are all records; of a part of them, some can still be mixtures with the others


def factorise(layer: ReluLayer, gradient: Tensor, *, records: int, seed: int) -> Factors:
    """The records whose errors are found, `records` at most; `gradient` (neurons, features + 1) is of weight and bias."""
    left, values, right = torch.linalg.svd(gradient, full_matrices=False)
    left, right = left[:, :records], values[:records, None] * right[:records]
    noise = float(values[records] / values[records - 1].clamp_min(1e-300)) if len(values) > records else 0.0
    zero = min(max(_ZERO, _NOISE * noise), _MAX_ZERO)
    norms = left.norm(dim=1)
    active = norms > max(_INACTIVE, noise) * norms.max()
    rows, weight, bias, next_weight = left[active], layer.weight[active], layer.bias[active], layer.next_weight[:, active]
    generator = torch.Generator().manual_seed(seed)
    count = max(_CHUNK, min(_STARTS, int(_WORK / (len(rows) * records**2))))

    found, fit = rows.new_zeros(0, records), rows.new_zeros(0)
    points, worse, idle = _quotients(layer, rows @ right)[:count], _WORSE, 0
    for _ in track(range(_ROUNDS), total=_ROUNDS, label="sparse errors", after=1.0, may_stop=True):
        off = (-(points @ weight.T + bias)).clamp_min(0)
        off = off[(off > 0).sum(1) >= records + _SPARE]
        known = len(found)
        if len(off):
            q = torch.cat([_sparsest(rows, each, zero) for each in off.split(_CHUNK)])
            explained = _explained(q @ rows.T, next_weight, zero)[0]
            best = float(torch.cat([fit, explained]).max())
            near = explained >= max(_FIT, worse * best)
            found, fit = _independent(torch.cat([found, q[near]]), torch.cat([fit, explained[near]]), records)
        idle = 0 if len(found) > known else idle + 1
        worse = worse - 0.1 * bool(idle)
        if len(found) == records or idle == _PATIENCE:
            break
        others = _regression(rows, found)[1] @ right if len(found) else rows @ right
        points = _quotients(layer, others)
        points = torch.cat([points[: count - _MIXED], _mixed(points, _MIXED, generator)]) if len(points) else points
    if not len(found):
        return Factors(x=right.new_zeros(0, right.shape[1] - 1), errors=left.new_zeros(0, len(left)), whole=False)

    z = None
    for _ in range(_PASSES):
        found = _denoised(rows, found, z, next_weight, zero)
        inputs = _regression(rows, found)[0] @ right
        x = inputs[:, :-1] / inputs[:, -1:]
        z = x @ weight.T + bias
    errors = inputs[:, -1:] * (found @ left.T)
    on = errors.abs() > zero * errors.abs().amax(1, keepdim=True)
    consistent = (on[:, active] == (z > 0)).double().mean(1) >= _GATES
    return Factors(x=x[consistent], errors=errors[consistent], whole=int(consistent.sum()) == records)


def _quotients(layer: ReluLayer, rows: Tensor) -> Tensor:
    """The points (n, features) that rows (m, features + 1) are multiples of, those near the box of the records."""
    last = rows[:, -1:]
    clear = last[:, 0].abs() > 1e-6 * rows.norm(dim=1)
    return layer.near(rows[clear, :-1] / last[clear])


def _sparsest(rows: Tensor, weights: Tensor, zero: float) -> Tensor:
    """Unit vectors q (n, records) for which sum_j weights_j |rows_j q|^p is least, near the one of p = 2."""
    weights = weights / weights.amax(1, keepdim=True)
    q = _smallest(rows, weights, torch.ones_like(rows[: len(weights), :1]).expand(len(weights), rows.shape[1]), steps=6)
    added = _FIRST
    for _ in range(ceil(log(zero / _FIRST, 0.5)) + 3):
        errors = q @ rows.T
        errors = errors / errors.abs().amax(1, keepdim=True)
        q = _smallest(rows, weights / (errors.square() + added**2) ** (1 - _POWER / 2), q, steps=2)
        added = max(added / 2, zero)
    return q


def _smallest(rows: Tensor, weights: Tensor, start: Tensor, *, steps: int) -> Tensor:
    """The eigenvectors (n, records) of the smallest eigenvalues of rows^T diag(weights_i) rows, by inverse iteration."""
    gram = (rows.T * weights[:, None]) @ rows
    ridge = 1e-13 * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    factor = torch.linalg.cholesky(gram + ridge * torch.eye(rows.shape[1]).to(rows))
    vector = start[:, :, None]
    for _ in range(steps):
        vector = torch.cholesky_solve(vector, factor)
        vector = vector / vector.norm(dim=1, keepdim=True)
    return vector[:, :, 0]


def _explained(errors: Tensor, next_weight: Tensor, zero: float) -> tuple[Tensor, Tensor]:
    """The fraction (n,) of nonzero errors that a combination of the next layer's weights is near to, by least absolute
    deviations, and the combinations (n, neurons): all of them in one gradient, after local steps those of gates that
    did not change."""
    on = (errors.abs() > zero * errors.abs().amax(1, keepdim=True)).to(errors)
    mean = (errors.abs() * on).sum(1, keepdim=True) / on.sum(1, keepdim=True)
    weights = on
    for _ in range(15):
        gram = (next_weight * weights[:, None]) @ next_weight.T
        gram = gram + 1e-9 * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(len(next_weight)).to(gram)
        e = torch.linalg.solve(gram, ((weights * errors) @ next_weight.T)[:, :, None])[:, :, 0]
        away = (errors - e @ next_weight).abs() / mean
        weights = on / away.clamp_min(_NEAR / 10)
    return ((away < _NEAR) * on).sum(1) / on.sum(1), e @ next_weight


def _denoised(rows: Tensor, found: Tensor, z: Tensor | None, next_weight: Tensor, zero: float) -> Tensor:
    """The directions (n, records) once more. Where their errors are  gate * (V^T e)  up to the noise, with the next
    layer's weight V and some e, as in one gradient: from the e for which this comes nearest to the column space. Else
    from all rows at which they are zero.

    Gates of errors that are smaller than the noise are those of the record, once its preactivations `z` are known.
    """
    errors = found @ rows.T
    full = _explained(errors, next_weight, zero)[1]
    gates = errors / full > 0.5
    if z is not None:
        noise = (errors.abs() * (z < 0)).sum(1) / (z < 0).sum(1).clamp_min(1)
        gates = torch.where(full.abs() > _NOISY * noise[:, None], gates, z > 0)
    gates = gates.to(rows)
    gated = gates[:, None] * next_weight
    inside, total = gated @ rows, gated @ gated.mT
    outside = total - inside @ inside.mT
    ridge = 1e-13 * total.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-300)[:, None, None]
    factor = torch.linalg.cholesky(total + ridge * torch.eye(len(next_weight)).to(total))
    half = torch.linalg.solve_triangular(factor, outside, upper=False)
    whitened = torch.linalg.solve_triangular(factor, half.mT, upper=False)
    vectors = torch.linalg.eigh((whitened + whitened.mT) / 2)[1][:, :, :1]
    e = torch.linalg.solve_triangular(factor.mT, vectors, upper=True)
    words = (gated * e).sum(1)
    q = words @ rows
    away = (words - q @ rows.T).norm(dim=1) / words.norm(dim=1)
    off = (errors.abs() < zero * errors.abs().amax(1, keepdim=True)).to(rows)
    sparse = _smallest(rows, off, found, steps=4)
    return torch.where((away < zero)[:, None], q / q.norm(dim=1, keepdim=True), sparse)


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
    scale, added = target.norm(dim=1).mean().clamp_min(1e-300), 0.3
    for _ in range(25 if free.shape[1] else 0):
        away = (target - errors @ fitted).norm(dim=1) / scale
        weights = (away.square() + added**2)[:, None] ** ((_POWER - 2) / 4)
        fitted = torch.linalg.pinv(weights * errors) @ (weights * target)
        added = max(0.7 * added, _ZERO)
    return torch.linalg.pinv(found).T + fitted @ free.T, (target - errors @ fitted) @ free.T


def _mixed(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random convex combinations (count, features) of two points each."""
    weight = torch.rand(count, 1, generator=generator).to(points)
    pairs = torch.randint(len(points), (2, count), generator=generator).to(points.device)
    return weight * points[pairs[0]] + (1 - weight) * points[pairs[1]]
