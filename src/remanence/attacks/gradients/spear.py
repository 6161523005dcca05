"""SPEAR: exact batches from the low rank and the sparsity of the first layer's gradient.

Dimitrov, Baader, Müller, Vechev, "SPEAR: Exact Gradient Inversion of Batches in Federated Learning" (NeurIPS 2024). The
gradient of a linear layer's weight is  dL/dZ X^T = L R  with L (m, b) and R (b, n) from the singular value
decomposition, so  dL/dZ = L Q  and  X^T = Q^-1 R  for one invertible Q (b, b). Under ReLU half of dL/dZ is zero: a
column q of Q is orthogonal to the rows of L at which its record is off. Rows are sampled b - 1 at a time; the vector
that is orthogonal to them is a column of Q if L q is sparse. The gradient of the bias, dL/dZ 1, scales the columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks.gradients.entry import check_gradient, entry_layer
from remanence.bounds import clamp
from remanence.errors import BadInput, NotEnoughKnowledge, check_min
from remanence.models.normalisation import InputNormalisation
from remanence.models.operations import Linear
from remanence.models.structure import MLP, parse
from remanence.progress import track
from remanence.releases import KnowsGradient, require
from remanence.types import Reconstruction

_CHUNK = 2048  # samples at once
_ZERO = 1e-7  # of the largest entry of L q, in float64; or so many times the relative noise:
_NOISE = 10
_SAME = 1e-4  # of a cosine away from one: two samples of one column
_CONSISTENT = 0.005  # fraction of wrong gates at which sampling ends
_MAX_CANDIDATES = 1000  # that are kept, the sparsest


@final
@dataclass(frozen=True, kw_only=True)
class SPEAR:
    """A whole batch from the first layer of a ReLU net; the objective is the fraction of gates that contradict the
    zeros of dL/dZ."""

    samples: int = 200_000  # of rows, at most; the number that is needed grows exponentially with the batch
    sparsity: float = 0.2  # least fraction of zeros in a column of dL/dZ, the paper's threshold tau

    def __post_init__(self) -> None:
        check_min(self, samples=1)
        if not 0 < self.sparsity < 1:
            message = f"`sparsity` of SPEAR must be between 0 and 1, got {self.sparsity}"
            raise BadInput(message, code="out-of-range", argument="sparsity")

    def run(self, release: KnowsGradient, *, seed: int) -> Reconstruction:
        require(release, KnowsGradient, by=type(self).__name__)
        layer, normalisation, records = _checked(release)
        sent = release.gradient[layer.weight].detach()
        bias = release.gradient[layer.bias].detach().double()
        left, values, right = torch.linalg.svd(sent.double(), full_matrices=False)
        left, right = left[:, :records], values[:records, None] * right[:records]
        noise = float(values[records] / values[records - 1]) if len(values) > records else 0.0
        zero = max(_ZERO, _NOISE * noise)

        weight, shift = release.at[layer.weight].detach().double(), release.at[layer.bias].detach().double()

        def solve(columns: Tensor) -> tuple[Tensor, float]:
            """The records as they enter the layer, and the fraction of gates that contradict them. With fewer than b
            columns, where the paper's algorithm ends without a result, records are mixed with the missing ones."""
            columns = _refined(left, columns, zero)
            unscaled = left @ columns.T
            scales = torch.linalg.pinv(unscaled) @ bias  # lstsq differs from run to run with several threads
            x = torch.linalg.pinv(columns.T * scales) @ right
            nonzero = unscaled.abs() > zero * unscaled.abs().amax(0)
            wrong = float((nonzero != (x @ weight.T + shift > 0).T).double().mean())
            return x, wrong + (records - len(columns)) / records

        x, objective = solve(self._columns(left, zero, solve, seed))
        params = {name: p.detach().double() for name, p in release.at.items()}
        found = clamp(normalisation.records(params, x), release.bounds)
        return Reconstruction(x=found.to(sent), objective=objective)

    def _columns(self, left: Tensor, zero: float, solve: Callable[[Tensor], tuple[Tensor, float]], seed: int) -> Tensor:
        """Columns of Q (n, records) of unit norm, the sparsest of those that were sampled, linearly independent."""
        records = left.shape[1]
        generator = torch.Generator().manual_seed(seed)
        active = (left.norm(dim=1) > 1e-9 * left.norm(dim=1).max()).nonzero().flatten()
        if len(active) < records:
            raise _not_identifiable(f"{len(active)} neurons are active on the batch of {records}")
        found, zeros = left.new_zeros(0, records), left.new_zeros(0)
        chunks = -(-self.samples // _CHUNK)
        for i in track(range(chunks), total=chunks, label="sampling rows", after=1.0, may_stop=True):
            size = min(_CHUNK, self.samples - i * _CHUNK)
            order = torch.rand(size, len(active), generator=generator).to(left.device)
            q = _orthogonal(left[active[order.topk(records - 1).indices]])
            errors = q @ left.T
            sparse = (errors.abs() < zero * errors.abs().amax(1, keepdim=True)).double()
            counts = sparse[:, active].mean(1)
            chosen = (counts >= self.sparsity).nonzero().flatten()
            found, zeros = _distinct(torch.cat([found, q[chosen]]), torch.cat([zeros, counts[chosen]]))
            columns = _independent(found, records)
            if len(columns) == records and solve(columns)[1] < _CONSISTENT:
                return columns
        if not len(found):
            raise _not_identifiable(f"no sample of {self.samples:,} was a sparse column: the batch is too large")
        return _independent(found, records)


def _orthogonal(rows: Tensor) -> Tensor:
    """Unit vectors (n, records) that are orthogonal to `rows` (n, records - 1, records): last columns of complete
    orthogonal factors."""
    if rows.shape[1] == 0:
        return rows.new_ones(len(rows), 1)
    orthogonal: Tensor = torch.linalg.qr(rows.mT, mode="complete")[0]
    return orthogonal[:, :, -1]


def _refined(left: Tensor, columns: Tensor, zero: float) -> Tensor:
    """The columns (n, records) once more, each from all rows of `left` (m, records) at which its record is off. Not in
    the paper: b - 1 sampled rows can be nearly dependent, and then rounding shows."""
    refined = list[Tensor]()
    for column, errors in zip(columns, (columns @ left.T).abs(), strict=True):
        off = left[errors < zero * errors.max()]
        refined.append(torch.linalg.eigh(off.T @ off).eigenvectors[:, 0] if len(off) >= len(column) else column)
    return torch.stack(refined)


def _distinct(q: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
    """The directions that differ, the sparsest first."""
    order = zeros.argsort(descending=True, stable=True)[:_MAX_CANDIDATES]
    q, zeros = q[order], zeros[order]
    repeats = ((q @ q.T).abs() > 1 - _SAME).tril(-1).any(1)
    return q[~repeats], zeros[~repeats]


def _independent(q: Tensor, records: int) -> Tensor:
    """The first `records` of the directions of which none is a combination of those before it."""
    chosen, basis = list[Tensor](), q.new_zeros(0, q.shape[1])
    for each in q:
        residual = each - (each @ basis.T) @ basis
        residual = residual - (residual @ basis.T) @ basis
        if float(residual.norm()) > 1e-6:
            chosen.append(each)
            basis = torch.cat([basis, (residual / residual.norm())[None]])
        if len(chosen) == records:
            break
    return torch.stack(chosen) if chosen else q


def _checked(release: KnowsGradient) -> tuple[Linear, InputNormalisation, int]:
    """The first layer, how records enter it, and the number of records: the batch size, or the rank of the gradient."""
    layer, normalisation = entry_layer(release, by="SPEAR")
    structure = parse(release.model, release.shape)
    if isinstance(structure, MLP) and not (structure.activations and isinstance(structure.activations[0], nn.ReLU)):
        message = "SPEAR needs a ReLU after the first layer, whose zeros it looks for: use GradientMatching or Stein"
        raise BadInput(message, code="unsupported-model", argument="release")
    gradient = release.gradient[layer.weight]
    check_gradient(release, [layer.weight])
    if release.batch_size is None:
        message = "SPEAR needs `batch_size`, the rank of the gradient: give it"
        raise NotEnoughKnowledge(message, code="not-enough-knowledge", argument="batch_size")
    if release.batch_size > min(gradient.shape):
        shape = " x ".join(map(str, gradient.shape))
        raise _not_identifiable(f"{release.batch_size} records have more unknowns than a gradient of {shape} has rank")
    return layer, normalisation, release.batch_size


def _not_identifiable(why: str) -> BadInput:
    message = f"SPEAR cannot disaggregate the gradient: {why}; use FirstLayer or GradientMatching"
    return BadInput(message, code="not-identifiable", argument="release")
