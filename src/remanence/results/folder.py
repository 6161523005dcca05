"""A run folder: `results.json` (one record per cell), `scores.csv` (one row per record), `images.safetensors`.

Every file is written under a temporary name and renamed, so that a reader never meets half of one, and the schema is
checked on reading, so that a page is never drawn from something else.
"""

import csv
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

from torch import Tensor

from remanence.errors import BadInput
from remanence.results.schema import Record, parse_records

Row: TypeAlias = dict[str, str]


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """All that a page is drawn from. `images` is keyed `INDEX/truth`, `INDEX/reconstruction`, `INDEX/lookalike`, where
    INDEX is the cell's place in `records`; row i of each belongs to the cell's i-th row. A redacted run has none."""

    records: list[Record]
    rows: list[Row]
    images: dict[str, Tensor]

    def rows_of(self, cell: str) -> list[Row]:
        return [row for row in self.rows if row["cell"] == cell]


def read_run(folder: Path) -> Run:
    path = folder / "results.json"
    if not path.is_file():
        raise BadInput(f"`{folder}` is not a run folder: there is no results.json in it")
    records = parse_records(path.read_text(encoding="utf-8"), where=str(path))
    return Run(records=records, rows=_read_rows(folder / "scores.csv"), images=_read_images(folder))


def _read_rows(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _read_images(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    path = folder / "images.safetensors"
    return load_file(path) if path.is_file() else {}


def write_run(folder: Path, run: Run) -> None:
    """Write the three files of a run; a redacted run (without images) leaves no picture behind."""
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    images = folder / "images.safetensors"
    if run.images:
        stored = {name: image.contiguous() for name, image in run.images.items()}
        replace_file(images, lambda path: path.write_bytes(save(stored)))
    else:
        images.unlink(missing_ok=True)
    replace_file(folder / "scores.csv", lambda path: _write_rows(path, run.rows))
    text = json.dumps(run.records, indent=1, allow_nan=False) + "\n"
    replace_file(folder / "results.json", lambda path: path.write_text(text, encoding="utf-8"))


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then give it its name; on any error `path` is as before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
