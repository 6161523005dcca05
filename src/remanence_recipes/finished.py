"""What one SVD tells of a finished model, from its file and that of the weights it was tuned from."""

import os
from collections.abc import Callable
from functools import partial
from math import prod
from typing import TypeAlias

import torch
from torch import nn

from remanence.data.splits import check_disjoint
from remanence.diagnostics.span import estimate_span
from remanence.errors import BadInput
from remanence.experiments import Experiment, Measurement, Outcome
from remanence.releases import FineTuned, KnowsFinal, WeightsOnly
from remanence.releases.loading import load_weights
from remanence.training import SGD, Training
from remanence.types import Data, Params
from remanence_recipes.spans import span_outcome

File: TypeAlias = str | os.PathLike[str]
_TRY_START = ": if the model was tuned from public weights, give them with --start"


def finished_study(
    label: str, records: Callable[[], Data], held_out: Callable[[], Data], weights: File, start: File | None = None
) -> Experiment:
    """`records` are those that trained the model, from the weights in `start` where these are given."""
    what = "the first layer of a finished model" if start is None else "how far training moved a model's first layer"
    about = f"One SVD of {what}: how many records it says, and whether given ones lie in it."
    return Experiment(
        label=label, about=about, evaluations=(Measurement(measure=partial(_run, records, held_out, weights, start)),)
    )


def _run(
    records: Callable[[], Data],
    held_out: Callable[[], Data],
    weights: File,
    start: File | None,
    seed: int,
    device: torch.device,
) -> Outcome:
    private, others = records(), held_out()
    if private.shape != others.shape:
        raise BadInput(f"`--held-out` must hold records of the shape of `--data`, {private.shape}, got {others.shape}")
    check_disjoint({"--data": private, "--held-out": others})
    final = _first_layer("--weights", weights, private, device)
    initial = None if start is None else _first_layer("--start", start, private, device)
    found = estimate_span(_released(final, initial, private))
    return span_outcome(found, private, others, seed, hint=_hint(final, initial))


def _hint(final: Params, initial: Params | None) -> str:
    """What to do where nothing can be said."""
    if initial is None:
        return _TRY_START
    short = [p.dtype for p in (*final.values(), *initial.values()) if torch.finfo(p.dtype).bits < 32]
    return f": {short[0]} rounds off how far training moved the weights, give them in full" if short else ""


def _first_layer(option: str, file: File, records: Data, device: torch.device) -> Params:
    params, features = load_weights(file), prod(records.shape)
    matrices = {n: p for n, p in params.items() if n.endswith("weight") and p.ndim == 2 and p.is_floating_point()}
    names = [name for name, p in matrices.items() if len(p) and p.shape[1] == features]
    if len(names) != 1:
        raise BadInput(
            f"`{option}` must hold one matrix of a linear layer with {features} columns, the numbers of a record, "
            f"got {names or 'none'}: use `estimate_span` from Python"
        )
    bias, rows = params.get(f"{names[0].removesuffix('weight')}bias"), len(params[names[0]])
    if bias is not None and bias.shape != (rows,):
        raise BadInput(f"`{option}` must hold {rows} biases for `{names[0]}`, got the shape {tuple(bias.shape)}")
    first = {"1.weight": params[names[0]]} | ({} if bias is None else {"1.bias": bias})
    return {name: p.to(device) for name, p in first.items()}


def _released(final: Params, initial: Params | None, records: Data) -> KnowsFinal:
    """A model that is cut off behind its first layer: what follows does not matter."""
    linear = nn.Linear(prod(records.shape), len(final["1.weight"]), bias="1.bias" in final, device="meta")
    model, shape, classes = nn.Sequential(nn.Flatten(), linear), records.shape, records.num_classes
    if initial is None:
        return WeightsOnly(model=model, final=final, shape=shape, num_classes=classes)
    _check_start(initial, final)
    sgd = Training(optimizer=SGD(lr=1.0))  # at any rate all of the start is left, as there is no weight decay
    return FineTuned(model=model, final=final, shape=shape, num_classes=classes, initial=initial, training=sgd)


def _check_start(initial: Params, final: Params) -> None:
    sizes, got = (" and ".join("x".join(map(str, p.shape)) for p in params.values()) for params in (final, initial))
    if sizes != got:
        raise BadInput(
            f"`--start` must hold a first layer of the size of that in `--weights`, {sizes}, got {got}: give the file "
            "that the model was tuned from"
        )
    if all(torch.equal(p.double(), initial[name].double()) for name, p in final.items()):
        raise BadInput(
            "`--start` and `--weights` hold the same first layer: nothing was trained there. Give the weights from "
            "before the training; where that layer was frozen, it tells nothing"
        )
