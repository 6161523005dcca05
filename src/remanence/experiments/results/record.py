"""From what a cell gave to its record, its rows and its pictures."""

from dataclasses import fields
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from remanence.audit.finding import Finding
from remanence.experiments import CellResult, Claim, Figure, Measure, Point, Refusal, Series, StudyResult
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


def record(result: CellResult | StudyResult | Refusal, *, recipe: str, scale: str, seed: int, command: str) -> Record:
    """What stands in `results.json` about one cell or one study."""
    made = Record(
        schema=SCHEMA,
        kind="attack" if isinstance(result, CellResult) else "study" if isinstance(result, StudyResult) else "refused",
        recipe=recipe,
        cell=result.label,
        scale=scale,
        seed=seed,
        command=command,
        commit=commit(),
        hardware=hardware(result.device),
        seconds=round(result.seconds, 3),
        claims=[],
        caveats=[],
    )
    if isinstance(result, Refusal):
        return {**made, "refusal": result.why}
    return _with_study(made, result) if isinstance(result, StudyResult) else _with_attack(made, result)


def _with_attack(made: Record, result: CellResult) -> Record:
    finding, point = result.finding, result.cell.point
    scores = summary(finding.scores, objective=finding.reconstruction.objective)
    return {
        **made,
        "release": _release(finding),
        "attack": repr(finding.attack),
        "matching": finding.scores.matching,
        "scores": scores,
        "nulls": {name: level(null, finding.scores.metrics) for name, null in finding.scores.nulls.items()},
        "limit": _limit(finding),
        "point": None if point is None else _point(point),
        "claims": [_claim(claim, _quantities(scores), made["scale"]) for claim in result.cell.claims],
        "caveats": _caveats(result.caveats),
    }


def _with_study(made: Record, result: StudyResult) -> Record:
    outcome = result.outcome
    measured = {measure.name: number(measure.value) for measure in outcome.measures}
    return {
        **made,
        "about": result.study.about,
        "verdict": outcome.verdict,
        "measures": [_measure(measure) for measure in outcome.measures],
        "figures": [_figure(figure) for figure in outcome.figures],
        "claims": [_claim(claim, measured, made["scale"]) for claim in result.study.claims],
        "caveats": _caveats(outcome.caveats),
    }


def rows(result: CellResult | StudyResult | Refusal) -> list[Row]:
    """One row per withheld record, in the order of the truth; only an attack has any."""
    if not isinstance(result, CellResult):
        return []
    scores, truth = result.finding.scores, result.finding.truth
    return [
        {
            "cell": result.cell.label,
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


def images(result: CellResult | StudyResult | Refusal) -> dict[str, Tensor]:
    """Truth, matched reconstruction and look-alike of each record; black where a record got no reconstruction."""
    if isinstance(result, Refusal):
        return {}
    if isinstance(result, StudyResult):
        return {name: as_pixels(x) for name, x in result.outcome.pictures.items()}
    scores, truth, found = result.finding.scores, result.finding.truth.x, result.finding.reconstruction.x
    matched, has = torch.zeros_like(truth), scores.index >= 0
    matched[has] = found[scores.index[has]].nan_to_num(0).to(truth)
    pictures = {"truth": truth, "reconstruction": matched, "lookalike": scores.lookalike}
    return {name: as_pixels(x) for name, x in pictures.items()}


def as_pixels(x: Tensor) -> Tensor:
    return (x.clamp(0, 1) * 255).round().to(torch.uint8).cpu() if x.ndim == 4 else x.float().cpu()


def _quantities(scores: dict[str, Any]) -> dict[str, float | None]:
    """The values of `metrics.evaluate.quantities`, as the record holds them."""
    values = {f"{kind} {name}": said[kind] for kind in ("mean", "median") for name, said in scores["metrics"].items()}
    return values | {
        "share found": scores["found"]["share"],
        "share closer than the nearest neighbour": scores["closer"]["share"],
    }


def _claim(claim: Claim, values: dict[str, float | None], scale: str) -> ClaimRecord:
    measured = {name.casefold(): value for name, value in values.items()}[claim.quantity.casefold()]
    judged = measured if scale == "paper" else None
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
