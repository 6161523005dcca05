"""A cell: a victim, a release, an attack, and what a paper printed. Running one is the whole walk."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from time import perf_counter
from typing import Any, final

import torch
from torch import nn

from remanence.attacks import Attack, ShadowAttack
from remanence.audit import Finding, audit
from remanence.checks import Caveat, caveats
from remanence.data import Split
from remanence.errors import BadInput
from remanence.execution import Backend
from remanence.experiment.claim import Claim, check_claims
from remanence.experiment.device import device_of
from remanence.metrics import Matching, Metric, default_metrics, hungarian
from remanence.metrics.evaluate import quantities
from remanence.nets import initial_params
from remanence.release import Case, KnowsFinal, Reveal, Victim, check_fit, train_victim, train_victims
from remanence.shadow import Store
from remanence.training import Training
from remanence.types import Data


@final
@dataclass(frozen=True, kw_only=True)
class Point:
    """Where a cell stands on an axis that a run walks along: the page draws one figure for each axis."""

    axis: str
    value: float | str  # texts make bars
    series: str = ""
    log: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.value, str) and not (isfinite(self.value) and (self.value > 0 or not self.log)):
            wanted = "a positive number" if self.log else "a finite number"
            raise BadInput(
                f"`value` on the axis `{self.axis}` must be {wanted} or a text, got {self.value}: "
                "leave `point` out for a cell that lies off the axis"
            )


@final
@dataclass(frozen=True, kw_only=True)
class Cell:
    """`split` cuts the records by a seed; `per_victim` private records go into each victim (None: all into one)."""

    label: str
    split: Callable[[int], Split]
    model: Callable[[Data], nn.Module]
    training: Training
    reveal: Reveal[Any]
    attack: Attack[Any] | ShadowAttack
    per_victim: int | None = None
    matching: Matching = hungarian
    metrics: tuple[Metric, ...] | None = None
    claims: tuple[Claim, ...] = ()
    tuned_on_truth: bool = False
    point: Point | None = None

    def __post_init__(self) -> None:
        if self.metrics:
            check_claims(self.claims, quantities(self.metrics))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class CellResult:
    cell: Cell
    finding: Finding
    caveats: tuple[Caveat, ...]
    seconds: float
    device: torch.device


def run_cell(
    cell: Cell,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    backend: Backend | None = None,
    store: Store | None = None,
) -> CellResult:
    """Train, reveal, attack, score: the whole walk."""
    start, device = perf_counter(), device_of(device)
    parts = cell.split(seed)
    check_claims(cell.claims, quantities(cell.metrics or default_metrics(parts.private)))
    public, unrelated = parts.public.to(device), parts.test.to(device)
    finding = audit(
        _cases(cell, parts, seed, device),
        cell.attack,
        public=public,
        unrelated=unrelated,
        matching=cell.matching,
        metrics=cell.metrics,
        backend=backend,
        store=store,
        seed=seed,
    )
    doubts = caveats(finding)
    if cell.tuned_on_truth:
        text = (
            "The attack's settings were chosen by looking at true records of this data set: elsewhere it may do worse."
        )
        doubts.append(Caveat(code="tuned-on-truth", text=text))
    return CellResult(cell=cell, finding=finding, caveats=tuple(doubts), seconds=perf_counter() - start, device=device)


def _cases(cell: Cell, parts: Split, seed: int, device: torch.device) -> list[Case[Any]]:
    victims = _victims(cell, parts.fixed.to(device), parts.private.to(device), seed)
    cases = [cell.reveal(victim) for victim in victims]
    if isinstance(cases[0].release, KnowsFinal):  # a gradient at the first weights says nothing about the last
        for victim in victims:
            check_fit(victim)
    return cases


def _victims(cell: Cell, fixed: Data, private: Data, seed: int) -> list[Victim]:
    model = cell.model(private)
    initial = {name: p.to(private.x) for name, p in initial_params(model, seed=seed).items()}
    if cell.per_victim == 1:
        return train_victims(model, cell.training, initial, fixed, private, seed=seed)
    size = cell.per_victim or len(private)
    groups = [private.take(slice(i, i + size)) for i in range(0, len(private), size)]
    return [train_victim(model, cell.training, initial, fixed, group, seed=seed) for group in groups]
