"""Folders of audits: report.json and images.safetensors, which `remanence report` and `--compare` load."""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from hostile_json import VALUES, changed, dumped
from safetensors.torch import save
from torch import Tensor

from remanence.auditing import Report
from remanence.auditing.answer.examples import Examples, dump_examples
from remanence.auditing.answer.formats import to_junit, to_sarif, to_summary
from remanence.auditing.answer.gate import compare, failures
from remanence.auditing.answer.report import Countermeasure
from remanence.auditing.answer.saved import dump_answer
from remanence.columns import Column, Columns
from remanence.errors import printable
from remanence.experiments.codec import encode
from remanence.metrics import Interval
from targets import HERE, Target

sys.path.append(str(HERE.parents[1] / "auditing"))

from made_report import AUC, RAN, made_answer

FILES = ("report.json", "images.safetensors")
GATES = ("found>0", "found>10%", "exact>=1", "membership.tpr@1%>0.05", "severity>=membership")


def examples(*shape: int, columns: Columns | None = None) -> Examples:
    truth = torch.arange(2 * torch.Size(shape).numel()).reshape(2, *shape)
    truth = truth.to(torch.uint8) if len(shape) == 3 else truth / 7
    parts = {name: truth.clone() for name in ("truth", "reconstruction", "lookalike")}
    halves, counts = torch.tensor([0.5, 0.25]), torch.arange(2)
    return Examples(
        metric="ssim",
        record=counts,
        label=counts.clone(),
        score=halves,
        found=torch.tensor([True, False]),
        p=halves.clone(),
        rank=counts + 1,
        same=halves.clone(),
        shared=counts.clone(),
        by=("pixels", "ssim"),
        held_out=500,
        columns=columns,
        **parts,
    )


COLUMNS = Columns(
    columns=(
        Column(name="age", start=0, low=0.0, high=99.0, resolution=1.0, unit="years"),
        Column(name="when", start=1, kind="date", low=7e5, high=7.3e5),
        Column(name="job", start=2, kind="category", categories=("cook", "smith"), reference="none"),
    ),
    classes=("ill", "well"),
)


@cache
def seeds() -> Mapping[str, bytes]:
    fraction = Interval(value=0.9, low=0.8, high=0.95)
    helps = Countermeasure(name="noise", setting="0.1", status="ran", accuracy=fraction, attack=RAN, auc=AUC, bound=0.5)
    answer = made_answer(countermeasures=(helps,))
    return {
        "report.json": dump_answer(answer).encode(),
        "images.safetensors": dump_examples({"FirstLayer": examples(1, 3, 3)}),
        "table-images.safetensors": dump_examples({"FirstLayer": examples(4, columns=COLUMNS)}),
    }


def parse(path: Path) -> str:
    kind = next(name for name in FILES if path.name.endswith(name))
    with TemporaryDirectory() as folder:
        for name in FILES:
            (Path(folder) / name).write_bytes(path.read_bytes() if name == kind else seeds()[name])
        report = Report.load(folder)
    own = Report(answer=made_answer())
    said = [str(report), *compare(report, own), *compare(own, report), *failures(report, GATES), report.model_card()]
    assert all(len(each) < 1_000_000 for each in said)
    assert all(line == printable(line) for line in str(report).split("\n"))
    for form in (to_junit(report.answer), to_sarif(report.answer), to_summary(report.answer)):
        form.encode()
    return report.to_html() + report._repr_html_()


def sound(parsed: object) -> None:
    """The page can be written, and holds no script but ours."""
    assert isinstance(parsed, str)
    parsed.encode()
    assert parsed.count("<script") == 1


def crafted() -> Iterable[tuple[str, bytes]]:
    """What once failed, or would have: odd numbers everywhere, tensors that are no examples, columns outside."""
    answer = json.loads(seeds()["report.json"])
    for value in VALUES:
        yield "report.json", dumped(answer | {"seconds": value, "verdict": value})
        row = answer["attacks"][0] | {"records": value, "found": value, "low": value, "high": value, "chance": value}
        yield "report.json", dumped(answer | {"attacks": [row]})
        yield "report.json", dumped(answer | {"attacks": [answer["attacks"][0] | {"name": value, "call": value}]})
        yield "report.json", dumped(answer | {"countermeasures": [answer["countermeasures"][0] | {"accuracy": value}]})
        yield "report.json", dumped(answer | {"evidence": [answer["evidence"][0] | {"value": value, "low": value}]})
    yield from ((name, b"") for name in FILES)
    for name in ("record", "label", "score", "found", "truth", "lookalike"):
        for odd in (torch.zeros(2, 3), torch.zeros(()), torch.zeros(0), torch.full((2,), float("nan"))):
            yield "images.safetensors", stored(**{name: odd})
        yield "images.safetensors", stored(**{name: torch.zeros(2, dtype=torch.complex64)})
    columns = json.loads(json.dumps(encode(COLUMNS)))
    for value in VALUES:
        for field in ("start", "low", "resolution", "categories", "kind"):
            hostile = columns | {"columns": [each | {field: value} for each in columns["columns"]]}
            yield "table-images.safetensors", stored(columns=hostile, shape=(4,))
    yield "images.safetensors", save({}, {"examples": "[" * 5000})
    yield "images.safetensors", save({}, {"examples": "[]"})
    yield "images.safetensors", save({})


def stored(*, columns: object = None, shape: tuple[int, ...] = (1, 3, 3), **changes: Tensor) -> bytes:
    """The file of one attack's examples with some tensors replaced."""
    good = examples(*shape)
    tensors = {field.name: getattr(good, field.name) for field in fields(good)}
    named = {f"FirstLayer/{name}": x for name, x in (tensors | changes).items() if isinstance(x, Tensor)}
    return save(named, {"examples": json.dumps({"FirstLayer": {"metric": "ssim", "columns": columns}})})


def made(random: Random) -> tuple[str, bytes]:
    return "report.json", dumped(changed(json.loads(seeds()["report.json"]), random))


TARGET = Target(
    parse=parse,
    seeds=seeds,
    crafted=crafted,
    made=made,
    sound=sound,
    words=(b"\n", b'"attacks": ', b'"dtype":"F64"', b'"shape":[2,0]', b"1e308", b"null", b"</script>"),
)
