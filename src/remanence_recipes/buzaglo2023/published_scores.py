"""Scores of all runs of KKT on one victim: every image with its nearest candidate, private and held-out ones alike.

The null is the same candidates against held-out images of the same class. Its exact rank test: under it a private
image is as likely as any held-out one to be the best of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from remanence.attacks import KKT
from remanence.diagnostics.preflight import Preflight, run_preflight
from remanence.experiments import Figure, Measure, Outcome, Series
from remanence.experiments.checks import tuned_on_truth
from remanence.metrics import SSIM, SSIM3, evaluate
from remanence.metrics.evaluation import FPR
from remanence.metrics.exchangeability import FDR, Pool, RankTest, discoveries, rank_test, standardised
from remanence.metrics.pixel import half, ncc_distance
from remanence.metrics.statistics import auc
from remanence.releases import KnowsFinal, Victim
from remanence.search import Solution
from remanence.types import Data, Params, Reconstruction
from remanence_recipes.curves import proportion
from remanence_recipes.weights_alone.evaluation import (
    FOUND,
    ROW,
    THRESHOLD,
    above_each,
    accuracy_of,
    against_margin,
    found,
)

BEST = 10
ABOVE, RANKED, LISTED = "SSIM above 0.4", "share within rank 1 %", "listed at FDR 5 %"
OTHERS = "held-out images with SSIM above 0.4"
BEST_SSIM, THIRTIETH, SHOWN = "best SSIM", "thirtieth best SSIM", 30  # the authors' notebooks show thirty pairs
ROWS, NEAR = "rows of the first layer", 1.1  # the authors average what is within 1.1 times the smallest distance
OBJECTIVE, BY_AUTHORS, PUBLISHED, ALL = (
    "best by objective",
    "best by the authors' score",
    "published runs",
    "all runs pooled",
)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One run that ended: its images (candidates, ...), and of every image of private and then held-out records the
    nearest candidate, its distance at half resolution and its SSIM."""

    restart: int
    objective: float
    images: Tensor
    index: Tensor
    distance: Tensor
    ssim: Tensor


def score_runs(attack: KKT, release: KnowsFinal, solution: Solution, victim: Victim, held_out: Data) -> list[Run]:
    """The scores of every run of a search."""
    pool = torch.cat([victim.private.x, held_out.x]).float()
    runs = []
    for position, restart in enumerate(solution.restarts.tolist()):
        images = attack.images(release, solution.variables["x"][position]).float()
        distance, index = _distances(images, pool).min(0)
        ssim = SSIM3.paired(images[index], pool)
        objective = float(solution.value[position])
        runs.append(Run(restart=restart, objective=objective, images=images, index=index, distance=distance, ssim=ssim))
    return runs


def score_rows(attack: KKT, release: KnowsFinal, victim: Victim, held_out: Data) -> Run:
    """The rows of the first layer as if they were candidates, scaled to the box of these: of every image the mean of
    the rows nearest to it."""
    pool = torch.cat([victim.private.x, held_out.x]).float()
    rows = next(p for p in release.final.values() if p.ndim == 2)
    rows = rows / rows.abs().amax(1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    images = attack.images(release, rows).float()
    distances = _distances(images, pool)
    distance, index = distances.min(0)
    near = (distances <= NEAR * distance).to(rows)
    averaged = attack.images(release, (near / near.sum(0)).T @ rows).float()
    ssim = SSIM3.paired(averaged, pool)
    return Run(restart=-1, objective=torch.inf, images=images, index=index, distance=distance, ssim=ssim)


def _distances(images: Tensor, pool: Tensor) -> Tensor:
    """(candidates, images), as the authors search: at half the resolution for photographs."""
    pair = (images, pool) if min(pool.shape[2:]) < 32 else (half(images), half(pool))
    return ncc_distance(*pair).nan_to_num(nan=torch.inf)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Attacked:
    """A victim and the runs on its weights, the first `published` of which have the authors' hyper-parameters."""

    victim: Victim
    held_out: Data
    runs: Sequence[Run]
    published: int
    rows: Run  # of the first layer, in place of candidates

    @cached_property
    def selections(self) -> dict[str, Run]:
        """The runs that are reported; several are pooled, each image with the nearest candidate of all."""
        found = {PUBLISHED: [run for run in self.runs if run.restart < self.published]}
        if len(self.runs) > len(found[PUBLISHED]):
            n = len(self.victim.private)
            found[OBJECTIVE] = [min(self.runs, key=lambda run: run.objective)]
            found[BY_AUTHORS] = [min(self.runs, key=lambda run: float(run.distance[:n].sort().values[:BEST].mean()))]
            found[ALL] = list(self.runs)
        return {name: pooled(runs) for name, runs in found.items() if runs}

    @property
    def labels(self) -> Tensor:
        """Of private and then held-out records."""
        return torch.cat([self.victim.private.y, self.held_out.y])

    def arrays(self) -> Params:
        """What a later test of ranks needs: SSIM and distance (selections, images) of private and then held-out
        records, SSIM of every run (runs, images), the labels, and the objective of each run."""
        selected = list(self.selections.values())
        return {
            "ssim": torch.stack([run.ssim for run in selected]).half(),
            "distance": torch.stack([run.distance for run in selected]).float(),
            "ssim_of_runs": torch.stack([run.ssim for run in self.runs]).half(),
            "labels": self.labels.to(torch.uint8),
            "private": torch.tensor(len(self.victim.private)),
            "runs": torch.tensor([run.restart for run in self.runs]),
            "objectives": torch.tensor([run.objective for run in self.runs], dtype=torch.float64),
            "margins": run_preflight(self.victim).margins.double(),
        }

    def candidates(self) -> Params:
        """Images of the selected single runs in 8 bits, and the private records."""
        n = len(self.victim.private)
        found = {name: run.images[run.index[:n]] for name, run in self.selections.items()}
        return {
            name: (255 * x).round().to(torch.uint8) for name, x in {"private": self.victim.private.x, **found}.items()
        }


def pooled(runs: Sequence[Run]) -> Run:
    """Several runs as one: of every image the nearest candidate of all."""
    if len(runs) == 1:
        return runs[0]
    distance, nearest = torch.stack([run.distance for run in runs]).min(0)
    offsets = torch.tensor([0, *(len(run.images) for run in runs[:-1])]).cumsum(0).to(nearest.device)
    index = torch.stack([run.index for run in runs]) + offsets[:, None]
    columns = torch.arange(len(nearest), device=nearest.device)
    return Run(
        restart=-1,
        objective=min(run.objective for run in runs),
        images=torch.cat([run.images for run in runs]),
        index=index[nearest, columns],
        distance=distance,
        ssim=torch.stack([run.ssim for run in runs])[nearest, columns],
    )


def ranks_of(scores: Tensor, labels: Tensor, private: int, *, seed: int) -> RankTest:
    """The rank test of the first scores among those of held-out records of the same label; larger is better."""
    scores = standardised(scores.float().cpu()[None], labels.cpu(), private)
    release = torch.zeros(private, dtype=torch.int64)
    return rank_test(Pool(scores=scores, labels=labels.cpu(), release=release), seed=seed)


def measured(attacked: Attacked, seed: int) -> Outcome:
    """The measures of every selection, figures and the best pairs."""
    preflight = run_preflight(attacked.victim)
    measures = [
        measure for name, run in attacked.selections.items() for measure in _measures(name, run, attacked, seed)
    ]
    caveats = [*preflight.caveats()]
    if BY_AUTHORS in attacked.selections:
        text = (
            f"The lines called `{BY_AUTHORS}` choose the run with the smallest mean distance of the ten records "
            "nearest to a candidate: they look at the truth. So did the published choice of runs."
        )
        caveats.append(tuned_on_truth(text))
    measures += [
        against_margin(PUBLISHED, preflight.margins, run.ssim[: len(preflight.margins)], seed)
        for name, run in attacked.selections.items()
        if name == PUBLISHED  # which may have diverged
    ]
    return Outcome(
        measures=(
            *measures,
            *_similarity(ROWS, attacked.rows, attacked),
            accuracy_of(attacked.victim, attacked.held_out),
            *_conditions(preflight),
        ),
        figures=(_levels(attacked), _scatter(attacked, preflight)),
        pictures=_pictures(attacked),
        caveats=tuple(caveats),
    )


def _similarity(name: str, run: Run, attacked: Attacked) -> Iterator[Measure]:
    """How similar the records are to their nearest candidates, and how many of them as much as the papers ask."""
    private, held_out = attacked.victim.private, attacked.held_out
    n, folds = len(private), max(1, len(held_out) // len(private))
    above = (run.ssim > THRESHOLD).double()
    by_class = [above[n:][held_out.y == label].mean() for label in private.y]
    yield Measure(
        name=f"{ABOVE}, {name}",
        value=float(above[:n].sum()),
        chance=float(torch.stack(by_class).sum()),
        meaning=f"of {n} records, each with its nearest of {len(run.images)} candidates, window 3; chance: the same "
        "candidates against held-out images",
    )
    yield proportion(
        f"{OTHERS}, {name}", run.ssim[n:] > THRESHOLD, meaning="of the held-out images, with the same candidates"
    )
    records, others = (each.sort(descending=True).values for each in (run.ssim[:n], run.ssim[n:]))
    yield Measure(
        name=f"{BEST_SSIM}, {name}",
        value=float(records[0]),
        chance=float(others[:folds].mean()),
        meaning=f"of {n} records, window 3; chance: the mean of the best of every {n} held-out images",
    )
    if n >= SHOWN:
        yield Measure(
            name=f"{THIRTIETH}, {name}",
            value=float(records[SHOWN - 1]),
            chance=float(others[folds * SHOWN - 1]),
            meaning=f"of {n} records, window 3; chance: the same of {n} held-out images",
        )


def _measures(name: str, run: Run, attacked: Attacked, seed: int) -> Iterator[Measure]:
    private, held_out = attacked.victim.private, attacked.held_out
    n, labels = len(private), attacked.labels
    yield from _similarity(name, run, attacked)
    ranks = ranks_of(run.ssim, labels, n, seed=seed)
    p = ranks.records
    by_rank = "of the records, by the SSIM of the nearest candidate among held-out images of the class"
    yield proportion(f"{RANKED}, {name}", p <= FPR, meaning=by_rank, chance=FPR)
    yield Measure(
        name=f"{LISTED}, {name}",
        value=int(discoveries(p, FDR).sum()),
        chance=0.0,
        meaning=f"of {n} records, by these ranks (Benjamini and Hochberg)",
    )
    yield Measure(
        name=f"p of all records, {name}", value=ranks.together, chance=0.5, meaning="by permutation within the classes"
    )
    yield Measure(
        name=f"AUC, {name}",
        value=auc(run.ssim[:n].double(), run.ssim[n:].double()),
        chance=0.5,
        meaning="the SSIM of records and their nearest candidates against that of held-out images",
    )
    if name != ALL:  # one to one, all pairs of all runs would take too long
        scores = evaluate(Reconstruction(x=run.images), private, unrelated=held_out, metrics=(SSIM,), seed=seed)
        yield found(f"{FOUND}, {name}", scores)


def _conditions(preflight: Preflight) -> Iterator[Measure]:
    margins = preflight.margins.double()
    yield Measure(name="smallest margin", value=float(margins.min()), meaning="of the records")
    yield Measure(
        name="records near the median margin", value=preflight.on_margin, meaning="fraction within 10 % of it"
    )
    yield Measure(
        name="unexplained at the truth",
        value=preflight.unexplained,
        meaning="fraction of the squared weights that the true records leave, with the best multipliers of one rival",
    )


def _levels(attacked: Attacked) -> Figure:
    n, held_out = len(attacked.victim.private), "held-out images"
    ssim: dict[str, Tensor] = {}
    for name, run in attacked.selections.items():
        ssim |= {name: run.ssim[:n], f"{name}, {held_out}": run.ssim[n:]}
    return above_each("Images above each SSIM", "fraction above", ssim, null=held_out)


def _scatter(attacked: Attacked, preflight: Preflight) -> Figure:
    x, n = tuple(preflight.margins.tolist()), len(attacked.victim.private)
    shown = {name: run for name, run in attacked.selections.items() if name != ALL}
    series = [Series(name=name, x=x, y=tuple(run.ssim[:n].tolist())) for name, run in shown.items()]
    return Figure(
        title="SSIM against the margin",
        x_label="margin of the record",
        y_label="SSIM, window 3",
        series=tuple(series),
        kind="points",
    )


def _pictures(attacked: Attacked) -> dict[str, Tensor]:
    """The pairs of the highest SSIM: of records, and of held-out images with the same candidates."""
    n, pool = len(attacked.victim.private), torch.cat([attacked.victim.private.x, attacked.held_out.x])
    rows = {}
    for name, run in attacked.selections.items():
        for who, first, last in (("records", 0, n), ("held-out images", n, len(pool))):
            best = first + run.ssim[first:last].argsort(descending=True)[:ROW]
            rows[f"{who}, {name}"] = pool[best]
            rows[f"nearest to {who}, {name}"] = run.images[run.index[best]]
    return rows
