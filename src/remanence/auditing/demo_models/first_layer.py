"""One SVD of the first layer of a model that is trained here on the records of an audit."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from remanence.data import Split
from remanence.diagnostics.span import estimate_span
from remanence.engine import train
from remanence.experiments import Experiment, Measurement, Outcome
from remanence.experiments.evaluations.span import span_outcome
from remanence.models import initial_params, mlp
from remanence.releases import WeightsOnly
from remanence.training import SGD, Training
from remanence.types import Data

LABEL = "what the first layer spans"
_MAX_RECORDS = 50
_HIDDEN = (128,)
_MOMENTUM, _DECAY = 0.9, 2.5e-3  # of lr times weight decay: with these the initial weights decay fastest


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
    release = WeightsOnly(
        model=model, final=final, shape=private.shape, bounds=private.bounds, num_classes=private.num_classes
    )
    return span_outcome(estimate_span(release), private, parts.test, seed)


def _training(records: Data) -> Training:
    """A learning rate that records of large norm bear, and a weight decay to match."""
    energy = float(records.x.flatten(1).square().sum(1).mean())
    lr = min(0.2, 40 / max(energy, 1.0))
    return Training(optimizer=SGD(lr=lr, momentum=_MOMENTUM), epochs=500, weight_decay=_DECAY / lr)
