"""A client's look at the model that a server sent, before any record touches it.

A server that chooses the weights can have clients send single records: by an imprint module (Fowl et al., "Robbing the
Fed", ICLR 2022), trap weights (Boenisch et al., "When the Curious Abandon Honesty", EuroS&P 2023), fishing (Wen et al.,
ICML 2022), kernels that pass images on (Zhao et al., "LOKI", S&P 2024), dead layers (Pasquini et al., CCS 2022). Such
weights have properties that honest ones, random or trained, have not; each check measures one. That nothing is flagged
means that none of these was recognised, no more.

    inspection = inspect_model(net, weights, (1, 28, 28))
    print(inspection)
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from torch import nn

from remanence.diagnostics.inspection.checks import CHECKS
from remanence.diagnostics.inspection.layers import layers_of, scales_of
from remanence.errors import BadInput, printable
from remanence.types import Params

_MAX_FACTOR = 30.0  # of a normalisation


@final
@dataclass(frozen=True, kw_only=True)
class Flag:
    """A property of a layer that honest weights have not."""

    code: str
    layer: str
    statistic: float
    limit: float  # which no honest model of the calibration exceeded
    text: str  # for an engineer: what was measured, and what it lets a server do


@final
@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The flags of a model, and how much of it was looked at."""

    flags: tuple[Flag, ...]
    layers: int
    measured: int  # statistics; a layer that is too small for one is left out

    def to_json(self) -> dict[str, Any]:
        """The inspection as plain dicts and lists."""
        return asdict(self)

    def __str__(self) -> str:
        scope = f"{self.measured} statistics of {self.layers} layers"
        if not self.flags:
            return f"nothing flagged in {scope}: no known trap was recognised, which does not prove that there is none"
        lines = [f"{flag.code:<17} {printable(flag.layer, 60)}: {flag.text}" for flag in self.flags]
        return "\n".join([f"{len(self.flags)} flagged in {scope}: do not train on this model", *lines])


def inspect_model(model: nn.Module | None, weights: Params, shape: Sequence[int] | None = None) -> Inspection:
    """Inspect weights by name. `model` tells embeddings from layers, and `shape`, of one record, which linear layer the
    records enter; without them names and the order of the weights do."""
    for name, w in weights.items():
        if w.is_floating_point() and not bool(w.isfinite().all()):
            message = f"`weights` holds NaN or infinite values in `{name}`: ask the server for them again"
            raise BadInput(message, code="not-finite", argument="weights")
    layers, flags, measured = layers_of(model, weights, shape), list[Flag](), 0
    if not layers:
        message = "`weights` must hold the weight of a linear layer or a convolution, a tensor called `….weight`"
        raise BadInput(message, code="empty", argument="weights")
    for layer in layers:
        for check in CHECKS:
            value = check.statistic(layer)
            measured += value is not None
            if value is not None and value > check.limit:
                flags.append(_flag(check.code, layer.name, value, check.limit, check.measured, check.meaning))
    for scale in scales_of(weights):
        value, measured = float(scale.weight.abs().max()), measured + 1
        if value > _MAX_FACTOR:
            meaning = "a channel that is amplified this much lets the gradient of one record drown the others"
            flags.append(_flag("large-scale", scale.name, value, _MAX_FACTOR, "largest factor", meaning))
    return Inspection(flags=tuple(flags), layers=len(layers), measured=measured)


def _flag(code: str, layer: str, value: float, limit: float, measured: str, meaning: str) -> Flag:
    text = f"{measured} {value:.3g}, the limit of honest models is {limit:g}; {meaning}"
    return Flag(code=code, layer=layer, statistic=value, limit=limit, text=text)
