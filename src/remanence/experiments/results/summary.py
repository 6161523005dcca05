"""The scores of a cell and the levels of chance beside them, as they stand in a record."""

from math import isfinite
from typing import Any

import torch
from torch import Tensor

from remanence.metrics import Interval, Metric, Null, Scores
from remanence.metrics.evaluation import FPR, Labels

BINS = 30


def summary(scores: Scores, *, objective: float | None) -> dict[str, Any]:
    return {
        "records": len(scores.index),
        "candidates": scores.candidates,
        "unmatched": scores.unmatched,
        "primary": scores.primary.name,
        "objective": None if objective is None else number(objective),
        "metrics": {metric.name: _metric(metric, scores) for metric in scores.metrics},
        "found": {"count": int(scores.found.sum()), **_share(scores.fraction_found), "fpr": FPR},
        "closer": {"count": int(scores.closer.sum()), **_share(scores.fraction_closer)},
        "labels": None if scores.labels is None else _labels(scores.labels),
        "roc": {
            "fpr": [float(f"{v:.4g}") for v in scores.roc.fpr],
            "tpr": [float(f"{v:.4g}") for v in scores.roc.tpr],
            "tpr_at_1_percent": scores.roc.at_1_percent,
            "tpr_at_0.1_percent": scores.roc.at_01_percent,
        },
        "histogram": _histogram(scores),
    }


def _share(share: Interval) -> dict[str, float]:
    return {"share": share.value, "low": share.low, "high": share.high}


def _labels(labels: Labels) -> dict[str, float]:
    return {**_share(labels.accuracy), "chance": labels.chance}


def _metric(metric: Metric, scores: Scores) -> dict[str, Any]:
    values, mean = scores.values[metric.name], scores.means[metric.name]
    low, median, high = _quantiles(values, (0.1, 0.5, 0.9))
    return {
        "mean": number(mean.value),
        "low": number(mean.low),
        "high": number(mean.high),
        "median": median,
        "p10": low,
        "p90": high,
        "good": metric.good,
        "higher_is_better": metric.higher_is_better,
    }


def level(null: Null, metrics: tuple[Metric, ...]) -> dict[str, Any]:
    return {
        "meaning": null.meaning,
        "count": len(null.values[metrics[0].name]),
        "distinct": null.distinct,
        "metrics": {
            metric.name: {
                "mean": number(float(null.values[metric.name].nanmean())),
                "at_1_percent": _quantiles(null.values[metric.name], (1 - FPR if metric.higher_is_better else FPR,))[0],
            }
            for metric in metrics
        },
    }


def _histogram(scores: Scores) -> dict[str, Any]:
    name = scores.primary.name
    groups = {
        "records": scores.values[name],
        "held_out": scores.nulls["held_out"].values[name],
        "unrelated": scores.nulls["unrelated"].values[name],
    }
    finite = {group: values[values.isfinite()].double().cpu() for group, values in groups.items()}
    pooled = torch.cat(list(finite.values()))
    low, high = (float(pooled.min()), float(pooled.max())) if len(pooled) else (0.0, 1.0)
    high = high if high > low else low + 1e-6
    counts = {group: torch.histc(v, bins=BINS, min=low, max=high).long().tolist() for group, v in finite.items()}
    return {"edges": torch.linspace(low, high, BINS + 1, dtype=torch.double).tolist(), **counts}


def _quantiles(values: Tensor, at: tuple[float, ...]) -> list[float | None]:
    finite = values[values.isfinite()].double().cpu()
    if len(finite) == 0:
        return [None for _ in at]
    return [number(float(q)) for q in finite.quantile(torch.tensor(at, dtype=torch.double))]


def number(value: float) -> float | None:
    return float(f"{value:.6g}") if isfinite(value) else None
