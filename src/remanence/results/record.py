"""From what a cell gave to its record, its rows and its pictures."""

import os
import platform
import subprocess
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from remanence.audit import Finding
from remanence.experiment import CellResult, Claim
from remanence.metrics import Metric, Null, Scores
from remanence.metrics.evaluate import FPR
from remanence.results.folder import Row
from remanence.results.schema import SCHEMA, ClaimRecord, Record
from remanence.types import Data

BINS = 30


def record(result: CellResult, *, recipe: str, scale: str, seed: int, command: str) -> Record:
    finding = result.finding
    return Record(
        schema=SCHEMA,
        recipe=recipe,
        cell=result.cell.label,
        scale=scale,
        seed=seed,
        command=command,
        commit=_commit(),
        hardware=_hardware(result.device),
        seconds=round(result.seconds, 3),
        release=_release(finding),
        attack=repr(finding.attack),
        matching=finding.scores.matching,
        scores=_scores(finding.scores),
        nulls={name: _null(null, finding.scores.metrics) for name, null in finding.scores.nulls.items()},
        claims=[_claim(claim, finding.scores, scale) for claim in result.cell.claims],
        caveats=[{"code": caveat.code, "text": caveat.text} for caveat in result.caveats],
    )


def rows(result: CellResult) -> list[Row]:
    """One row per withheld record, in the order of the truth."""
    scores, truth = result.finding.scores, result.finding.truth
    return [
        {
            "cell": result.cell.label,
            "record": str(i),
            "label": str(int(truth.y[i])),
            "matching": scores.matching,
            "candidate": str(int(scores.index[i])) if scores.index[i] >= 0 else "",
            "found": "yes" if scores.found[i] else "no",
            "p_held_out": f"{float(scores.p_held_out[i]):.4g}",
            "p_unrelated": f"{float(scores.p_unrelated[i]):.4g}",
            **{name: f"{float(v[i]):.6g}" if isfinite(v[i]) else "" for name, v in scores.values.items()},
        }
        for i in range(len(truth))
    ]


def images(result: CellResult) -> dict[str, Tensor]:
    """Truth, matched reconstruction and look-alike of each record; black where a record got no reconstruction."""
    scores, truth, found = result.finding.scores, result.finding.truth.x, result.finding.reconstruction.x
    matched, has = torch.zeros_like(truth), scores.index >= 0
    matched[has] = found[scores.index[has]].nan_to_num(0).to(truth)
    pictures = {"truth": truth, "reconstruction": matched, "lookalike": scores.lookalike}
    return {name: as_pixels(x) for name, x in pictures.items()}


def as_pixels(x: Tensor) -> Tensor:
    return (x.clamp(0, 1) * 255).round().to(torch.uint8).cpu() if x.ndim == 4 else x.float().cpu()


def _scores(scores: Scores) -> dict[str, Any]:
    return {
        "records": len(scores.index),
        "candidates": scores.candidates,
        "unmatched": scores.unmatched,
        "primary": scores.primary.name,
        "metrics": {metric.name: _metric(metric, scores) for metric in scores.metrics},
        "found": {
            "count": int(scores.found.sum()),
            "share": scores.share_found.value,
            "low": scores.share_found.low,
            "high": scores.share_found.high,
            "fpr": FPR,
        },
        "roc": {
            "fpr": [float(f"{v:.4g}") for v in scores.roc.fpr],
            "tpr": [float(f"{v:.4g}") for v in scores.roc.tpr],
            "tpr_at_1_percent": scores.roc.at_1_percent,
            "tpr_at_0.1_percent": scores.roc.at_01_percent,
        },
        "histogram": _histogram(scores),
    }


def _metric(metric: Metric, scores: Scores) -> dict[str, Any]:
    values, mean = scores.values[metric.name], scores.means[metric.name]
    low, median, high = _quantiles(values, (0.1, 0.5, 0.9))
    return {
        "mean": _number(mean.value),
        "low": _number(mean.low),
        "high": _number(mean.high),
        "median": median,
        "p10": low,
        "p90": high,
        "higher_is_better": metric.higher_is_better,
    }


def _null(null: Null, metrics: tuple[Metric, ...]) -> dict[str, Any]:
    return {
        "meaning": null.meaning,
        "count": len(null.values[metrics[0].name]),
        "distinct": null.distinct,
        "metrics": {
            metric.name: {
                "mean": _number(float(null.values[metric.name].nanmean())),
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
    return [_number(float(q)) for q in finite.quantile(torch.tensor(at, dtype=torch.double))]


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if isfinite(value) else None


def _claim(claim: Claim, scores: Scores, scale: str) -> ClaimRecord:
    measured = _number(scores.means[claim.metric.name].value)
    judged = scale == "paper" and measured is not None
    return ClaimRecord(
        quantity=f"mean {claim.metric.name}",
        printed=claim.printed,
        where=claim.where,
        measured=measured,
        holds=claim.holds(measured) if judged and measured is not None else None,
    )


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
        return "x".join(map(str, value))
    return str(value)


def _layer(layer: nn.Module) -> str:
    weight = getattr(layer, "weight", None)
    shape = f" {'x'.join(map(str, reversed(weight.shape)))}" if isinstance(weight, Tensor) else ""
    return f"{type(layer).__name__}{shape}"


def _hardware(device: torch.device) -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        ours = version("remanence")
    except PackageNotFoundError:  # run from a source tree that was not installed
        ours = "source tree"
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "platform": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "remanence": ours,
    }


def _commit() -> str | None:
    """The commit of the code that ran, marked when it was changed since; None outside a checkout.

    A copy without its history (a container, another machine) may name it in `$REMANENCE_COMMIT`.
    """
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():  # an installed copy may lie inside the checkout of another project
        return os.environ.get("REMANENCE_COMMIT")
    call = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(call, cwd=checkout, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
