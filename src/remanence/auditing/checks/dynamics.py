"""What the training left: is the end stationary, was it linear, how many numbers tell of how many unknowns?"""

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from remanence.auditing.answer.report import Check
from remanence.auditing.checks.outputs import losses_of, released_loss
from remanence.models import Unsupported, apply, first_linear, layer_of
from remanence.models.operations import Flatten, Normalisation
from remanence.types import Data, Params, concat

_FEW = 4  # records whose own gradients are compared
_STATIONARY = 0.9  # cosine of minus the gradient with the weights
_LINEAR = 0.8  # as in diagnostics/linearity.py


def check_dynamics(
    release: Any, before: Params | None, after: Params | None, private: Data, updated: tuple[str, ...], *, records: int
) -> tuple[list[Check], dict[str, float | None]]:
    """Stationarity of the final weights, linearity of the way to them, the rank of the first layer, and the parameters
    per unknown; `private` are some of the `records` private ones."""
    params = after if after is not None else before
    assert params is not None
    checks, numbers = _unknowns(release, params, private.shape, records, updated)
    rank_checks, rank_numbers = _rank(release, params, records)
    checks, numbers = checks + rank_checks, numbers | rank_numbers
    if after is None:
        return checks, numbers
    try:
        fixed = getattr(release, "fixed", None)
        gradient = _gradient(release, after, private if fixed is None else concat([fixed, private]))
        more, found = _stationarity(release, after, gradient)
        checks, numbers = checks + more, numbers | found
        if before is not None and set(before) == set(after):
            more, found = _linearity(release, before, after, private)
            checks, numbers = checks + more, numbers | found
    except RuntimeError as fault:  # of a model that cannot be differentiated
        text = f"The model cannot be differentiated at its weights: {str(fault).partition(chr(10))[0]}"
        checks.append(Check(name="stationarity", status="warning", text=text))
    return checks, numbers


def _gradient(release: Any, params: Params, data: Data) -> Params:
    """The gradient of the mean loss over the records with respect to the parameters."""
    loss = released_loss(release)
    trained = {name: params[name] for name, _ in release.model.named_parameters()}
    others = {name: p for name, p in params.items() if name not in trained}

    def total(some: Params, x: Tensor, y: Tensor) -> Tensor:
        return losses_of(apply(release.model, some | others, x), y, loss).sum()

    parts = [grad(total)(trained, x, y) for x, y in zip(data.x.split(128), data.y.split(128), strict=True)]
    return {name: torch.stack([part[name] for part in parts]).sum(0) / len(data) for name in trained}


def _flat(params: Params, names: list[str]) -> Tensor:
    return torch.cat([params[name].detach().double().flatten() for name in names])


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.dot(one, other) / (one.norm() * other.norm()).clamp_min(1e-300))


def _stationarity(release: Any, final: Params, gradient: Params) -> tuple[list[Check], dict[str, float | None]]:
    """Where weight decay holds the gradient of the loss in balance, minus the gradient points along the weights."""
    training = getattr(release, "training", None)
    names = [name for name in gradient if training is None or training.decays(name)]
    flat, weights = _flat(gradient, names), _flat(final, names)
    cosine = _cosine(-flat, weights)
    decay = None if training is None else float(training.weight_decay)
    ratio = float(flat.norm() / (decay * weights.norm())) if decay else None
    numbers = {
        "gradient_norm": float(flat.norm()),
        "gradient_over_decay": ratio,
        "stationarity_cosine": cosine,
    }
    if cosine >= _STATIONARY:
        text = (
            f"The weights are stationary under weight decay (cosine {cosine:.2f} of minus the gradient with the "
            "weights): attacks on the weights alone have what they need."
        )
        return [Check(name="stationarity", status="note", text=text)], numbers
    text = f"The gradient at the weights has norm {numbers['gradient_norm']:.2g}"
    text += f", {ratio:.2g} times the gradient of weight decay" if ratio is not None else ""
    text += ": they are not stationary under weight decay, and attacks on the weights alone are at a disadvantage."
    return [Check(name="stationarity", status="note", text=text)], numbers


def _linearity(
    release: Any, initial: Params, final: Params, private: Data
) -> tuple[list[Check], dict[str, float | None]]:
    """The mean cosine of a record's gradients at the base and at the end, over a few records."""
    cosines = []
    for k in range(min(_FEW, len(private))):
        record = private.take(slice(k, k + 1))
        gradients = [_gradient(release, params, record) for params in (initial, final)]
        cosines.append(_cosine(*(_flat(each, list(each)) for each in gradients)))
    mean = sum(cosines) / len(cosines)
    far = mean < _LINEAR
    text = f"A record's gradients at the base and at the end have a mean cosine of {mean:.2f}: the training was "
    text += "far from linear; expect more of SimuDy than of Linearised." if far else "nearly linear."
    return [Check(name="linearity", status="note" if far else "ok", text=text)], {"linearity": mean}


def _unknowns(
    release: Any, params: Params, shape: tuple[int, ...], records: int, updated: tuple[str, ...]
) -> tuple[list[Check], dict[str, float | None]]:
    """How many released numbers there are for each value of the unknown records."""
    names = [name for name, _ in release.model.named_parameters()]
    if updated:
        names = [name for name in names if layer_of(name) in updated]
    count = sum(params[name].numel() for name in names)
    ratio = count / (records * prod(shape))
    text = f"{count:,} parameters were trained, {ratio:.2g} for each value of the private records"
    text += "." if ratio >= 1 else ": fewer than unknowns, so that not all records can come back."
    return [Check(name="unknowns", status="ok" if ratio >= 1 else "note", text=text)], {
        "parameters": count,
        "parameters_per_unknown": ratio,
    }


def _rank(release: Any, params: Params, records: int) -> tuple[list[Check], dict[str, float | None]]:
    """The size of a fully connected first layer beside the number of records: with fewer records they have a span."""
    first = first_linear(release.model, release.shape)
    if isinstance(first, Unsupported) or not all(isinstance(each, Flatten | Normalisation) for each in first.before):
        return [], {}
    rows, columns = params[first.layer.weight].shape
    count = records + len(getattr(release, "fixed", None) or ())
    numbers: dict[str, float | None] = {
        "first_layer_rows": rows,
        "first_layer_inputs": columns,
        "first_layer_rank": int(torch.linalg.matrix_rank(params[first.layer.weight].detach().double())),
    }
    small = count < min(rows, columns)
    text = f"The first layer is {rows} x {columns}, and {count} records are given: "
    text += "its rows may span just these." if small else "as many as span all of its inputs or rows."
    return [Check(name="rank", status="ok" if small else "note", text=text)], numbers
