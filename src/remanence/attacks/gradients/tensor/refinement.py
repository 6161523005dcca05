"""Records within the span of a gradient's rows, moved until they explain the gradient itself.

What a moment estimates with the error of a sample, the gradient holds exactly: in a basis V of the span, record i is
V c_i, and row j of the gradient is  sum_i (head_j . residual_i) s'(v_j . c_i + b_j) c_i  with v_j = V' w_j. That is a
small system of equations, far more of them than unknowns, and Levenberg and Marquardt's method solves it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import final

import torch
from torch import Tensor

from remanence.attacks.gradients.tensor.decomposition import least_squares
from remanence.attacks.gradients.tensor.wide_layer import WideLayer

_FEWEST, _OVER = 400, 8  # rows at least, and equations for each unknown
_SCALES = 41  # lengths tried


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class InSpan:
    """The equations: `sent` (rows, b) and, with biases, one more column, at `places` v_j."""

    layer: WideLayer
    places: Tensor  # (rows, b)
    offsets: Tensor
    head: Tensor  # (rows, r)
    sent: Tensor  # (rows, b) or (rows, b + 1)

    @classmethod
    def of(cls, layer: WideLayer, span: Tensor) -> "InSpan":
        return cls.in_blocks([layer], span)

    @classmethod
    def in_blocks(cls, blocks: Iterable[WideLayer], span: Tensor) -> "InSpan":
        """Of a layer whose rows come a block at a time: within the span they are narrow, and all are kept."""
        rest = iter(blocks)
        first = next(rest)
        turn = row_space(first.head)
        parts = [_within(layer, span, turn) for layer in chain([first], rest)]
        places, offsets, head, sent = (torch.cat(each) for each in zip(*parts, strict=True))
        return cls(layer=first, places=places, offsets=offsets, head=head, sent=sent)

    def some(self, count: int) -> "InSpan":
        """So many rows as say several times what is unknown of `count` records."""
        return self._rows(torch.arange(self._enough(count), device=self.sent.device))

    def clearest(self, records: Tensor, _residuals: Tensor) -> "InSpan":
        """More of all rows, those that every record is farthest from zero on: at a kink, such as ReLU's, a row on the
        wrong side says nothing true."""
        at = (self.places @ records.T + self.offsets[:, None]).abs() / records.norm(dim=1)
        return self._rows(at.amin(1).argsort(descending=True)[: self._more(len(records))])

    def likeliest(self, records: Tensor, residuals: Tensor) -> "InSpan":
        """As many of all rows, those that the records explain best: those on the wrong side are few."""
        errors = self.misfit(records, residuals).norm(dim=1)
        return self._rows(errors.argsort()[: self._more(len(records))])

    def _more(self, count: int) -> int:
        enough = self._enough(count)
        return max(enough, min(_OVER * enough, len(self.sent) // 2))

    def _enough(self, count: int) -> int:
        unknowns = count * (self.places.shape[1] + self.head.shape[1])
        return min(len(self.sent), max(_FEWEST, _OVER * unknowns // self.sent.shape[1]))

    def _rows(self, own: Tensor) -> "InSpan":
        parts = {name: getattr(self, name)[own] for name in ("places", "offsets", "head", "sent")}
        return InSpan(layer=self.layer, **parts)

    def residuals_for(self, records: Tensor) -> Tensor:
        """(b, r): with which residuals the records explain the gradient best."""
        atoms = self._atoms(records).flatten(2)  # (b * r, rows * columns)
        solved = least_squares(atoms.flatten(0, 1).T, self.sent.flatten()[:, None])
        return solved.view(len(records), -1)

    def _atoms(self, records: Tensor) -> Tensor:
        """(b, r, rows, columns): what a unit of each residual of each record puts into the gradient."""
        slope = self.layer.slope(self.places @ records.T + self.offsets[:, None])
        return torch.einsum("jr,ji,ic->irjc", self.head, slope, self._columns(records))

    def _columns(self, records: Tensor) -> Tensor:
        """The records, and behind them the one that multiplies the bias."""
        if self.sent.shape[1] == records.shape[1]:
            return records
        return torch.cat([records, torch.ones_like(records[:, :1])], dim=1)

    def misfit(self, records: Tensor, residuals: Tensor) -> Tensor:
        at = self.places @ records.T + self.offsets[:, None]
        return (self.head @ residuals.T * self.layer.slope(at)) @ self._columns(records) - self.sent

    def scaled(self, directions: Tensor) -> Tensor:
        """The directions at the lengths with which each explains its own part of the gradient best."""
        parts = self.sent[:, : directions.shape[1]] @ torch.linalg.pinv(directions)  # (rows, b)
        lengths = torch.logspace(-1.5, 1.5, _SCALES).to(directions) / self.layer.spread
        along = self.places @ directions.T
        errors = []
        for length in lengths:
            slope = self.layer.slope(length * along + self.offsets[:, None])
            columns = torch.einsum("jr,ji->ijr", self.head, slope)
            solved = least_squares(columns, parts.T[:, :, None])
            errors.append((columns @ solved - parts.T[:, :, None]).square().sum((1, 2)))
        stacked = torch.stack(errors)
        flat = stacked.amax(0) < stacked.amin(0) * (1 + 1e-6)  # the length makes no difference, as with ReLU
        best = lengths[stacked.argmin(0)].where(~flat, 1 / self.layer.spread)
        return directions * best[:, None]

    def signed(self, directions: Tensor, span: Tensor) -> Tensor:
        """Of each direction and its opposite the one that explains the gradient.

        Where the slope is an even function both do, with opposite residuals, and the gradient of the biases decides;
        where there are no biases either, a record lies above zero.
        """
        parts = self.sent[:, : directions.shape[1]] @ torch.linalg.pinv(directions)
        along, fits = self.places @ directions.T, []
        for sign in (1.0, -1.0):
            columns = torch.einsum("jr,ji->ijr", self.head, self.layer.slope(sign * along / self.layer.spread))
            solved = least_squares(columns, parts.T[:, :, None])
            fits.append(((columns @ solved)[:, :, 0], (columns @ solved - parts.T[:, :, None]).square().sum((1, 2))))
        ahead = torch.where(fits[0][1] <= fits[1][1], 1.0, -1.0).to(directions)
        even = (fits[0][1] - fits[1][1]).abs() < 1e-6 * (fits[0][1] + fits[1][1])
        if self.sent.shape[1] > directions.shape[1]:
            ahead = ahead.where(~even, least_squares(fits[0][0].T, self.sent[:, -1:])[:, 0].sign())
        else:
            ahead = ahead.where(~even, _above_zero(directions @ span.T))
        return directions * ahead[:, None]

    def reseeded(self, records: Tensor, span: Tensor) -> Tensor:
        """The record that is missed least, one that came twice it may be, gives way to the direction in which the rows
        that the others leave unexplained lie."""
        left = []
        for k in range(len(records)):
            others = torch.cat([records[:k], records[k + 1 :]])
            left.append(self.misfit(others, self.residuals_for(others)))
        least = int(torch.stack([each.norm() for each in left]).argmin())
        directions = records / records.norm(dim=1, keepdim=True)
        directions[least] = torch.linalg.svd(left[least][:, : records.shape[1]], full_matrices=False).Vh[0]
        found = records.clone()
        found[least] = self.scaled(self.signed(directions, span))[least]
        return found

    def solved(self, records: Tensor, *, rounds: int) -> tuple[Tensor, Tensor]:
        """Records and residuals (b, r) that explain the gradient, from a first guess at the records."""
        residuals, damping = self.residuals_for(records), 1e-3
        misfit = self.misfit(records, residuals)
        for _ in range(rounds):
            moved = self._step(records, residuals, misfit, damping)
            found = self.misfit(*moved)
            ratio = float(found.norm() / misfit.norm())
            if ratio < 1:
                (records, residuals), misfit, damping = moved, found, max(damping / 5, 1e-15)
            else:
                damping *= 4
            if 1 - 1e-9 < ratio < 1 or damping > 1e8 or float(misfit.norm()) < 1e-13 * float(self.sent.norm()):
                break
        return records, residuals

    def _step(self, records: Tensor, residuals: Tensor, misfit: Tensor, damping: float) -> tuple[Tensor, Tensor]:
        normal, slope = self._normal(records, residuals, misfit)
        normal.diagonal().mul_(1 + damping).add_(1e-14 * normal.diagonal().max())
        move = torch.linalg.solve(normal, slope).view(len(records), -1)
        cut = records.shape[1]
        return records - move[:, :cut], residuals - move[:, cut:]

    def _normal(self, records: Tensor, residuals: Tensor, misfit: Tensor) -> tuple[Tensor, Tensor]:
        """J'J and J'misfit for the derivatives J of the misfit by what is unknown of one record after the other: its
        coordinates, then its residuals.

        By unknown u of record i the derivative of row j is  factor_jiu column_i, and along axis a, if u is coordinate
        a, slope_ji more. So J itself, whose size is the cube of the batch, need not be formed.
        """
        columns, (b, cut) = self._columns(records), records.shape
        at, weight = self.places @ records.T + self.offsets[:, None], self.head @ residuals.T  # (rows, b)
        bare = self.layer.slope(at)
        slope, bend = weight * bare, weight * self.layer.curvature(at)
        factors = torch.cat([bend[:, :, None] * self.places[:, None], bare[:, :, None] * self.head[:, None]], dim=2)
        unknowns, flat = factors.shape[2], factors.flatten(1)
        normal = (flat.T @ flat).view(b, unknowns, b, unknowns) * (columns @ columns.T)[:, None, :, None]
        crossed = torch.zeros_like(normal)
        crossed[..., :cut] = (flat.T @ slope).view(b, unknowns, b, 1) * records[:, None, None]
        normal += crossed + crossed.permute(2, 3, 0, 1)
        normal[:, range(cut), :, range(cut)] += slope.T @ slope
        side = torch.einsum("jiu,ji->iu", factors, misfit @ columns.T)
        side[:, :cut] += slope.T @ misfit[:, :cut]
        return normal.flatten(2).flatten(0, 1), side.flatten()


def _within(layer: WideLayer, span: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    own = layer.gradient @ span
    if layer.of_offsets is not None:
        own = torch.cat([own, layer.of_offsets[:, None]], dim=1)
    return layer.rows @ span, layer.offsets, layer.head @ turn, own


def _above_zero(x: Tensor) -> Tensor:
    above, below = x.clamp(min=0).norm(dim=1), x.clamp(max=0).norm(dim=1)
    signs: Tensor = torch.where(above >= below, 1.0, -1.0).to(x)
    return signs


def row_space(head: Tensor) -> Tensor:
    """(outputs, r): the combinations of outputs that the rows tell apart."""
    _, values, turn = torch.linalg.svd(head, full_matrices=False)
    found: Tensor = turn[values > 1e-9 * values[0]].T
    return found
