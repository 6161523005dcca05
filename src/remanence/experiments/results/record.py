"""From what a cell gave to its record, its rows and its pictures."""

from dataclasses import fields
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from remanence.experiments import Claim, Completed, Figure, Finding, Measure, Point, Series
from remanence.experiments.outcome import quantities_of
from remanence.experiments.results.folder import Row
from remanence.experiments.results.provenance import commit, hardware
from remanence.experiments.results.schema import (
    SCHEMA,
    CaveatRecord,
    ClaimRecord,
    FigureRecord,
    LimitRecord,
    MeasureRecord,
    PointRecord,
    Record,
    SeriesRecord,
)
from remanence.experiments.results.summary import level, number, summary
from remanence.types import Caveat, Data


def record(completed: Completed, *, recipe: str, scale: str, seed: int, command: str) -> Record:
    """What stands in `results.json` about one experiment."""
    outcome, finding = completed.outcome, completed.outcome.finding
    made = Record(
        schema=SCHEMA,
        kind="refused" if completed.refusal is not None else "study" if finding is None else "attack",
        recipe=recipe,
        cell=completed.experiment.label,
        scale=scale,
        seed=seed,
        command=command,
        commit=commit(),
        hardware=hardware(completed.device),
        seconds=round(completed.seconds, 3),
        claims=[],
        caveats=_caveats(outcome.caveats),
    )
    if completed.refusal is not None:
        return {**made, "refusal": completed.refusal}
    values = {name: number(value) for name, value in quantities_of(outcome).items()}
    made["claims"] = [_claim(claim, values, scale) for claim in completed.experiment.claims]
    return _with_measures(made, completed) if finding is None else _with_attack(made, completed, finding)


def _with_attack(made: Record, completed: Completed, finding: Finding) -> Record:
    point = completed.experiment.point
    return {
        **made,
        "release": _release(finding),
        "attack": repr(finding.attack),
        "matching": finding.scores.matching,
        "scores": summary(finding.scores, objective=finding.reconstruction.objective),
        "nulls": {name: level(null, finding.scores.metrics) for name, null in finding.scores.nulls.items()},
        "limit": _limit(finding),
        "point": None if point is None else _point(point),
    }


def _with_measures(made: Record, completed: Completed) -> Record:
    outcome = completed.outcome
    return {
        **made,
        "about": completed.experiment.about,
        "verdict": outcome.verdict,
        "measures": [_measure(measure) for measure in outcome.measures],
        "figures": [_figure(figure) for figure in outcome.figures],
    }


def rows(completed: Completed) -> list[Row]:
    """One row per withheld record, in the order of the truth; only an attack has any."""
    if (finding := completed.outcome.finding) is None:
        return []
    scores, truth = finding.scores, finding.truth
    return [
        {
            "cell": completed.experiment.label,
            "record": str(i),
            "label": str(int(truth.y[i])),
            "matching": scores.matching,
            "candidate": str(int(scores.index[i])) if scores.index[i] >= 0 else "",
            "found": "yes" if scores.found[i] else "no",
            "closer": "yes" if scores.closer[i] else "no",
            "p_held_out": f"{float(scores.p_held_out[i]):.4g}",
            "p_unrelated": f"{float(scores.p_unrelated[i]):.4g}",
            **{name: f"{float(v[i]):.6g}" if isfinite(v[i]) else "" for name, v in scores.values.items()},
        }
        for i in range(len(truth))
    ]


def images(completed: Completed) -> dict[str, Tensor]:
    """Truth, matched reconstruction and look-alike of each record; black where a record got no reconstruction."""
    if (finding := completed.outcome.finding) is None:
        return {name: as_pixels(x) for name, x in completed.outcome.pictures.items()}
    scores, truth, found = finding.scores, finding.truth.x, finding.reconstruction.x
    matched, has = torch.zeros_like(truth), scores.index >= 0
    matched[has] = found[scores.index[has]].nan_to_num(0).to(truth)
    pictures = {"truth": truth, "reconstruction": matched, "lookalike": scores.lookalike}
    return {name: as_pixels(x) for name, x in pictures.items()}


def as_pixels(x: Tensor) -> Tensor:
    return (x.clamp(0, 1) * 255).round().to(torch.uint8).cpu() if x.ndim == 4 else x.float().cpu()


def _claim(claim: Claim, values: dict[str, float | None], scale: str) -> ClaimRecord:
    measured = {name.casefold(): value for name, value in values.items()}[claim.quantity.casefold()]
    judged = measured if scale == "full" else None
    return ClaimRecord(
        quantity=claim.quantity,
        printed=claim.printed,
        target=claim.target,
        where=claim.where,
        measured=measured,
        holds=None if judged is None else claim.holds(judged),
        reached=None if judged is None else claim.reached(judged),
    )


def _point(point: Point) -> PointRecord:
    return PointRecord(axis=point.axis, value=point.value, series=point.series, log=point.log)


def _caveats(caveats: tuple[Caveat, ...]) -> list[CaveatRecord]:
    return [{"code": caveat.code, "text": caveat.text} for caveat in caveats]


def _limit(finding: Finding) -> LimitRecord | None:
    if (limit := finding.limit) is None:
        return None
    return LimitRecord(
        mu=number(limit.mu),
        epsilon=number(limit.epsilon),
        delta=number(limit.delta),
        metric=limit.metric,
        threshold=limit.threshold,
        prior=limit.prior,
        bound=limit.bound,
        success={"value": limit.success.value, "low": limit.success.low, "high": limit.success.high},
    )


def _measure(measure: Measure) -> MeasureRecord:
    low, high, chance = (None if v is None else number(v) for v in (measure.low, measure.high, measure.chance))
    return MeasureRecord(
        name=measure.name, value=number(measure.value), low=low, high=high, chance=chance, meaning=measure.meaning
    )


def _figure(figure: Figure) -> FigureRecord:
    return FigureRecord(
        title=figure.title,
        x_label=figure.x_label,
        y_label=figure.y_label,
        kind=figure.kind,
        log_x=figure.log_x,
        log_y=figure.log_y,
        series=[_series(series) for series in figure.series],
    )


def _series(series: Series) -> SeriesRecord:
    y, low, high = (None if v is None else [number(value) for value in v] for v in (series.y, series.low, series.high))
    return SeriesRecord(name=series.name, role=series.role, x=[*series.x], y=y or [], low=low, high=high)


def _release(finding: Finding) -> dict[str, Any]:
    release: Any = finding.release
    owned = _in_words(finding.public) if len(finding.public) else "none"
    shown = {field.name: getattr(release, field.name) for field in fields(release)}
    return {
        "kind": type(release).__name__,
        "shows": {name: _in_words(value) for name, value in shown.items() if value is not None},
        "owned": owned,
        "withholds": release.withholds,
        "records": len(finding.truth),
        "data": finding.truth.name,
    }


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return f"{sum(p.numel() for p in value.values()):,} numbers in {len(value)} tensors"
    if isinstance(value, Data):
        return f"{len(value):,} records of {value.name}, each {'x'.join(map(str, value.shape))}"
    if isinstance(value, Tensor):
        return f"tensor of shape {'x'.join(map(str, value.shape))}"
    if isinstance(value, nn.Module):
        return ", ".join(_layer(layer) for layer in value.modules() if not list(layer.children()))
    if isinstance(value, tuple):
        sizes = value and all(isinstance(part, int) for part in value)
        return "x".join(map(str, value)) if sizes else ", ".join(map(repr, value)) or "none"
    return str(value)


def _layer(layer: nn.Module) -> str:
    weight = getattr(layer, "weight", None)
    shape = f" {'x'.join(map(str, reversed(weight.shape)))}" if isinstance(weight, Tensor) else ""
    return f"{type(layer).__name__}{shape}"
