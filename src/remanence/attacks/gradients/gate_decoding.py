"""Backpropagated errors of single records, decoded from the gradient of a ReLU layer as words of a linear code.

The gradient of the layer's weight is  G = sum_i d_i x_i^T,  d_i being the errors of record i at the neurons: each d_i
lies in the column space of G, whose dimension is the number of records. In d_i = gate_i * (V^T e_i)  are the gates of
the ReLU and the error e_i at the next layer, whose weight V is known. SPEAR (Dimitrov et al., NeurIPS 2024) samples
rows until all of them are off for one record, and needs exponentially many samples. Ours: a point near a record,
such as a quotient of a row, has nearly its gates, and its preactivations z say how reliable each of them is. So

    maximise  sum_j z_j a_j   subject to  0 <= a_j <= 1  and  a * (V^T e) in the column space of G,

the linear programme that decodes linear codes (Feldman, Wainwright, Karger 2005); then e is the error for which the
rounded gates come nearest to the column space. Records that were decoded, d_k = L q_k, leave the others in the known
subspace of the row space that is orthogonal to every q_k: the next starting points are sought there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.progress import track

_ROUNDS, _STARTS = 6, 160  # of starting points; in a round
_REFITS, _STEPS = 3, 150  # of the error at the next layer; of the alternating directions between two of them
_STEP = 0.3  # of the reward of a gate, relative to the mean error
_EXACT = 1e-6  # relative distance of errors from the column space, without noise
_NOISE = 4  # times the relative noise of the smallest direction, which errors may be away
_MAX_DISTANCE = 0.02  # with noise; wrong gates are 0.06 away, by measurement
_SAME = 0.98  # cosine of two estimates of one record's errors; of different records it was at most 0.954
_ALIKE = 0.7  # cosine of the errors at the next layer before and after they are fitted
_PATIENCE = 3  # rounds without a new record


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ReluLayer:
    """What is known of the layer: preactivations of its inputs, and errors that records have behind it."""

    weight: Tensor  # (neurons, features)
    bias: Tensor  # (neurons,)
    next_weight: Tensor  # (outputs, neurons)
    next_errors: Callable[[Tensor], Tensor]  # (n, features) -> (n, classes, outputs)


def decode(layer: ReluLayer, gradient: Tensor, starts: Tensor, *, records: int, seed: int) -> Tensor:
    """The errors (n, neurons) of single records, of arbitrary scale, n being at most `records`.

    `gradient` (neurons, features + 1) is that of weight and bias; `starts` (n, features) are points near records.
    """
    left, values, right = torch.linalg.svd(gradient, full_matrices=False)
    basis, span = left[:, :records], right[:records]
    # The largest singular value of noise is std * (sqrt(m) + sqrt(n)); a direction turns by std * sqrt(m) / value.
    rows, columns = (size**0.5 for size in gradient.shape)
    noise = float(values[records] / values[records - 1].clamp_min(1e-300)) if len(values) > records else 0.0
    noise *= rows / (rows + columns)
    tolerance = min(max(_EXACT, _NOISE * noise), _MAX_DISTANCE)
    generator = torch.Generator().manual_seed(seed)
    found, distance = gradient.new_zeros(0, len(gradient)), gradient.new_zeros(0)
    idle, points = 0, starts[:_STARTS]
    for _ in track(range(_ROUNDS), total=_ROUNDS, label="decoding gates", after=1.0, may_stop=True):
        known = len(found)
        if len(points):
            errors, away = _decoded(layer, basis, points)
            near = away < tolerance
            found, distance = _distinct(torch.cat([found, errors[near]]), torch.cat([distance, away[near]]))
        idle = 0 if len(found) > known else idle + 1
        if idle:  # records of small errors are further away; nearer ones come first all the same
            tolerance = min(3 * tolerance, _MAX_DISTANCE)
        if len(found) >= records or idle == _PATIENCE:
            break
        points = _others(found[: records - 1] @ basis, span, starts, generator)
        points[::2] = _mixed(starts, len(points[::2]), generator)
    return found[:records]


def _decoded(layer: ReluLayer, basis: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Errors (n, neurons) near the column space `basis` for every point and class, and their relative distance (n,)."""
    z = points @ layer.weight.T + layer.bias
    errors = layer.next_errors(points)
    z, e = z.repeat_interleave(errors.shape[1], 0), errors.flatten(0, 1)
    before = e / e.norm(dim=1, keepdim=True)
    best, distance = z.new_zeros(z.shape), z.new_full((len(z),), float("inf"))
    for _ in range(_REFITS):
        full = e @ layer.next_weight
        gates = (_relaxed(z, full, basis) / full > 0.5).to(z)
        refit, away = _nearest_error(gates, layer.next_weight, basis)
        sign = (refit * e).sum(1, keepdim=True).sign()
        e = sign * refit * (e.norm(dim=1, keepdim=True) / refit.norm(dim=1, keepdim=True))
        nearer = (away < distance) & ((e * before).sum(1) > _ALIKE * e.norm(dim=1))
        best[nearer], distance[nearer] = (gates * (e @ layer.next_weight))[nearer], away[nearer]
    return best, distance


def _relaxed(z: Tensor, full: Tensor, basis: Tensor) -> Tensor:
    """gates * full (n, neurons) that the linear programme gives, by the alternating direction method of multipliers."""
    z, full, basis = (each.float() for each in (z, full, basis))  # what comes out is rounded
    low, high = full.clamp_max(0), full.clamp_min(0)
    reward = _STEP * full.abs().mean(1, keepdim=True) * full.sign() * z / z.abs().mean(1, keepdim=True)
    errors, dual = (z > 0) * full, torch.zeros_like(full)
    inside = errors
    projector = basis @ basis.T
    for _ in range(_STEPS):
        inside = (errors - dual) @ projector
        errors = torch.minimum(torch.maximum(inside + dual + reward, low), high)
        dual = dual + inside - errors
    return inside.to(torch.float64)


def _nearest_error(gates: Tensor, next_weight: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """The error e (n, outputs) for which gates * (V^T e) comes nearest to the column space, and its relative distance:
    the smallest of a generalised eigenvalue problem."""
    gated = gates[:, None] * next_weight
    inside = gated @ basis
    total = gated @ gated.mT
    outside = total - inside @ inside.mT
    ridge = 1e-13 * total.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-300)[:, None, None]
    factor = torch.linalg.cholesky(total + ridge * torch.eye(len(next_weight)).to(total))
    half = torch.linalg.solve_triangular(factor, outside, upper=False)
    whitened = torch.linalg.solve_triangular(factor, half.mT, upper=False)
    vectors = torch.linalg.eigh((whitened + whitened.mT) / 2)[1][:, :, :1]
    error = torch.linalg.solve_triangular(factor.mT, vectors, upper=True)[:, :, 0]
    word = (gated * error[:, :, None]).sum(1)
    away = word - (word @ basis) @ basis.T  # not the eigenvalue, which has lost half of the digits
    return error, away.norm(dim=1) / word.norm(dim=1).clamp_min(1e-300)


def _distinct(errors: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
    """The errors, of unit norm, of different records, the nearest to the column space first."""
    order = distance.argsort()
    errors, chosen = errors[order] / errors[order].norm(dim=1, keepdim=True), list[int]()
    cosines = (errors @ errors.T).abs()
    for i in range(len(errors)):
        if not chosen or float(cosines[i, chosen].max()) < _SAME:
            chosen.append(i)
    return errors[chosen], distance[order][chosen]


def _others(known: Tensor, span: Tensor, starts: Tensor, generator: torch.Generator) -> Tensor:
    """Starting points (n, features) among the affine combinations of the records that are not decoded.

    `known` (n, records) are the q_k. Mixtures of `starts` are projected on what is orthogonal to all of them.
    """
    free = torch.linalg.qr(known.T, mode="complete")[0][:, len(known) :]
    rows = free.T @ span  # of (x, 1)
    points = torch.nn.functional.pad(_mixed(starts, _STARTS, generator), (0, 1), value=1.0)
    rows = torch.linalg.qr(rows.T)[0].T
    inside: Tensor = (points @ rows.T) @ rows
    ones = rows[:, -1] @ rows  # the direction inside in which the last coordinate grows
    inside = inside + ((1 - inside[:, -1:]) / ones[-1].clamp_min(1e-12)) * ones
    return inside[:, :-1]


def _mixed(starts: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random convex combinations (count, features) of two starting points each."""
    weight = torch.rand(count, 1, generator=generator).to(starts)
    pairs = torch.randint(len(starts), (2, count), generator=generator).to(starts.device)
    return weight * starts[pairs[0]] + (1 - weight) * starts[pairs[1]]
