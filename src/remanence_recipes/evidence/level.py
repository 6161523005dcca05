"""Clean audits: private and held-out records are drawn at random, and the reconstructions know nothing of either.

remanence run evidence.level --scale full     one GPU: minutes
expected      no more than 5 % of the audits list a record or have p <= 0.05, 1 % of the records have p <= 0.01, and no
              class has much more
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor

from remanence.experiments import Experiment, Measure, Outcome, Scale
from remanence.metrics.exchangeability import FDR, discoveries, rank_test
from remanence.metrics.leakage import pooled
from remanence.metrics.similarity import similarities
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence.types import Data
from remanence_recipes.curves import measured, proportion
from remanence_recipes.evidence.sets import data_set, data_sets

RECORDS = (20, 100, 500)
AUDITS: Mapping[Scale, int] = {"smoke": 40, "small": 100, "full": 200}  # of each set, number of records and kind
HELD_OUT, POOL, CANDIDATES = 1000, 6000, 500
LEVEL, P = 0.05, 0.01


def level(scale: Scale) -> Sequence[Experiment]:
    """Clean audits of several data sets, with three kinds of empty reconstructions: how many claim a leak."""
    about = "Audits of records that no reconstruction knows: unrelated records, blurred ones, means of classes."
    return [measured(name, about, partial(_measure, scale, name)) for name in data_sets(scale)]


def _measure(scale: Scale, name: str, seed: int, device: torch.device) -> Outcome:
    measures: list[Measure] = []
    for kind, candidates, pool in _kinds(data_set(name).to(device), seed):
        similar = [each.pairwise(candidates, pool.x).cpu() for each in similarities(pool)]
        for records in RECORDS:
            if len(pool) < 3 * records:
                continue
            draws = derive_seed(seed, name, kind, records)
            audits = list(_audits(similar, pool.y.cpu(), records, AUDITS[scale], draws))
            measures += _measures(f"{records} records, {kind}", audits)
    return Outcome(measures=tuple(measures), verdict=_verdict(measures))


def _kinds(data: Data, seed: int) -> Iterator[tuple[str, Tensor, Data]]:
    """Reconstructions that know no record of the pool: others of the set, blurred ones, means of classes."""
    size = min(POOL, len(data) * 3 // 4)
    generator = torch.Generator().manual_seed(derive_seed(seed, "pool"))
    order = torch.randperm(len(data), generator=generator).to(data.x.device)
    pool, others = data.take(order[:size]), data.take(order[size:])
    unrelated = others.x[:CANDIDATES]
    yield "unrelated", unrelated, pool
    yield "blurred", 0.5 * unrelated + 0.5 * others.x.mean(0), pool
    parts = [others.x[others.y == label] for label in others.y.unique()]
    means = [part[i::5].mean(0) for part in parts for i in range(5) if len(part) > i]
    yield "class means", torch.stack(means), pool


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Audit:
    """One clean audit: whether any record is listed, its p-value, those of the records, and their labels."""

    listed: bool
    p: float
    records: Tensor
    labels: Tensor


def _audits(similar: Sequence[Tensor], labels: Tensor, records: int, audits: int, seed: int) -> Iterator[Audit]:
    generator = torch.Generator().manual_seed(seed)
    total = min(len(labels), records + HELD_OUT)
    for i in track(range(audits), total=audits, label="clean audits"):
        rows = torch.randperm(len(similar[0]), generator=generator)[:records]
        chosen = torch.randperm(len(labels), generator=generator)[:total]
        pool = pooled([each[rows][:, chosen] for each in similar], labels[chosen], records)
        ranks = rank_test(pool, seed=seed + i)
        yield Audit(
            listed=bool(discoveries(ranks.records, FDR).any()),
            p=ranks.together,
            records=ranks.records,
            labels=labels[chosen[:records]],
        )


def _measures(name: str, audits: Sequence[Audit]) -> Iterator[Measure]:
    listed, together = torch.tensor([audit.listed for audit in audits]), torch.tensor([audit.p for audit in audits])
    p, labels = torch.cat([audit.records for audit in audits]), torch.cat([audit.labels for audit in audits])
    many = f"of {len(audits)} audits without a leak"
    yield proportion(f"audits that list a record, {name}", listed, meaning=many, chance=LEVEL)
    yield proportion(f"audits with p <= 0.05, {name}", together <= LEVEL, meaning=many, chance=LEVEL)
    yield proportion(f"records with p <= 0.01, {name}", p <= P, meaning=f"of the records {many}", chance=P)
    classes = [float((p[labels == label] <= P).double().mean()) for label in labels.unique()]
    yield Measure(
        name=f"worst class, {name}", value=max(classes), chance=P, meaning="its records with p <= 0.01, as a fraction"
    )


def _verdict(measures: Sequence[Measure]) -> str:
    def largest(start: str) -> float:
        return max(each.value or 0.0 for each in measures if each.name.startswith(start))

    return (
        f"Without a leak at most {largest('audits that list'):.1%} of the audits list a record, "
        f"{largest('audits with p'):.1%} have p <= 0.05, {largest('records with'):.2%} of the records p <= 0.01, and "
        f"{largest('worst class'):.2%} of those of the worst class."
    )
