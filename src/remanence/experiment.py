"""A recipe is a function from a scale to cells; a cell is a victim, a release, an attack, and what a paper printed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, TypeAlias, final

import torch
from torch import nn

from remanence.attacks import Attack, ShadowAttack
from remanence.audit import Finding, audit
from remanence.checks import Caveat, caveats
from remanence.data import Split
from remanence.errors import BadInput
from remanence.metrics import Matching, Metric, hungarian
from remanence.nets import initial_params
from remanence.release import Case, KnowsFinal, Reveal, Victim, check_fit, train_victim, train_victims
from remanence.training import Training
from remanence.types import Data

Scale: TypeAlias = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")


@final
@dataclass(frozen=True, kw_only=True)
class Claim:
    """A number a paper prints for the mean of a metric; it holds if ours is no worse than that by `rtol`."""

    metric: Metric
    printed: float
    where: str
    rtol: float = 0.1

    def holds(self, measured: float) -> bool:
        if self.metric.higher_is_better:
            return measured >= self.printed * (1 - self.rtol)
        return measured <= self.printed * (1 + self.rtol)


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


Recipe: TypeAlias = Callable[[Scale], Sequence[Cell]]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class CellResult:
    cell: Cell
    finding: Finding
    caveats: tuple[Caveat, ...]
    seconds: float
    device: torch.device


def run_cell(cell: Cell, *, seed: int = 0, device: torch.device | str = "cpu") -> CellResult:
    """Train, reveal, attack, score: the whole walk."""
    start, device = perf_counter(), _device(device)
    parts = cell.split(seed)
    public, unrelated = parts.public.to(device), parts.test.to(device)
    finding = audit(
        _cases(cell, parts, seed, device),
        cell.attack,
        public=public,
        unrelated=unrelated,
        matching=cell.matching,
        metrics=cell.metrics,
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


def _device(device: torch.device | str) -> torch.device:
    try:
        device = torch.device(device)
    except RuntimeError:
        raise BadInput(f"`device` must be like `cpu`, `cuda` or `cuda:0`, got `{device}`") from None
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"`device` must be like `cpu`, `cuda` or `cuda:0`, got `{device}`")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadInput(
            f"`device` is `{device}`, but torch finds {torch.cuda.device_count()} CUDA devices here: use `cpu`"
        )
    return device
