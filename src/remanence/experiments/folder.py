"""A run folder: `results.json` (one result per experiment), `scores.csv` (one row per record), `images.safetensors`,
`evidence.safetensors` (small arrays that tests can be computed from again).

Every file is written under a temporary name and renamed, so that a reader never meets half of one, and all are checked
on reading, so that a page is never rendered from something else.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, final

import torch
from torch import Tensor

from remanence.disk import replace_files
from remanence.errors import BadInput
from remanence.experiments.results import Result, dump_results, parse_results

EVIDENCE = "evidence.safetensors"
Row: TypeAlias = dict[str, str]


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """All that a page is rendered from.

    `images` is keyed `INDEX/truth`, `INDEX/reconstruction`, `INDEX/lookalike`, where INDEX is the experiment's position
    in `results`; row i of each belongs to the experiment's i-th row. Other pictures are keyed `INDEX/what they show`. A
    redacted run has none. `evidence` holds the arrays that tests can be computed from again, keyed in the same way.
    """

    results: list[Result]
    rows: list[Row]
    images: dict[str, Tensor]
    evidence: dict[str, Tensor] = field(default_factory=dict)

    def rows_of(self, label: str) -> list[Row]:
        return [row for row in self.rows if row["experiment"] == label]


def redacted(run: Run) -> Run:
    """The run without all that is about single records: rows, pictures, and figures with a point for each."""
    results = [
        replace(result, figures=tuple(figure for figure in result.figures if figure.kind != "points"))
        for result in run.results
    ]
    return Run(results=results, rows=[], images={})


def read_run(folder: Path) -> Run:
    from safetensors.torch import load_file

    results = read_results(folder)
    with _reading(folder / "scores.csv") as path:
        rows = _read_rows(path)
    with _reading(folder / "images.safetensors") as path:
        images = _read_images(path)
    with _reading(folder / EVIDENCE) as path:
        evidence = load_file(path) if path.is_file() else {}
    return Run(results=results, rows=rows, images=images, evidence=evidence)


def read_results(folder: Path) -> list[Result]:
    with _reading(folder / "results.json") as path:
        if not path.is_file():
            raise BadInput(
                f"`{folder}` is not a run folder (there is no results.json in it): "
                "give the folder that demo, audit or run wrote",
                code="missing-file",
                argument="folder",
            )
        return parse_results(path.read_text(encoding="utf-8"), where=str(path))


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    """Whatever a damaged file raises becomes one sentence that names it."""
    from safetensors import SafetensorError

    try:
        yield path
    except BadInput:
        raise
    except (ValueError, csv.Error, SafetensorError) as error:
        raise BadInput(f"`{path}` is damaged ({error}): make the run again", code="damaged-file") from None


def _read_rows(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for i, row in enumerate(rows):
        if "experiment" not in row or None in row or None in row.values():
            raise ValueError(f"row {i} does not fit its header, or there is no column `experiment`")
    return rows


def _read_images(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    images = load_file(path) if path.is_file() else {}
    for name, x in images.items():
        if (x.dtype, x.ndim) not in ((torch.uint8, 4), (torch.float32, 2)):
            raise ValueError(f"`{name}` holds neither 8-bit images nor float rows")
    return images


def write_run(folder: Path, run: Run) -> None:
    """Write the files of a run; a redacted one (without rows and images) leaves none of an earlier run behind."""
    from safetensors.torch import save

    images, scores, results = (folder / name for name in ("images.safetensors", "scores.csv", "results.json"))
    evidence = folder / EVIDENCE
    stored = {name: image.contiguous() for name, image in run.images.items()}
    arrays = {name: each.contiguous() for name, each in run.evidence.items()}
    text = dump_results(run.results)
    writes: dict[Path, Callable[[Path], object]] = {}
    if stored:
        writes[images] = lambda path: path.write_bytes(save(stored))
    if arrays:
        writes[evidence] = lambda path: path.write_bytes(save(arrays))
    if run.rows:
        writes[scores] = lambda path: _write_rows(path, run.rows)
    writes[results] = lambda path: path.write_text(text, encoding="utf-8")
    replace_files(writes)
    for path in {images, scores, evidence} - writes.keys():
        path.unlink(missing_ok=True)


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
