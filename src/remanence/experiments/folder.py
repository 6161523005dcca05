"""A run folder: `results.json` (one result per experiment), `scores.csv` (one row per record), `images.safetensors`,
`evidence.safetensors` (small arrays that tests can be computed from again).

Every file is written under a temporary name and renamed, so that a reader never meets half of one, and all are checked
on reading, so that a page is never rendered from something else.
"""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import TextIOWrapper
from pathlib import Path
from typing import TypeAlias, final

import torch
from torch import Tensor

from remanence.disk import check_safetensors, open_regular, read_text, replace_files
from remanence.errors import BadInput, printable
from remanence.experiments.codec import MAX_BYTES
from remanence.experiments.results import Result, dump_results, parse_results

EVIDENCE = "evidence.safetensors"
Row: TypeAlias = dict[str, str]
_MAX_ROWS, _MAX_CELLS, _MAX_TABLE = 200_000, 3_000_000, 2**26  # of scores.csv, the last in bytes
_MAX_TENSORS = 2000


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
        return self._rows_by_label.get(label, [])

    @cached_property
    def _rows_by_label(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row["experiment"], []).append(row)
        return found

    @cached_property
    def columns(self) -> list[str]:
        """The columns of all rows, in the order of the file."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def part(self, index: int) -> "Run":
        """The run of one of the results."""
        result, start = self.results[index], f"{index}/"
        images, evidence = (
            {f"0/{name.removeprefix(start)}": x for name, x in arrays.items() if name.startswith(start)}
            for arrays in (self.images, self.evidence)
        )
        return Run(results=[result], rows=self.rows_of(result.label), images=images, evidence=evidence)


def joined(parts: Sequence[Run]) -> Run:
    """Runs of one result each as one run, in their order."""
    return Run(
        results=[part.results[0] for part in parts],
        rows=[row for part in parts for row in part.rows],
        images=_numbered(part.images for part in parts),
        evidence=_numbered(part.evidence for part in parts),
    )


def _numbered(arrays: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{i}/{name.partition('/')[2]}": x for i, each in enumerate(arrays) for name, x in each.items()}


def redacted(run: Run) -> Run:
    """The run without all that is about single records: rows, pictures, and figures with a point for each."""
    results = [
        replace(result, figures=tuple(figure for figure in result.figures if figure.kind != "points"))
        for result in run.results
    ]
    return Run(results=results, rows=[], images={})


def read_run(folder: Path) -> Run:
    results = read_results(folder)
    with _reading(folder / "scores.csv") as path:
        rows = _read_rows(path)
    with _reading(folder / "images.safetensors") as path:
        images = _read_images(path)
    with _reading(folder / EVIDENCE) as path:
        evidence = _read_arrays(path)
    return Run(results=results, rows=rows, images=images, evidence=evidence)


def read_finished(folder: Path) -> list[Run]:
    """The run of each result in `folder`; none where a kill came between the replacements of two of its files."""
    run = read_run(folder)
    labels = _labels(run)
    for name in ("images.safetensors", EVIDENCE):
        with _reading(folder / name) as path:
            if path.exists() and _metadata(path) != labels:
                return []
    return [run.part(i) for i in range(len(run.results))]


def _labels(run: Run) -> dict[str, str]:
    """What the files of arrays say about the results that they belong to."""
    return {"experiments": json.dumps([result.label for result in run.results])}


def _metadata(path: Path) -> dict[str, str] | None:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        found: dict[str, str] | None = file.metadata()
    return found


def read_results(folder: Path) -> list[Result]:
    with _reading(folder / "results.json") as path:
        if not path.exists():
            raise BadInput(
                f"`{folder}` is not a run folder (there is no results.json in it): "
                "give the folder that demo, audit or run wrote",
                code="missing-file",
                argument="folder",
            )
        return parse_results(read_text(path, max_bytes=MAX_BYTES), where=str(path))


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    """Whatever a damaged file raises becomes one sentence that names it."""
    from safetensors import SafetensorError

    try:
        yield path
    except BadInput:
        raise
    except (ValueError, csv.Error, SafetensorError, KeyError, AttributeError, RuntimeError) as error:
        message = f"`{path}` is damaged ({printable(str(error), 300)}): make the run again"
        raise BadInput(message, code="damaged-file") from None


def _read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    rows = list[Row]()
    with TextIOWrapper(open_regular(path), newline="", encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_size > _MAX_TABLE:
            raise ValueError(f"it has more than {_MAX_TABLE:,} bytes")
        for i, row in enumerate(csv.DictReader(file)):
            if "experiment" not in row or None in row or None in row.values():
                raise ValueError(f"row {i} does not fit its header, or there is no column `experiment`")
            if i >= _MAX_ROWS or i * len(row) > _MAX_CELLS:
                raise ValueError(f"it has more than {_MAX_ROWS:,} rows or {_MAX_CELLS:,} cells")
            rows.append(row)
    return rows


def _read_arrays(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    if not path.exists():
        return {}
    check_safetensors(path)
    return load_file(path)


def _read_images(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    if not path.exists():
        return {}
    check_safetensors(path)
    images = load_file(path)  # maps the file: what no page shows is never read
    if len(images) > _MAX_TENSORS:
        raise ValueError(f"it holds more than {_MAX_TENSORS:,} tensors")
    for name, x in images.items():
        if (x.dtype, x.ndim) not in ((torch.uint8, 4), (torch.float32, 2)) or 0 in x.shape[1:]:
            raise ValueError(f"`{printable(name, 80)}` holds neither 8-bit images nor float rows, or empty ones")
    return images


def write_run(folder: Path, run: Run) -> None:
    """Write the files of a run; a redacted one (without rows and images) leaves none of an earlier run behind."""
    from safetensors.torch import save

    images, scores, results = (folder / name for name in ("images.safetensors", "scores.csv", "results.json"))
    evidence = folder / EVIDENCE
    stored = {name: image.contiguous() for name, image in run.images.items()}
    arrays = {name: each.contiguous() for name, each in run.evidence.items()}
    text, labels = dump_results(run.results), _labels(run)
    writes: dict[Path, Callable[[Path], object]] = {}
    if stored:
        writes[images] = lambda path: path.write_bytes(save(stored, labels))
    if arrays:
        writes[evidence] = lambda path: path.write_bytes(save(arrays, labels))
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
