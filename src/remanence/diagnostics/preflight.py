"""Whether the true records explain a victim's weights: the first thing to check before an attack on weights alone.

Where an attack's objective is large at the truth, minimising it finds something else. The check takes the records, so
only the owner can run it.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.attacks.weights import residual
from remanence.attacks.weights.residual import Activations, Layer, Residual
from remanence.diagnostics.linearity import gradient_linearity, linearity_caveat
from remanence.errors import BadInput
from remanence.models import input_normalisation
from remanence.releases import Victim
from remanence.training import CrossEntropy, KnownLoss, Logistic, SquaredError
from remanence.training.losses import LogOf
from remanence.types import Caveat, concat

_BOUNDARY = 0.01  # of the median pre-activation: closer to zero a record lies on the boundary of a ReLU
_ON_MARGIN = 0.1  # of the median margin, either way
_LARGE = 0.1
_MAX_EPOCHS = 100  # repeating longer trainings takes too long


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Preflight:
    """How well the true records explain the weights. Residuals are fractions of the squared norm of the weights."""

    margins: Tensor  # (records,): over the closest competitor, or times the sign; of a regression the negated error
    on_margin: float  # fraction of the records within 10 % of the median margin
    unexplained: float  # KKT's objective at the truth: the residual with the best multipliers
    stationarity_residual: float  # with the multipliers that the loss gives, up to one fitted factor
    first_layer_residual: float  # that of the first layer, without the pairs of `boundary_fraction`
    boundary_fraction: float  # of the pairs of record and neuron, those on the boundary of a ReLU
    linearity: float | None  # the mean of `gradient_linearity`; None after one epoch, and of long trainings

    def caveats(self) -> tuple[Caveat, ...]:
        turns = None if self.linearity is None else linearity_caveat(self.linearity)
        found = [turns] if turns else []
        if self.unexplained > _LARGE:
            text = (
                f"At the true records KKT's objective leaves {self.unexplained:.0%} of the weights unexplained: other "
                "records explain them better, and what the attack finds need not be true."
            )
            found.append(Caveat(code="truth-unexplained", text=text))
        if self.first_layer_residual > _LARGE:
            text = (
                f"The weights are not stationary: the records leave {self.first_layer_residual:.0%} of the first layer "
                "unexplained, boundaries of ReLU left out. Train with weight decay and for longer, or without it by a "
                "learning rate that follows the loss (`ByLoss`), before Stationarity can say much."
            )
            found.append(Caveat(code="not-at-rest", text=text))
        return tuple(found)


def run_preflight(victim: Victim) -> Preflight:
    """Check how well the true records explain the weights of an MLP with ReLU."""
    layers = residual.layers_of(victim.model, victim.final, victim.private.shape)
    loss, data = victim.training.loss, concat([victim.fixed, victim.private])
    if layers is None or not isinstance(loss, CrossEntropy | Logistic | SquaredError):
        message = "run_preflight() takes MLPs of linear layers with ReLU and a loss of ours, got another net or loss"
        raise BadInput(message, code="unsupported-model", argument="victim")
    x = input_normalisation(victim.model, data.shape).inputs(victim.final, data.x).flatten(1)
    activations = residual.forward(layers, x, None)
    signed = isinstance(loss, SquaredError)
    signs = residual.margin_signs(activations.logits, data.y, signed=signed)
    margins = (signs * activations.logits).sum(-1)
    if isinstance(loss, SquaredError):
        margins = -(loss.grad_logits(activations.logits, data.y)[:, 0] / 2).abs()
    multipliers = _multipliers(loss, activations.logits, data.y)
    stationarity, _ = residual.fit_scale(layers, residual.unexplained(layers, activations, multipliers))
    total = _squared_norm(layers)
    first_layer_residual, boundary_fraction = _first_layer(layers[0], activations, stationarity)
    median = margins.median()
    return Preflight(
        margins=margins,
        on_margin=float(((margins - median).abs() <= _ON_MARGIN * median.abs()).double().mean()),
        unexplained=_unexplained(layers, activations, signs, signed=signed) / total,
        stationarity_residual=float(stationarity.objective) / total,
        first_layer_residual=first_layer_residual,
        boundary_fraction=boundary_fraction,
        linearity=_mean_linearity(victim),
    )


def _multipliers(loss: KnownLoss, logits: Tensor, labels: Tensor) -> Tensor:
    """The multipliers that the loss gives each record, up to the factor that is fitted: long trainings without weight
    decay leave a loss below the smallest float, so its logarithm is differentiated."""
    smoothed = isinstance(loss, CrossEntropy) and loss.label_smoothing > 0
    falling = loss if isinstance(loss, SquaredError) or smoothed else LogOf(loss=loss)
    return -falling.grad_logits(logits, labels) / len(labels)


def _mean_linearity(victim: Victim) -> float | None:
    training = victim.training
    short = 2 <= training.epochs <= _MAX_EPOCHS and isinstance(training.lr_schedule, tuple)
    return float(gradient_linearity(victim).mean()) if short else None


def _unexplained(layers: tuple[Layer, ...], activations: Activations, signs: Tensor, *, signed: bool) -> float:
    """The squared residual with the best multipliers, by least squares on the Gram matrix of the records' gradients;
    the multipliers are not negative unless they are `signed`."""
    from scipy.optimize import nnls

    gram, products = residual.gram(layers, activations, residual.backward(layers, activations, signs))
    values, vectors = torch.linalg.eigh(gram.double())
    positive = values > values[-1] * 1e-12
    root = values[positive].sqrt()
    inside = (vectors[:, positive].T @ products.double()) / root
    explained = inside.square().sum()
    if not signed:
        explained -= nnls((root[:, None] * vectors[:, positive].T).cpu().numpy(), inside.cpu().numpy())[1] ** 2
    return max(0.0, _squared_norm(layers) - float(explained))


def _first_layer(layer: Layer, activations: Activations, stationarity: Residual) -> tuple[float, float]:
    """The residual of the first layer, and the fraction of pairs on the boundary of a ReLU.

    Least squares on the records gives the multipliers of each neuron; they are compared with those of the loss.
    """
    x, rows = activations.inputs[0], layer.weight
    out = x @ rows.T
    if layer.bias is not None:
        out = out + layer.bias
        x, rows = torch.cat([x, torch.ones_like(x[:, :1])], dim=1), torch.cat([rows, layer.bias[:, None]], dim=1)
    multipliers = torch.linalg.lstsq(x.T, rows.T, driver="gelsd" if x.device.type == "cpu" else None).solution
    on_boundary = out.abs() < _BOUNDARY * out.abs().median()
    difference = (multipliers - stationarity.deltas[0]).masked_fill(on_boundary, 0.0)
    outside = (rows.T - x.T @ multipliers).square().sum() / rows.square().sum()
    inside = difference.square().sum() / multipliers.square().sum()
    return float(inside + outside), float(on_boundary.double().mean())


def _squared_norm(layers: tuple[Layer, ...]) -> float:
    """The sum of the squares of all weights."""
    weights = [part for layer in layers for part in (layer.weight, layer.bias) if part is not None]
    return float(torch.stack([part.square().sum() for part in weights]).sum())
