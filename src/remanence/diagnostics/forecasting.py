"""What weights tell beforehand of how much Stationarity will find in them: no record and no search is needed.

At a stationary point of a loss with weight decay, ReLU being homogeneous, incoming and outgoing weights of every
hidden neuron have the same norm: summing theta dL/dtheta over the incoming ones and over the outgoing ones gives the
same number (Du, Hu, Lee 2018), and weight decay balances it. What is left of the initial weights is noise, above which
the directions of records have to stand out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log10
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks.weights import residual
from remanence.attacks.weights.row_space import above_noise
from remanence.engine.decompositions import singular_values
from remanence.errors import BadInput
from remanence.types import Params

_MIN_SCALE = 1e-6


@final
@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A logistic regression of the fraction found on standardised features."""

    centre: tuple[float, ...]
    scale: tuple[float, ...]
    coefficients: tuple[float, ...]  # the first is the intercept

    def fraction(self, features: Sequence[float]) -> float:
        """The expected fraction found."""
        standard = [(f - c) / s for f, c, s in zip(features, self.centre, self.scale, strict=True)]
        return 1 / (1 + exp(-sum(a * f for a, f in zip(self.coefficients, (1.0, *standard), strict=True))))


# by benchmarks/forecast.py on 48 victims of 10 to 900 photographs of 32 x 32 pixels
FITTED = Fitted(
    centre=(-1.5902, 0.824435, 1.53088, 0.791667),
    scale=(1.15249, 0.219348, 0.429539, 0.406116),
    coefficients=(1.99074, -0.886796, -0.0787621, -1.14606, 0.767895),
)


@final
@dataclass(frozen=True, kw_only=True)
class WeightsForecast:
    """Properties of trained weights, and the fraction of the records that Stationarity is expected to find."""

    imbalance: float  # of hidden neurons: |in^2 - out^2| over in^2 + out^2, root mean square weighted by the latter
    above_noise: float  # the fraction of the directions of records that stand above what is left of the initial weights
    records: int  # the more, the more a search has to tell apart
    neurons: int  # of the first layer
    outputs: int

    @property
    def features(self) -> tuple[float, ...]:
        """What the forecast is made of."""
        return log10(max(self.imbalance, 1e-3)), self.above_noise, log10(self.records), log10(self.outputs)

    @property
    def fraction(self) -> float:
        """The expected fraction found: a logistic regression on victims of `ablations.ordinary_*`."""
        return FITTED.fraction(self.features)


def fit(features: Sequence[Sequence[float]], found: Sequence[float], records: Sequence[int]) -> Fitted:
    """Fit fractions found in victims of so many records each."""
    from sklearn.linear_model import LogisticRegression

    x = torch.tensor(features, dtype=torch.float64)
    centre, scale = x.mean(0), x.std(0, correction=0)
    standard = ((x - centre) / scale.clamp_min(_MIN_SCALE)).numpy()
    weights = torch.tensor([[f * n, (1 - f) * n] for f, n in zip(found, records, strict=True)]).T.flatten().numpy()
    rows, labels = torch.tensor(standard).repeat(2, 1).numpy(), [1] * len(found) + [0] * len(found)
    made = LogisticRegression().fit(rows, labels, sample_weight=weights)
    return Fitted(
        centre=tuple(centre.tolist()),
        scale=tuple(scale.clamp_min(_MIN_SCALE).tolist()),
        coefficients=(float(made.intercept_[0]), *made.coef_[0].tolist()),
    )


def forecast(model: nn.Module, final: Params, shape: Sequence[int], *, records: int) -> WeightsForecast:
    """The forecast for an MLP that was trained on so many records. That neurons are balanced holds for ReLU and leaky
    ReLU; of smooth activations it is a guess."""
    layers = residual.layers_of(model, final, shape, relu_only=False)
    if layers is None or len(layers) < 2:
        why = residual.why_no_layers(model, shape, relu_only=False) or "the net has no hidden layer"
        raise BadInput(f"a forecast needs an MLP as `model`: {why}", code="unsupported-model", argument="model")
    residual.check_layers(layers)
    first = layers[0].weight
    if not isinstance(records, int) or not 1 <= records < min(first.shape):
        message = (
            f"`records` of a forecast must lie in 1..{min(first.shape) - 1}, below the rows and columns of the first "
            f"layer, whose other directions tell what is left of the initial weights, got {records}"
        )
        raise BadInput(message, code="out-of-range", argument="records")
    values = singular_values(first)
    return WeightsForecast(
        imbalance=_imbalance(layers),
        above_noise=float(above_noise(first, values, records)[:records].double().mean()),
        records=records,
        neurons=len(first),
        outputs=len(layers[-1].weight),
    )


def _imbalance(layers: Sequence[residual.Layer]) -> float:
    difference, total = layers[0].weight.new_zeros(()), layers[0].weight.new_zeros(())
    for layer, following in pairwise(layers):
        incoming = layer.weight.square().sum(1) + (0.0 if layer.bias is None else layer.bias.square())
        outgoing = following.weight.square().sum(0)
        difference = difference + (incoming - outgoing).square().sum()
        total = total + _square(incoming + outgoing)
    return float((difference / total).sqrt())


def _square(x: Tensor) -> Tensor:
    return x.square().sum()
