"""Points near the records of a batch from one gradient of a ReLU layer: gradient matching in its row space.

The gradient of weight and bias is  G = sum_i d_i p_i,  d_i being the errors of record i at the m neurons and p_i the
record with a one behind it. With the singular values  G = U S V  every p_i is a combination of the b rows of V: unknown
are not the values of all records but the b x b coefficients T of  P = T diag(s) V,  s = c S^(3/4) being about the size
of the records in each direction. For given labels all follows from them: preactivations  Z = P [W, w]^T,  gates Z > 0,
activations, errors D(T). And  D(T)^T P = G  are m b equations for b^2 unknowns. So

    minimise  || (D(T)^T P V^T - U S) S^(-1/2) ||^2 + decay ||T||^2   over T with the last entry of every p_i one

by Adam (Kingma and Ba 2015) from a random orthogonal T, as that of the records is where s is exact. A gate has no
derivative: it is taken exactly, and backwards for sigmoid(z / t) (straight through: Bengio, Leonard, Courville 2013).
An iteration is five products of b x b and b x m, whatever the number of features.

What comes out is near most of the records, and exact for none: `sparse_columns` begins with it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.progress import track

_ITERATIONS, _RATE = 1000, 0.2  # of up to _RECORDS records, the rate falling to zero along a cosine
_RECORDS = 128  # of more, by the square of their number
_BETAS, _EPS = (0.9, 0.99), 1e-12  # of Adam
_RANK = 1e-6  # of the largest singular value: smaller ones are rounding
_SIZE = 0.75  # power of the singular values that is about the size of the records
_WEIGHT = 0.5  # power of the singular values by which the equations are divided
_DECAY = 0.1  # norm of the gradient of the decay, relative to that of the equations
_WIDE, _NARROW = 1.0, 0.3  # temperature of the gate's derivative, at first and in the end, relative to preactivations


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RowSpace:
    """The row space of a layer's gradient, in float32."""

    basis: Tensor  # (records, features + 1), orthonormal
    target: Tensor  # (neurons, records), the gradient in this basis
    values: Tensor  # (records,), its singular values
    size: Tensor  # (records,), root mean square of the coordinates that records are taken to have

    @classmethod
    def from_gradient(cls, gradient: Tensor, *, records: int, norm: float) -> "RowSpace":
        """Of the gradient (neurons, features + 1) of weight and bias; `norm` is about that of a record with a one."""
        left, values, basis = (each.float() for each in torch.linalg.svd(gradient, full_matrices=False))
        values = values[:records].clamp_min(_RANK * float(values[0]))
        size = values**_SIZE
        return cls(
            basis=basis[:records],
            target=left[:, :records] * values,
            values=values,
            size=size * (norm / float(size.norm())),
        )

    def sample(self, *, seed: int) -> Tensor:
        """Records (records, features) that have these sizes, in random directions."""
        return self._inputs(self._orthogonal(seed))

    def match(self, weight: Tensor, bias: Tensor, backpropagated: Callable[[Tensor], Tensor], *, seed: int) -> Tensor:
        """Records (records, features) whose gradient is near this one, from those of `sample`; `backpropagated` gives
        the errors (records, neurons) behind the ReLU for its activations."""
        product = torch.cat([weight, bias[:, None]], 1).float() @ self.basis.T
        metric = 1 / (self.values ** (2 * _WEIGHT))
        metric = metric / (self.target.square() * metric).sum()
        coefficients = self._orthogonal(seed)
        count = int(_ITERATIONS * max(1.0, len(coefficients) / _RECORDS) ** 2)
        adam = torch.optim.Adam([coefficients], lr=_RATE, betas=_BETAS, eps=_EPS)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, count)
        for step in track(range(count), total=count, label="row matching", after=1.0, may_stop=True):
            p = coefficients * self.size
            z = p @ product.T
            gate = (z > 0).to(z)
            delta = backpropagated(z * gate)
            errors = gate * delta
            away = (errors.T @ p - self.target) * metric
            temperature = _WIDE * (_NARROW / _WIDE) ** (step / count) * z.std(0).mean()
            soft = torch.sigmoid(z / temperature)
            at_z = (p @ away.T) * delta * soft * (1 - soft) / temperature
            gradient = self._along((errors @ away + at_z @ product) * self.size)
            coefficients.grad = gradient + _DECAY * gradient.norm() / coefficients.norm() * coefficients
            adam.step()
            schedule.step()
            coefficients.copy_(self._feasible(coefficients))
        return self._inputs(coefficients)

    def _orthogonal(self, seed: int) -> Tensor:
        """Random orthogonal coefficients (records, records), moved to where the last entries are one."""
        count = len(self.values)
        normal = torch.randn(count, count, generator=torch.Generator().manual_seed(seed)).to(self.values)
        return self._feasible(torch.linalg.qr(normal)[0] * count**0.5)

    def _feasible(self, coefficients: Tensor) -> Tensor:
        """The nearest coefficients for which the last entry of every record is one."""
        ones = self.size * self.basis[:, -1]
        return coefficients + (1 - coefficients @ ones)[:, None] * ones / ones.square().sum()

    def _along(self, direction: Tensor) -> Tensor:
        """Without what would change the last entries."""
        ones = self.size * self.basis[:, -1]
        return direction - (direction @ ones)[:, None] * ones / ones.square().sum()

    def _inputs(self, coefficients: Tensor) -> Tensor:
        return (coefficients * self.size) @ self.basis[:, :-1]
