"""Whether the base is what the model was tuned from: which layers changed, and whether any still resembles it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from remanence.auditing.answer.report import Check
from remanence.models import layer_of, replaced_layers
from remanence.types import Params

_ENOUGH = 64  # weights of a layer whose correlation with the base means anything
_CORRELATED = 4.0  # standard deviations of the correlation of unrelated weights


def check_base(
    release: Any, initial: Params, final: Params
) -> tuple[list[Check], dict[str, float | None], tuple[str, ...]]:
    """The checks of a base `initial` beside the weights `final`, their numbers, and the layers that were updated."""
    reset = replaced_layers(*({name: p.shape for name, p in params.items()} for params in (initial, final)))
    known = {name: p for name, p in final.items() if layer_of(name) not in reset}
    missing = sorted((set(known) - set(initial)) | (set(initial) - set(final)))
    shapes = sorted(name for name in set(final) & set(initial) if final[name].shape != initial[name].shape)
    if missing or shapes:
        text = (
            f"The base has another architecture than the weights: `{(missing + shapes)[0]}` "
            f"{'is only in one of them' if missing else 'has another shape'}. Give the weights that the training began "
            "with, without layers at the end that were re-initialised."
        )
        return [Check(name="base", status="stop", text=text)], {}, ()
    changed = [name for name, p in final.items() if name not in known or not torch.equal(p, initial[name])]
    statistics = _statistics(release, final)
    trained = [name for name in changed if name not in statistics]
    layers = tuple(dict.fromkeys(layer_of(name) for name in trained))
    if not changed:
        text = "The base and the weights are the same: nothing was trained. Give the weights from before the training."
        return [Check(name="base", status="stop", text=text)], {"base_distance": 0.0}, ()
    numbers = _numbers(initial, known, [name for name in trained if name in known])
    checks = [*_related(release, initial, known, trained, numbers), _updated(release, layers, final, trained)]
    if reset:
        checks.append(_reset(reset))
    if any(name in statistics and name in known for name in changed):
        text = (
            "The statistics of BatchNorm changed with the training: mini-batches went through it in training mode, "
            "which attacks that simulate the training leave out."
        )
        checks.append(Check(name="batchnorm", status="warning", text=text))
    elif statistics:
        text = "The statistics of BatchNorm are those of the base: it was frozen."
        checks.append(Check(name="batchnorm", status="ok", text=text))
    return checks, numbers, layers


def _statistics(release: Any, final: Params) -> set[str]:
    """The names of the statistics of BatchNorm layers."""
    norms = [path for path, layer in release.model.named_modules() if isinstance(layer, _BatchNorm)]
    return {
        f"{path}.{name}" for path in norms for name in ("running_mean", "running_var", "num_batches_tracked")
    } & set(final)


def _numbers(initial: Params, final: Params, names: list[str]) -> dict[str, float | None]:
    """How far the weights went from the base, relative to their norm, and their correlation with it."""
    old, new = (
        torch.cat([params[name].double().flatten() for name in names] or [torch.zeros(1)])
        for params in (initial, final)
    )
    return {
        "base_distance": float((new - old).norm() / new.norm().clamp_min(1e-300)),
        "base_correlation": float(torch.dot(new, old) / (new.norm() * old.norm()).clamp_min(1e-300)),
    }


def _correlation(one: Tensor, other: Tensor) -> float:
    one, other = (each.double().flatten() - each.double().mean() for each in (one, other))
    return float(torch.dot(one, other) / (one.norm() * other.norm()).clamp_min(1e-300))


def _related(
    release: Any, initial: Params, final: Params, trained: list[str], numbers: dict[str, float | None]
) -> list[Check]:
    """Whether layers still resemble the base: unrelated weights have correlations of about 1/sqrt(weights)."""
    matrices = [name for name in trained if name in final and final[name].ndim > 1 and final[name].numel() >= _ENOUGH]
    large = [name for name in matrices if initial[name].min() < initial[name].max()]  # not zeros, as one half of LoRA
    unrelated = [
        name
        for name in large
        if abs(_correlation(final[name], initial[name])) < _CORRELATED / final[name].numel() ** 0.5
    ]
    if not unrelated:
        return [
            Check(
                name="base",
                status="ok",
                text=f"The weights went {numbers['base_distance']:.2g} of their norm from the base.",
            )
        ]
    others = [name for name, p in final.items() if p.ndim > 1 and name not in unrelated]
    training = getattr(release, "training", None)
    decayed = training is not None and training.weight_decay > 0
    if not others:
        text = (
            "The base is no nearer to the weights than random ones are: it is not what the training began with"
            f"{', or weight decay left nothing of it' if decayed else ''}. Give the right one, or leave it out."
        )
        return [Check(name="base", status="warning" if decayed else "stop", text=text)]
    names = ", ".join(f"`{name}`" for name in unrelated)
    text = (
        f"{names} of the weights is unrelated to that of the base, other layers are not: it was re-initialised, as "
        "the head of a tuned model often is. Attacks that simulate the training need those initial weights."
    )
    return [Check(name="base", status="warning", text=text)]


def _reset(layers: Sequence[str]) -> Check:
    names = ", ".join(f"`{layer}`" for layer in layers)
    text = (
        f"The base does not hold {names}: re-initialised before the tuning, from weights that the attacker does not "
        "know either. Attacks that simulate the training need them and do not run; the rest of the base is used."
    )
    return Check(name="base", status="note", text=text)


def _updated(release: Any, layers: tuple[str, ...], final: Params, trained: list[str]) -> Check:
    held = [name for name, _ in release.model.named_parameters() if name in final]
    every = len([name for name in held if name in trained]) == len(held)
    text = "Every layer was updated." if every else f"Only these layers were updated: {', '.join(layers) or 'none'}."
    return Check(name="layers", status="ok" if every else "note", text=text)
