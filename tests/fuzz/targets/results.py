"""Run folders: results.json, scores.csv and images.safetensors, from which `remanence report` renders a page."""

import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from hostile_json import VALUES, changed, dumped
from safetensors.torch import save

from remanence.experiments.folder import Run, read_run, write_run
from remanence.report import render
from targets import HERE, Target

sys.path.append(str(HERE.parents[1] / "report"))

from made_run import edited, made_limit, made_measurement, made_point, made_run

FILES = ("results.json", "scores.csv", "images.safetensors")


@cache
def small_run(shape: tuple[int, ...] = (1, 4, 4)) -> Run:
    """Two attacks on one axis, one with a limit, and a measurement with a figure of each kind."""
    run = made_run(["first", "second"], n=6, leak=4, shape=shape)
    rate = {"value": 0.5, "low": 0.2, "high": 0.8}
    curve = {"fpr": [0.001, 0.01, 1.0], "tpr": [0.1, 0.5, 1.0], "tpr_at_1_percent": rate, "tpr_at_01_percent": None}
    for index in range(2):
        limit = made_limit(0.5, 0.4) if index else None
        run = edited(run, index, attack__scores__roc=curve, attack__limit=limit, point=made_point("width", 10.0**index))
    return Run(results=[*run.results, made_measurement()], rows=run.rows, images=run.images)


@cache
def seeds() -> Mapping[str, bytes]:
    found = {}
    for prefix, shape in {"": (1, 4, 4), "table-": (3,)}.items():
        with TemporaryDirectory() as folder:
            write_run(Path(folder), small_run(shape))
            found |= {prefix + name: (Path(folder) / name).read_bytes() for name in FILES}
    return found


def kind_of(path: Path) -> str:
    return next(name for name in FILES if path.name.endswith(name))


def parse(path: Path) -> str:
    prefix = "table-" if path.name.startswith("table-") else ""
    with TemporaryDirectory() as folder:
        for name in FILES:
            content = path.read_bytes() if name == kind_of(path) else seeds()[prefix + name]
            (Path(folder) / name).write_bytes(content)
        return render(read_run(Path(folder)))


def sound(parsed: object) -> None:
    """The page can be written, and holds no script but ours."""
    assert isinstance(parsed, str)
    parsed.encode()
    assert parsed.count("<script") == 1
    assert "<img src=x" not in parsed


def crafted() -> Iterable[tuple[str, bytes]]:
    """What once failed, or would have: numbers beyond floats, halves of characters, empty and odd pictures."""
    results = json.loads(seeds()["results.json"])
    for value in VALUES:
        yield "results.json", dumped([results[0] | {"label": value, "seconds": value}, *results[1:]])
        yield "results.json", dumped([results[2] | {"measures": value}])
        figure = results[2]["figures"][0]
        yield "results.json", dumped([results[2] | {"figures": [figure | {"series": value}]}])
        hostile = [series | {"y": [value] * len(series["y"])} for series in figure["series"]]
        yield "results.json", dumped([results[2] | {"figures": [figure | {"series": hostile, "log_y": True}]}])
    yield from ((name, b"") for name in FILES)
    yield "results.json", b"[" * 100_000
    yield "results.json", b'[{"schema": ' + b"[" * 900 + b"]" * 900 + b"}]"
    yield "scores.csv", b"experiment\n" + b"x\n" * 300_000
    yield "scores.csv", b'experiment,"' + b"\x1b" * 100_000 + b'"\nfirst,\n'
    for shape in ((6, 0, 4, 4), (6, 1, 0, 4), (0, 1, 4, 4), (6, 2, 3, 5)):
        yield "images.safetensors", pictures(torch.zeros(shape, dtype=torch.uint8))
    for odd in (torch.zeros(6, 1, 4, 4), torch.zeros(()), torch.zeros(6, 4, dtype=torch.bfloat16), torch.zeros(6, 0)):
        yield "images.safetensors", pictures(odd)
    yield "table-images.safetensors", pictures(torch.full((6, 3), float("nan")))


def pictures(truth: torch.Tensor) -> bytes:
    parts = {
        f"{index}/{part}": truth.clone() for index in range(2) for part in ("truth", "reconstruction", "lookalike")
    }
    return save(parts)


def made(random: Random) -> tuple[str, bytes]:
    return "results.json", dumped(changed(json.loads(seeds()["results.json"]), random))


TARGET = Target(
    parse=parse,
    seeds=seeds,
    crafted=crafted,
    made=made,
    sound=sound,
    words=(b"\n", b'"attack": ', b"experiment,", b'"dtype":"F8_E5M2"', b'"shape":[0]', b"1e308", b"</script>"),
)
