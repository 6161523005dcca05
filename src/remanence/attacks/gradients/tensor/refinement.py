"""Records within the span of a gradient's rows, refined until they explain the gradient itself.

Moments estimate with a sampling error what the gradient holds exactly: in a basis V of the span, record i is V c_i, and
row j of the gradient is  sum_i (head_j . residual_i) s'(v_j . c_i + b_j) c_i  with v_j = V' w_j. That is an
overdetermined system of nonlinear equations, which the Levenberg-Marquardt method solves.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import final

import torch
from torch import Tensor

from remanence.attacks.gradients.tensor.decomposition import lstsq_qr
from remanence.attacks.gradients.tensor.wide_layer import WideLayer
from remanence.progress import SOON, track

_MIN_ROWS, _OVERDETERMINED = 400, 8  # rows at least, and equations for each unknown
_LENGTHS = 41  # tried for each direction


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class InSpan:
    """The equations of the gradient in a basis of the span of b records."""

    layer: WideLayer
    projected: Tensor  # (rows, b): v_j, the weights of the rows in the basis
    biases: Tensor  # (rows,)
    head: Tensor  # (rows, r)
    sent: Tensor  # (rows, b): the gradient of the rows in the basis; with that of the biases as one more column

    @classmethod
    def in_blocks(cls, blocks: Iterable[WideLayer], span: Tensor) -> "InSpan":
        """The equations in the basis `span` (d, b) of a layer whose rows may come a block at a time: within the span
        they fit into memory."""
        remaining = iter(blocks)
        first = next(remaining)
        basis = row_space(first.head)
        parts = [_within(layer, span, basis) for layer in chain([first], remaining)]
        projected, biases, head, sent = (torch.cat(each) for each in zip(*parts, strict=True))
        return cls(layer=first, projected=projected, biases=biases, head=head, sent=sent)

    def subset(self, count: int) -> "InSpan":
        """As many rows as give several equations for each unknown of `count` records."""
        return self._select(torch.arange(self._enough(count), device=self.sent.device))

    def clearest(self, records: Tensor, _residuals: Tensor) -> "InSpan":
        """More rows, those whose pre-activations are farthest from zero for all records: near the boundary of a ReLU
        the estimate may lie on the wrong side, and the equation is wrong."""
        at = (self.projected @ records.T + self.biases[:, None]).abs() / records.norm(dim=1)
        return self._select(at.amin(1).argsort(descending=True)[: self._more(len(records))])

    def likeliest(self, records: Tensor, residuals: Tensor) -> "InSpan":
        """As many rows, those that the records explain best: few of these are on the wrong side."""
        errors = self.misfit(records, residuals).norm(dim=1)
        return self._select(errors.argsort()[: self._more(len(records))])

    def _more(self, count: int) -> int:
        enough = self._enough(count)
        return max(enough, min(_OVERDETERMINED * enough, len(self.sent) // 2))

    def _enough(self, count: int) -> int:
        unknowns = count * (self.projected.shape[1] + self.head.shape[1])
        return min(len(self.sent), max(_MIN_ROWS, _OVERDETERMINED * unknowns // self.sent.shape[1]))

    def _select(self, rows: Tensor) -> "InSpan":
        parts = {name: getattr(self, name)[rows] for name in ("projected", "biases", "head", "sent")}
        return InSpan(layer=self.layer, **parts)

    def residuals_for(self, records: Tensor) -> Tensor:
        """(b, r): the residuals with which the records explain the gradient best."""
        atoms = self._atoms(records).flatten(2)  # (b * r, rows * columns)
        solved = lstsq_qr(atoms.flatten(0, 1).T, self.sent.flatten()[:, None])
        return solved.view(len(records), -1)

    def _atoms(self, records: Tensor) -> Tensor:
        """(b, r, rows, columns): the gradient of each record with a residual of one in each output."""
        derivative = self.layer.derivative(self.projected @ records.T + self.biases[:, None])
        return torch.einsum("jr,ji,ic->irjc", self.head, derivative, self._columns(records))

    def _columns(self, records: Tensor) -> Tensor:
        """The records, followed by the one that multiplies the bias."""
        if self.sent.shape[1] == records.shape[1]:
            return records
        return torch.cat([records, torch.ones_like(records[:, :1])], dim=1)

    def misfit(self, records: Tensor, residuals: Tensor) -> Tensor:
        """(rows, columns): the gradient of these records and residuals less the one that was sent."""
        at = self.projected @ records.T + self.biases[:, None]
        return (self.head @ residuals.T * self.layer.derivative(at)) @ self._columns(records) - self.sent

    def scaled(self, directions: Tensor) -> Tensor:
        """The directions at the lengths with which each explains its part of the gradient best."""
        parts = self.sent[:, : directions.shape[1]] @ torch.linalg.pinv(directions)  # (rows, b)
        lengths = torch.logspace(-1.5, 1.5, _LENGTHS).to(directions) / self.layer.row_std
        products = self.projected @ directions.T
        errors = []
        for length in lengths:
            derivative = self.layer.derivative(length * products + self.biases[:, None])
            columns = torch.einsum("jr,ji->ijr", self.head, derivative)
            solved = lstsq_qr(columns, parts.T[:, :, None])
            errors.append((columns @ solved - parts.T[:, :, None]).square().sum((1, 2)))
        stacked = torch.stack(errors)
        flat = stacked.amax(0) < stacked.amin(0) * (1 + 1e-6)  # the length makes no difference, as with ReLU
        best = lengths[stacked.argmin(0)].where(~flat, 1 / self.layer.row_std)
        return directions * best[:, None]

    def signed(self, directions: Tensor, span: Tensor) -> Tensor:
        """The directions with the signs that explain the gradient.

        Where the derivative is an even function both signs do, with opposite residuals, and the gradient of the biases
        decides; where there are no biases either, records are taken to be positive.
        """
        parts = self.sent[:, : directions.shape[1]] @ torch.linalg.pinv(directions)
        products, fits = self.projected @ directions.T, []
        for sign in (1.0, -1.0):
            derivative = self.layer.derivative(sign * products / self.layer.row_std)
            columns = torch.einsum("jr,ji->ijr", self.head, derivative)
            solved = lstsq_qr(columns, parts.T[:, :, None])
            fits.append(((columns @ solved)[:, :, 0], (columns @ solved - parts.T[:, :, None]).square().sum((1, 2))))
        signs = torch.where(fits[0][1] <= fits[1][1], 1.0, -1.0).to(directions)
        even = (fits[0][1] - fits[1][1]).abs() < 1e-6 * (fits[0][1] + fits[1][1])
        if self.sent.shape[1] > directions.shape[1]:
            signs = signs.where(~even, lstsq_qr(fits[0][0].T, self.sent[:, -1:])[:, 0].sign())
        else:
            signs = signs.where(~even, _positive_signs(directions @ span.T))
        return directions * signs[:, None]

    def reseeded(self, records: Tensor, span: Tensor) -> Tensor:
        """The records with the one that contributes least, which may be a duplicate, replaced by the leading direction
        of what the others leave unexplained."""
        misfits = []
        for k in range(len(records)):
            others = torch.cat([records[:k], records[k + 1 :]])
            misfits.append(self.misfit(others, self.residuals_for(others)))
        index = int(torch.stack([each.norm() for each in misfits]).argmin())
        directions = records / records.norm(dim=1, keepdim=True)
        directions[index] = torch.linalg.svd(misfits[index][:, : records.shape[1]], full_matrices=False).Vh[0]
        found = records.clone()
        found[index] = self.scaled(self.signed(directions, span))[index]
        return found

    def solve(self, records: Tensor, *, steps: int) -> tuple[Tensor, Tensor]:
        """Records and residuals (b, r) that explain the gradient, by Levenberg-Marquardt steps from an estimate."""
        residuals, damping = self.residuals_for(records), 1e-3
        misfit = self.misfit(records, residuals)
        for _ in track(range(steps), total=steps, label="equations of the gradient", after=SOON, may_stop=True):
            proposed = self._step(records, residuals, misfit, damping)
            found = self.misfit(*proposed)
            ratio = float(found.norm() / misfit.norm())
            if ratio < 1:
                (records, residuals), misfit, damping = proposed, found, max(damping / 5, 1e-15)
            else:
                damping *= 4
            if 1 - 1e-9 < ratio < 1 or damping > 1e8 or float(misfit.norm()) < 1e-13 * float(self.sent.norm()):
                break
        return records, residuals

    def _step(self, records: Tensor, residuals: Tensor, misfit: Tensor, damping: float) -> tuple[Tensor, Tensor]:
        normal, gradient = self._normal(records, residuals, misfit)
        normal.diagonal().mul_(1 + damping).add_(1e-14 * normal.diagonal().max())
        step = torch.linalg.solve(normal, gradient).view(len(records), -1)
        b = records.shape[1]
        return records - step[:, :b], residuals - step[:, b:]

    def _normal(self, records: Tensor, residuals: Tensor, misfit: Tensor) -> tuple[Tensor, Tensor]:
        """J'J and J'misfit for the Jacobian J of the misfit with respect to the unknowns of one record after the other:
        its coordinates, then its residuals.

        The derivative of row j by unknown u of record i is  factor_jiu column_i  and, if u is coordinate a, first_ji
        more on axis a. So J itself, whose size is the cube of the batch, need not be formed.
        """
        columns, (b, features) = self._columns(records), records.shape
        at, weight = self.projected @ records.T + self.biases[:, None], self.head @ residuals.T  # (rows, b)
        derivative = self.layer.derivative(at)
        first, second = weight * derivative, weight * self.layer.second_derivative(at)
        by_record = second[:, :, None] * self.projected[:, None]
        by_residual = derivative[:, :, None] * self.head[:, None]
        factors = torch.cat([by_record, by_residual], dim=2)
        unknowns, flat = factors.shape[2], factors.flatten(1)
        normal = (flat.T @ flat).view(b, unknowns, b, unknowns) * (columns @ columns.T)[:, None, :, None]
        crossed = torch.zeros_like(normal)
        crossed[..., :features] = (flat.T @ first).view(b, unknowns, b, 1) * records[:, None, None]
        normal += crossed + crossed.permute(2, 3, 0, 1)
        normal[:, range(features), :, range(features)] += first.T @ first
        side = torch.einsum("jiu,ji->iu", factors, misfit @ columns.T)
        side[:, :features] += first.T @ misfit[:, :features]
        return normal.flatten(2).flatten(0, 1), side.flatten()


def _within(layer: WideLayer, span: Tensor, basis: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sent = layer.grad_rows @ span
    if layer.grad_biases is not None:
        sent = torch.cat([sent, layer.grad_biases[:, None]], dim=1)
    return layer.rows @ span, layer.biases, layer.head @ basis, sent


def _positive_signs(x: Tensor) -> Tensor:
    """(n,): the sign of each vector that makes the larger part of it positive."""
    above, below = x.clamp(min=0).norm(dim=1), x.clamp(max=0).norm(dim=1)
    signs: Tensor = torch.where(above >= below, 1.0, -1.0).to(x)
    return signs


def row_space(head: Tensor) -> Tensor:
    """(outputs, r): an orthonormal basis of the combinations of outputs that the rows distinguish."""
    _, values, vectors = torch.linalg.svd(head, full_matrices=False)
    found: Tensor = vectors[values > 1e-9 * values[0]].T
    return found
