"""A cell: a victim, a release, an attack, and what a paper printed. Running one is the whole walk."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from time import perf_counter
from typing import Any, final

import torch
from torch import nn

from remanence.attacks import Attack, ShadowAttack
from remanence.audit.checks import caveats, tuned_on_truth
from remanence.audit.finding import Finding, audit
from remanence.data import Split
from remanence.errors import BadInput
from remanence.execution import Backend
from remanence.experiments.claim import Claim, check_claims
from remanence.experiments.device import device_of
from remanence.metrics import Matching, Metric, default_metrics, hungarian
from remanence.metrics.evaluation import quantities
from remanence.models import initial_params, initial_stack
from remanence.progress import track
from remanence.releases import Case, KnowsFinal, Reveal, Victim, check_fit, fit_of, train_victim, train_victims
from remanence.seeds import derive_seed
from remanence.shadow import ShadowBank, Store, build_bank
from remanence.training import Training
from remanence.types import Caveat, Data, Params


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


def _drawn(model: nn.Module, seed: int) -> Params:
    return initial_params(model, seed=seed)


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
    start: Callable[[nn.Module, int], Params] = _drawn  # from the net and a seed
    own_starts: bool = False  # each victim from weights of its own, drawn by `initial_params`
    matching: Matching = hungarian
    metrics: tuple[Metric, ...] | None = None
    claims: tuple[Claim, ...] = ()
    tuned_on_truth: bool = False
    point: Point | None = None

    def __post_init__(self) -> None:
        if self.own_starts and (self.per_victim != 1 or self.start is not _drawn):
            raise BadInput("`own_starts` draws one start for each victim of one record: set `per_victim=1`, no `start`")
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

    @property
    def label(self) -> str:
        return self.cell.label


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """What cells that differ in nothing but their attack share: the releases, and the shadows of a learning attack."""

    cell: Cell
    cases: list[Case[Any]]
    public: Data
    unrelated: Data
    bank: ShadowBank | None
    caveats: tuple[Caveat, ...] = ()  # about the victims

    def serves(self, cell: Cell) -> bool:
        same = ("split", "model", "training", "reveal", "per_victim", "start", "own_starts")
        ready = self.bank is not None or not isinstance(cell.attack, ShadowAttack)
        return ready and all(getattr(self.cell, name) is getattr(cell, name) for name in same)


def prepare(
    cell: Cell,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    backend: Backend | None = None,
    store: Store | None = None,
) -> Stage:
    """Train and reveal, and train the shadows where the attack learns from them."""
    device, parts = device_of(device), cell.split(seed)
    check_claims(cell.claims, quantities(cell.metrics or default_metrics(parts.private)))
    victims, public = _victims(cell, parts.fixed.to(device), parts.private.to(device), seed), parts.public.to(device)
    cases = [cell.reveal(victim) for victim in victims]
    doubts = _unlearnt(victims) if isinstance(cases[0].release, KnowsFinal) else ()
    bank = None
    if isinstance(cell.attack, ShadowAttack):
        bank = build_bank(cases[0].release, public, seed=seed, backend=backend, store=store)
    return Stage(cell=cell, cases=cases, public=public, unrelated=parts.test.to(device), bank=bank, caveats=doubts)


def run_cell(
    cell: Cell,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    backend: Backend | None = None,
    store: Store | None = None,
    stage: Stage | None = None,
) -> CellResult:
    """Train, reveal, attack, score: the whole walk, or from `stage` on."""
    start = perf_counter()
    stage = stage or prepare(cell, seed=seed, device=device, backend=backend, store=store)
    if not stage.serves(cell):
        raise BadInput(f"`stage` was prepared for a cell that differs from `{cell.label}` in more than its attack")
    finding = audit(
        stage.cases,
        cell.attack,
        public=stage.public,
        unrelated=stage.unrelated,
        bank=stage.bank,
        matching=cell.matching,
        metrics=cell.metrics,
        store=store,
        seed=seed,
    )
    doubts = [*stage.caveats, *caveats(finding)]
    if cell.tuned_on_truth:
        text = (
            "The attack's settings were chosen by looking at true records of this data set: elsewhere it may do worse."
        )
        doubts.append(tuned_on_truth(text))
    seconds, device = perf_counter() - start, stage.public.x.device
    return CellResult(cell=cell, finding=finding, caveats=tuple(doubts), seconds=seconds, device=device)


def _unlearnt(victims: list[Victim]) -> tuple[Caveat, ...]:
    """A victim that did not fit is refused, unless noise was added for privacy's sake: then that is a result."""
    privacy, looked_at = victims[0].training.privacy, track(victims, total=len(victims), label="do the victims fit?")
    if privacy is None or not privacy.noise:
        for victim in looked_at:
            check_fit(victim)
        return ()
    count = sum(not fit_of(victim).learnt for victim in looked_at)
    text = (
        f"With this much noise {count} of {len(victims)} victims classify their own records no better than guessing: "
        "there is little to read, and little to use."
    )
    return (Caveat(code="learnt-nothing", text=text),) if count else ()


def _victims(cell: Cell, fixed: Data, private: Data, seed: int) -> list[Victim]:
    model = cell.model(private)
    drawn = cell.start(model, seed)
    if cell.own_starts:
        drawn = initial_stack(model, len(private), seed=derive_seed(seed, "starts of victims"))
    initial = {name: p.to(private.x) for name, p in drawn.items()}
    if cell.per_victim == 1:
        return train_victims(model, cell.training, initial, fixed, private, seed=seed)
    size = cell.per_victim or len(private)
    groups = [private.take(slice(i, i + size)) for i in range(0, len(private), size)]
    return [
        train_victim(model, cell.training, initial, fixed, group, seed=derive_seed(seed, "victim", i))
        for i, group in enumerate(track(groups, total=len(groups), label="victims"))
    ]
