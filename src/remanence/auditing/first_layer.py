"""Audits by one SVD of a first layer: of a model trained here, and of a finished one from its file."""

import os
from collections.abc import Callable
from functools import partial
from math import prod
from typing import TypeAlias

import torch
from torch import nn

from remanence.data import Split
from remanence.data.splits import check_disjoint
from remanence.diagnostics.span import estimate_span
from remanence.engine import train
from remanence.errors import BadInput
from remanence.experiments import Experiment, Measurement, Outcome
from remanence.experiments.evaluations.span import span_outcome
from remanence.models import initial_params, mlp
from remanence.releases import FineTuned, KnowsFinal, WeightsOnly
from remanence.releases.loading import load_weights
from remanence.training import SGD, Training
from remanence.types import Data, Params

File: TypeAlias = str | os.PathLike[str]
LABEL = "what the first layer spans"
_MAX_RECORDS = 50
_HIDDEN = (128,)
_MOMENTUM, _DECAY = 0.9, 2.5e-3  # of lr times weight decay: with these the initial weights decay fastest
_TRY_START = ": if the model was tuned from public weights, give them with --start"


def span_experiment(split: Callable[[int], Split]) -> Experiment:
    """How many records trained an MLP with weight decay, and whether private ones are identified by its span."""
    about = (
        "An MLP is trained with weight decay on a few private records, in float64, until its initial weights have "
        "decayed. One SVD of its first layer, from the weights alone: the rank is the number of records, and a record "
        "that was trained on lies in the span."
    )
    return Experiment(label=LABEL, about=about, evaluations=(Measurement(measure=partial(_of_trained, split)),))


def _of_trained(split: Callable[[int], Split], seed: int, device: torch.device) -> Outcome:
    parts = split(seed)
    private = parts.private.take(slice(0, _MAX_RECORDS)).to(device, torch.float64)
    model = mlp(private.shape, private.num_classes, hidden=_HIDDEN, activation=nn.ReLU)
    initial = {name: p.to(private.x) for name, p in initial_params(model, seed=seed).items()}
    final = train(_training(private), model, initial, private)
    release = WeightsOnly(model=model, final=final, shape=private.shape, num_classes=private.num_classes)
    return span_outcome(estimate_span(release), private, parts.test, seed)


def _training(records: Data) -> Training:
    """A learning rate that records of large norm bear, and a weight decay to match."""
    energy = float(records.x.flatten(1).square().sum(1).mean())
    lr = min(0.2, 40 / max(energy, 1.0))
    return Training(optimizer=SGD(lr=lr, momentum=_MOMENTUM), epochs=500, weight_decay=_DECAY / lr)


def weights_experiment(
    records: Callable[[], Data], held_out: Callable[[], Data], weights: File, start: File | None = None
) -> Experiment:
    """Which of `records` trained the finished model in `weights`, from the weights in `start` where these are given."""
    what = "the first layer of a finished model" if start is None else "how far training moved a model's first layer"
    about = f"One SVD of {what}: how many records it says, and whether given ones lie in it."
    measure = partial(_of_finished, records, held_out, weights, start)
    return Experiment(label=LABEL, about=about, evaluations=(Measurement(measure=measure),))


def _of_finished(
    records: Callable[[], Data],
    held_out: Callable[[], Data],
    weights: File,
    start: File | None,
    seed: int,
    device: torch.device,
) -> Outcome:
    private, others = records(), held_out()
    if private.shape != others.shape:
        message = f"`--held-out` must hold records of the shape of `--data`, {private.shape}, got {others.shape}"
        raise BadInput(message, code="shape-mismatch", argument="--held-out")
    final = _first_layer("--weights", weights, private, device)
    initial = None if start is None else _first_layer("--start", start, private, device)
    check_disjoint({"--data": private, "--held-out": others})
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
            f"got {names or 'none'}: use `estimate_span` from Python",
            code="unsupported-model",
            argument=option,
        )
    bias, rows = params.get(f"{names[0].removesuffix('weight')}bias"), len(params[names[0]])
    if bias is not None and bias.shape != (rows,):
        message = f"`{option}` must hold {rows} biases for `{names[0]}`, got the shape {tuple(bias.shape)}"
        raise BadInput(message, code="shape-mismatch", argument=option)
    first = {"1.weight": params[names[0]]} | ({} if bias is None else {"1.bias": bias})
    return {name: p.to(device) for name, p in first.items()}


def _released(final: Params, initial: Params | None, records: Data) -> KnowsFinal:
    """A model truncated after its first layer: what follows does not matter."""
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
            "that the model was tuned from",
            code="shape-mismatch",
            argument="--start",
        )
    if all(torch.equal(p.double(), initial[name].double()) for name, p in final.items()):
        raise BadInput(
            "`--start` and `--weights` hold the same first layer: nothing was trained there. Give the weights from "
            "before the training; where that layer was frozen, it reveals nothing",
            code="conflict",
            argument="--start",
        )
