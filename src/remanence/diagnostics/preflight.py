"""Whether the weights of a victim can be explained by its records at all: the first thing to look at before an attack.

Where the objective is large at the truth, minimising it finds something else. Only the owner can look: it takes the
records.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.attacks.weights import residual
from remanence.attacks.weights.residual import Forward, Layer, Left
from remanence.engine import engine_for, trajectory
from remanence.errors import BadInput
from remanence.progress import SOON, track
from remanence.releases import Victim
from remanence.training import CrossEntropy, KnownLoss, Logistic, SquaredError
from remanence.training.losses import LogOf
from remanence.types import Caveat, Params, concat

_KINK = 0.01  # of the typical pre-activation: nearer to zero a record rests on the kink
_ON_MARGIN = 1.1  # of the smallest margin
_TOO_MUCH = 0.1
_LINEAR = 0.8  # MLPs of Tian et al. 2025 lie at 0.91 and above, their ResNet-18 at 0.60
_FEW_EPOCHS = 100  # the way of longer trainings takes too long to go again


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Preflight:
    """Shares are of the squares of all weights."""

    margins: Tensor  # of each record: over its closest competitor, or times its sign; of numbers the error, negated
    on_margin: float  # share of the records
    unexplained: float  # by the records with the best multipliers on their closest competitors: KKT's objective
    at_rest: float  # what the records and the loss's own multipliers leave, and the one factor fitted
    off_kinks: float  # the same in the first layer, of pairs of record and neuron that do not rest on a kink
    kinks: float  # share of the pairs that do
    linear: float | None  # the mean of `linearity`; None after a single epoch, and of long trainings

    def caveats(self) -> tuple[Caveat, ...]:
        turns = None if self.linear is None else gradients_turn(self.linear)
        found = [turns] if turns else []
        if self.unexplained > _TOO_MUCH:
            text = (
                f"At the true records KKT's objective leaves {self.unexplained:.0%} of the weights unexplained: other "
                "records explain them better, and what the attack finds need not be true."
            )
            found.append(Caveat(code="truth-unexplained", text=text))
        if self.off_kinks > _TOO_MUCH:
            text = (
                f"The weights are not at rest: the records leave {self.off_kinks:.0%} of the first layer unexplained, "
                "kinks of ReLU left out. Train with weight decay and for longer, or without it by a rate that follows "
                "the loss (`ByLoss`), before Stationarity can say much."
            )
            found.append(Caveat(code="not-at-rest", text=text))
        return tuple(found)


def preflight(victim: Victim) -> Preflight:
    layers = residual.layers_of(victim.model, victim.final)
    loss, data = victim.training.loss, concat([victim.fixed, victim.private])
    if layers is None or not isinstance(loss, CrossEntropy | Logistic | SquaredError):
        raise BadInput(
            "preflight() looks at MLPs of linear layers with ReLU and a loss of ours, got another net or loss"
        )
    mean, x = residual.mean_of(victim.model, victim.final), data.x.flatten(1)
    seen = residual.forward(layers, x if mean is None else x - mean, None)
    signed = isinstance(loss, SquaredError)
    signs = residual.margin_signs(seen.logits, data.y, signed=signed)
    margins = (signs * seen.logits).sum(-1)
    if isinstance(loss, SquaredError):
        margins = -(loss.grad_logits(seen.logits, data.y)[:, 0] / 2).abs()
    rest, _ = residual.fitted(layers, residual.left(layers, seen, _pulls(loss, seen.logits, data.y)))
    whole = _whole(layers)
    off_kinks, kinks = _first_layer(layers[0], seen, rest)
    smallest = margins.min()
    return Preflight(
        margins=margins,
        on_margin=float((margins <= _ON_MARGIN * smallest).double().mean()) if smallest > 0 else 0.0,
        unexplained=_unexplained(layers, seen, signs, signed=signed) / whole,
        at_rest=float(rest.objective) / whole,
        off_kinks=off_kinks,
        kinks=kinks,
        linear=_linear(victim),
    )


def _pulls(loss: KnownLoss, logits: Tensor, labels: Tensor) -> Tensor:
    """Of the records, up to the one factor that is fitted: a long training without decay leaves less than a number."""
    return -(loss if isinstance(loss, SquaredError) else LogOf(loss=loss)).grad_logits(logits, labels) / len(labels)


def _linear(victim: Victim) -> float | None:
    training = victim.training
    short = 2 <= training.epochs <= _FEW_EPOCHS and isinstance(training.lr_schedule, tuple)
    return float(linearity(victim).mean()) if short else None


def linearity(victim: Victim, *, seed: int = 0) -> Tensor:
    """M_lin of Tian et al. 2025, for each private record: the mean cosine of its gradients at the starts of any two
    epochs. At one, all epochs pull the same way, and an attack that linearises the training has a chance; well below,
    only one that simulates it. `seed` shuffles mini-batches: the victim's own shuffle is not kept."""
    data, training = victim.private, victim.training
    gradient = engine_for(victim.model, training, data.shape).gradient
    if training.epochs < 2:
        raise BadInput(f"linearity() compares epochs, and the victim was trained for {training.epochs}: train for more")
    passed = trajectory(training, victim.model, victim.initial, concat([victim.fixed, data]), seed=seed)
    starts = passed[:: len(passed) // training.epochs]
    pairs = zip(data.x.split(1), data.y.split(1), strict=True)
    each = track(pairs, total=len(data), label="how linear the training is", after=SOON)
    return torch.stack([_mean_cosine(gradient(params, x, y) for params in starts) for x, y in each])


def gradients_turn(linear: float) -> Caveat | None:
    """Which attack on both ends of a training to expect to work, by the mean of `linearity`."""
    if linear >= _LINEAR:
        return None
    text = (
        f"A record's gradients at two epochs have a mean cosine of {linear:.2f}: training is far from linear. Expect "
        "little of Linearised; SimuDy, which simulates it, has a chance."
    )
    return Caveat(code="gradients-turn", text=text)


def _mean_cosine(gradients: Iterable[Params]) -> Tensor:
    """Of all pairs: their sum has the square  count + 2 * (sum over pairs)  where each is scaled to one."""
    count, total = 0, torch.zeros(())
    for each in gradients:
        flat = torch.cat([g.flatten() for g in each.values()])
        count, total = count + 1, total.to(flat) + flat / flat.norm().clamp_min(torch.finfo(flat.dtype).tiny)
    return (total.square().sum() - count) / (count * (count - 1))


def _unexplained(layers: tuple[Layer, ...], seen: Forward, signs: Tensor, *, signed: bool) -> float:
    """The squares that the best multipliers leave: least squares on the Gram matrix of the records' gradients."""
    from scipy.optimize import nnls

    gram, along = residual.gram(layers, seen, residual.backward(layers, seen, signs))
    values, vectors = torch.linalg.eigh(gram.double())
    kept = values > values[-1] * 1e-12
    root = values[kept].sqrt()
    inside = (vectors[:, kept].T @ along.double()) / root
    explained = inside.square().sum()
    if not signed:
        explained -= nnls((root[:, None] * vectors[:, kept].T).cpu().numpy(), inside.cpu().numpy())[1] ** 2
    return max(0.0, _whole(layers) - float(explained))


def _first_layer(layer: Layer, seen: Forward, rest: Left) -> tuple[float, float]:
    """The records tell the multipliers of each neuron by least squares: how far they are from what the loss says."""
    x, rows = seen.inputs[0], layer.weight
    out = x @ rows.T
    if layer.bias is not None:
        out = out + layer.bias
        x, rows = torch.cat([x, torch.ones_like(x[:, :1])], dim=1), torch.cat([rows, layer.bias[:, None]], dim=1)
    multipliers = torch.linalg.lstsq(x.T, rows.T, driver="gelsd" if x.device.type == "cpu" else None).solution
    at_kink = out.abs() < _KINK * out.abs().median()
    wrong = (multipliers - rest.deltas[0]).masked_fill(at_kink, 0.0)
    outside = (rows.T - x.T @ multipliers).square().sum() / rows.square().sum()
    share = wrong.square().sum() / multipliers.square().sum()
    return float(share + outside), float(at_kink.double().mean())


def _whole(layers: tuple[Layer, ...]) -> float:
    """The squares of all weights."""
    weights = [part for layer in layers for part in (layer.weight, layer.bias) if part is not None]
    return float(torch.stack([part.square().sum() for part in weights]).sum())
