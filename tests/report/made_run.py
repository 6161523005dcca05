"""A run made by hand, with the shape of a real one: the page's tests need no attack."""

import json
from collections.abc import Sequence
from typing import Any

import torch
from scipy.stats import beta
from torch import Tensor

from remanence.experiments.codec import decode, encode
from remanence.experiments.folder import Row, Run
from remanence.experiments.outcome import Figure
from remanence.experiments.results import SCHEMA, Result
from remanence.experiments.summary import as_pixels

BINS = 24
MEANINGS = {
    "held_out": "The same reconstructions against records that were never trained on.",
    "unrelated": "Images of other records in place of the reconstructions.",
    "noise": "Uniform noise in place of the reconstructions.",
    "mean_image": "The mean of the public images in place of every reconstruction.",
    "nearest_neighbour": "For each record the public image nearest to it.",
}


def made_run(
    labels: Sequence[str] = ("weights only",), *, n: int = 16, shape: tuple[int, ...] = (3, 12, 12), leak: int = 14
) -> Run:
    """One attack for each label; in the first `leak` of the `n` records are found, in every later one none."""
    results: list[Result] = []
    rows: list[Row] = []
    images: dict[str, Tensor] = {}
    for index, label in enumerate(labels):
        count = leak if index == 0 else 0
        scores = made_scores(n, count, seed=index)
        results.append(decode(Result, made_result(label, scores, count)))
        rows += [made_row(label, i, score, found=i < count) for i, score in enumerate(scores.tolist())]
        images |= {f"{index}/{part}": x for part, x in made_images(scores, shape, seed=index).items()}
    return Run(results=results, rows=rows, images=images)


def made_scores(n: int, count: int, *, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    good = 0.55 + 0.42 * torch.rand(count, generator=generator)
    return torch.cat([good, 0.1 + 0.2 * torch.rand(n - count, generator=generator)])


def made_images(scores: Tensor, shape: tuple[int, ...], *, seed: int) -> dict[str, Tensor]:
    """Smooth blobs; the worse the score, the more noise in the reconstruction."""
    generator = torch.Generator().manual_seed(seed)
    truth, other = (blobs(len(scores), shape, generator) for _ in range(2))
    weight = scores.reshape(-1, *[1] * len(shape))
    noisy = weight * truth + (1 - weight) * torch.rand(truth.shape, generator=generator)
    parts = {"truth": truth, "reconstruction": noisy, "lookalike": 0.3 * truth + 0.7 * other}
    return {part: as_pixels(x) for part, x in parts.items()}


def blobs(n: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if len(shape) == 1:
        return torch.rand(n, *shape, generator=generator)
    coarse = torch.rand(n, shape[0], 4, 4, generator=generator)
    return torch.nn.functional.interpolate(coarse, size=shape[1:], mode="bicubic").clamp(0, 1)


def made_row(label: str, i: int, score: float, *, found: bool) -> Row:
    matched = found or i % 9 != 8
    return {
        "experiment": label,
        "record": str(i),
        "label": str(i % 10),
        "matching": "hungarian",
        "candidate": str(3 * i % 17) if matched else "",
        "found": "yes" if found else "no",
        "p": f"{0.0005 if found else 0.2 + i / 1000}",
        "exact": "yes" if found and i == 0 else "no",
        "recognised_by": "ssim" if i % 2 else "pixels",
        "rank": "1" if found else str(200 + i),
        "ssim": f"{score:.6f}" if matched else "",
        "mse": f"{(1 - score) ** 2 / 10:.8f}" if matched else "",
    }


def edited(run: Run, index: int = 0, **fields: Any) -> Run:
    """`run` with fields of one result replaced; `attack__scores__primary` is a field inside others."""
    value = encode(run.results[index])
    for path, new in fields.items():
        *outer, last = path.split("__")
        inside = value
        for name in outer:
            inside = inside[name]
        inside[last] = encode(new)
    return Run(
        results=[*run.results[:index], decode(Result, jsoned(value)), *run.results[index + 1 :]],
        rows=run.rows,
        images=run.images,
    )


def jsoned(value: Any) -> Any:
    return json.loads(json.dumps(value))


def made_result(label: str, scores: Tensor, count: int) -> dict[str, Any]:
    """The JSON of an attack's result."""
    attack = {
        "call": "KKT(steps=5000, lr=0.01, norms=(150.0, 200.0), search=Search(restarts=2, init='uniform'))",
        "release": {
            "kind": "WeightsOnly",
            "shows": {"final": "the trained weights", "model": "an MLP 144-1000-1000-2", "shape": "3 x 12 x 12"},
            "owned": "no records",
            "data": "made",
            "withholds": "The training records, their order, and the weights before training.",
            "records": len(scores),
        },
        "matching": "nearest_ncc",
        "scores": made_summary(scores, count),
        "nulls": {name: made_null(meaning, 0.15 + i / 50) for i, (name, meaning) in enumerate(MEANINGS.items())},
        "limit": None,
    }
    return {
        "schema": SCHEMA,
        "recipe": "demo.digits",
        "label": label,
        "about": "",
        "scale": "smoke",
        "seed": 7,
        "command": "remanence demo --out demo",
        "commit": "0123abc" if count else None,
        "hardware": {
            "device": "cpu",
            "threads": 1,
            "platform": "Linux",
            "python": "3.11.9",
            "torch": "2.11.0",
            "remanence": "0.1.0",
        },
        "seconds": 41.26,
        "repeats": 1,
        "budget": None,
        "point": None,
        "refusal": None,
        "attack": attack,
        "verdict": None,
        "measures": [],
        "figures": [],
        "claims": made_claims() if count else [],
        "caveats": made_caveats() if count else [],
    }


def made_measurement(label: str = "membership", **changes: Any) -> Result:
    """Measures with and without an interval and chance, and a figure of each kind."""
    value = made_result(label, torch.linspace(0, 1, 16), 14) | {
        "attack": None,
        "about": "Whether one can tell that a record was trained on.",
        "measures": [
            made_measure("AUC, fixed", 0.998, low=0.99, high=1.0, chance=0.5),
            made_measure("AUC, random", 0.55, low=0.5, high=0.6, chance=0.5),
            made_measure("norm", 12.5),
        ],
        "figures": [figure_json(kind) for kind in ("lines", "bars", "points")],
        "claims": [made_claim("AUC, fixed", None, "figure 10", 0.998, target=0.99, reached=True)],
    }
    return decode(Result, jsoned(value | changes))


def made_limit(success: float, bound: float, **changes: Any) -> Any:
    reach = {"value": success, "low": 0.9 * success, "high": min(1.0, 1.1 * success)}
    words = {"mu": 1.0, "epsilon": 3.0, "delta": 1e-5, "metric": "mse", "threshold": 0.01, "prior": 0.02}
    return words | {"bound": bound, "success": reach} | changes


def made_point(axis: str, value: float | str, **changes: Any) -> Any:
    return {"axis": axis, "value": value, "series": "", "log": False} | changes


def made_measure(name: str, value: float, **changes: Any) -> Any:
    return {
        "name": name,
        "value": value,
        "low": None,
        "high": None,
        "chance": None,
        "meaning": f"About {name}.",
    } | changes


def made_figure(kind: str = "lines", **changes: Any) -> Figure:
    return decode(Figure, jsoned(figure_json(kind, **changes)))


def figure_json(kind: str = "lines", **changes: Any) -> dict[str, Any]:
    x: list[Any] = ["one", "two", "three"] if kind == "bars" else [1.0, 10.0, 100.0]
    names = ("name", "role", "x", "y", "low", "high")
    series = [
        ("first", "ours", x, [0.2, 0.4, 0.8], [0.1, 0.3, 0.7], [0.3, 0.5, 0.9]),
        ("second", "ours", x, [0.1, None, 0.3], None, None),
        ("guess", "chance", x, [0.5, 0.5, 0.5], None, None),
        ("bound", "limit", x[:2], [0.9, 0.95], None, None),
        ("paper", "printed", x[2:], [0.75], None, None),
    ]
    words = {
        "title": f"Some {kind}",
        "x_label": "epochs",
        "y_label": "AUC",
        "kind": kind,
        "log_x": False,
        "log_y": False,
    }
    return words | {"series": [dict(zip(names, values, strict=True)) for values in series]} | changes


def made_claims() -> list[Any]:
    return [
        made_claim("mean SSIM", 0.62, "Table 2, row 3", 0.604, holds=True),
        made_claim("share above SSIM 0.4", 0.9, "Figure 5 (a)", 0.41, holds=False, target=0.5, reached=False),
        made_claim("records found", 500, "Section 5.1", 14),
        made_claim("records found of others", 500, "Section 5.2", None),
    ]


def made_claim(quantity: str, printed: float | None, where: str, measured: float | None, **changes: Any) -> Any:
    words = {"quantity": quantity, "printed": printed, "where": where, "measured": measured}
    return words | {"target": None, "holds": None, "reached": None} | changes


def made_caveats() -> list[Any]:
    return [
        {"code": "few-records", "text": "Few records were withheld: the interval is wide."},
        {"code": "tuned", "text": "The learning rate was chosen on another victim, but of the same data set."},
    ]


def made_summary(scores: Tensor, count: int) -> dict[str, Any]:
    n = len(scores)
    null = torch.linspace(0.0, 1.0, 2000).pow(1.5) * 0.42
    tpr = [float((scores > level).float().mean()) for level in null.flip(0)]
    counts = torch.histc(null, BINS, 0, 1).int()
    return {
        "records": n,
        "candidates": 2 * n,
        "unmatched": n // 9,
        "primary": "ssim",
        "objective": 0.125 if count else None,
        "metrics": {"ssim": made_metric(scores, up=True), "mse": made_metric((1 - scores) ** 2 / 10, up=False)},
        "found": {"count": count, "fraction": made_interval(count, n)},
        "test": made_test(count),
        "identification": made_identification(count, n),
        "closer": {"count": n // 2, "fraction": made_interval(n // 2, n), "chance": 0.125} if count else None,
        "labels": {"accuracy": made_interval(n // 4, n), "chance": 0.2} if count else None,
        "roc": {"fpr": [i / 2000 for i in range(2000)], "tpr": tpr}
        | {"tpr_at_1_percent": made_interval(count, n)}
        | {"tpr_at_01_percent": made_interval(count, n) if count else None},
        "histogram": {
            "edges": [i / BINS for i in range(BINS + 1)],
            "records": torch.histc(scores, BINS, 0, 1).int().tolist(),
            "held_out": counts.tolist(),
            "unrelated": counts.roll(1).tolist(),
        },
    }


def made_test(count: int, **changes: Any) -> Any:
    """The test of an attack that found `count` records, one of them as an exact copy, half by each similarity."""
    by = {"pixels": (count + 1) // 2, "ssim": count // 2}
    return {
        "fdr": 0.05,
        "p": 5e-5 if count else 0.6,
        "false": 0.05 * count,
        "copies": min(1, count),
        "held_out": 1000,
        "smallest_list": 1,
        "untested": [],
        "by": {name: found for name, found in by.items() if found},
        "subjects": None,
    } | changes


def made_identification(count: int, n: int) -> Any:
    return {
        "held_out": 1000,
        "median": 1.0 if 2 * count > n else 215.0,
        "chance_median": 310.0,
        "top1": made_interval(count, n),
        "chance_top1": 0.004,
        "top5": made_interval(count, n),
        "chance_top5": 0.015,
    }


def made_interval(count: int, n: int) -> dict[str, float]:
    low = float(beta.ppf(0.025, count, n - count + 1)) if count else 0.0
    high = float(beta.ppf(0.975, count + 1, n - count)) if count < n else 1.0
    return {"value": count / n, "low": low, "high": high}


def made_metric(scores: Tensor, *, up: bool) -> dict[str, Any]:
    quantiles = torch.quantile(scores, torch.tensor([0.1, 0.5, 0.9])).tolist()
    mean = float(scores.mean())
    return {
        "mean": mean,
        "low": mean * 0.93,
        "high": mean * 1.06,
        "good": 0.4 if up else None,
        "higher_is_better": up,
    } | dict(zip(("p10", "median", "p90"), quantiles, strict=True))


def made_null(meaning: str, mean: float, metric: str = "ssim") -> dict[str, Any]:
    levels = {metric: {"mean": mean, "at_1_percent": 2.5 * mean}, "mse": {"mean": mean / 2, "at_1_percent": mean / 5}}
    return {"meaning": meaning, "count": 2000, "distinct": 1800, "metrics": levels}
