"""The labels of a batch, inferred from an update, beside what the same answer shares with other batches.

A guess without the update is right for many labels of a batch of many records, so that the fraction alone says little.
If the update showed nothing, the batch could be exchanged for any other: p is the fraction of batches of private and
held-out records that share as many labels with what was inferred, a permutation test.
"""

from math import inf
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.attacks import infer_labels
from remanence.auditing.answer.report import Evidence
from remanence.auditing.checks.records import evenly
from remanence.errors import BadInput
from remanence.experiments.outcome import Figure, Series
from remanence.metrics.statistics import binomial_proportion
from remanence.progress import time_limit
from remanence.releases import KnowsUpdate
from remanence.types import Data

Group: TypeAlias = Literal["membership", "span", "labels", "tokens", "other"]
_BATCHES = 999  # of other records
MAX_SIMULATED = 2000  # held-out records


def labels_of(
    release: KnowsUpdate,
    private: Data,
    held_out: Data,
    *,
    seed: int,
    seconds: float = inf,
    max_simulated: int = MAX_SIMULATED,
) -> tuple[Evidence, list[Figure]]:
    """How many labels of the batch `private` are inferred, by chance too, and the counts of each class as bars.

    Of the records held out at most `max_simulated` take the place of the batch, for every label that is exchanged; that
    ends after so many `seconds`.
    """
    try:
        with time_limit(seconds) as limit:
            inferred = infer_labels(release, evenly(held_out, max_simulated).x).cpu()
    except BadInput as refusal:
        return without_value("labels", "labels", None, str(refusal)), []
    except Exception as fault:
        return without_value("labels", "labels", None, f"it failed: {type(fault).__name__}"), []
    classes = max(private.num_classes, int(inferred.max()) + 1, held_out.num_classes)
    true, ours = (labels.cpu().bincount(minlength=classes) for labels in (private.y, inferred))
    others = _batches(held_out.y.cpu(), len(private), classes, seed)
    exchanged = _batches(torch.cat([private.y, held_out.y.to(private.y)]).cpu(), len(private), classes, seed)
    in_common = _in_common(ours, true)
    found = binomial_proportion(int(in_common), len(private))
    row = Evidence(
        name="labels",
        value=found.value,
        low=found.low,
        high=found.high,
        chance=float(_in_common(ours, others).double().mean()) / len(private),
        meaning=(
            "fraction of the batch's labels that the update shows, order aside; by chance: what the same answer has in "
            f"common with as many held-out records{'; stopped early, to keep the budget' if limit.reached else ''}"
        ),
        p=float(1 + (_in_common(ours, exchanged) >= in_common).sum()) / (1 + _BATCHES),
        group="labels",
    )
    names = tuple(map(str, range(classes)))
    counts = {"inferred from the update": ours, "in the batch": true}
    series = tuple(Series(name=each, x=names, y=tuple(map(float, count))) for each, count in counts.items())
    figure = Figure(title="Labels of the batch", x_label="class", y_label="records", series=series, kind="bars")
    return row, [figure]


def _batches(labels: Tensor, size: int, classes: int, seed: int) -> Tensor:
    """(batches, classes): how many records of each class are in batches drawn from `labels`, each record at most once
    where there are enough."""
    generator = torch.Generator().manual_seed(seed)
    repeated = labels.repeat(-(-size // len(labels)))
    sampled = (repeated[torch.randperm(len(repeated), generator=generator)[:size]] for _ in range(_BATCHES))
    return torch.stack([one_hot(each, classes).sum(0) for each in sampled])


def _in_common(counts: Tensor, others: Tensor) -> Tensor:
    """The number of labels that two batches share, counted with their repetitions."""
    return torch.minimum(counts, others).sum(-1)


def without_value(name: str, group: Group, chance: float | None, reason: str) -> Evidence:
    """A row that could not be measured, for this reason."""
    return Evidence(name=name, value=None, low=None, high=None, chance=chance, meaning=reason, group=group)
