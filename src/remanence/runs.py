"""Run cells one after the other and write the folder after each, so that a break loses only the cell at hand."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from remanence.errors import BadInput
from remanence.experiment import Cell, run_cell
from remanence.report import write_page
from remanence.results import Record, Run, check_writable, images, read_records, record, rows, write_run

FILES = ("results.json", "scores.csv", "images.safetensors", "report.html")


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """Which cells these are, and where their results go."""

    recipe: str
    scale: str
    seed: int
    device: str
    folder: Path
    command: str
    force: bool = False
    redact: bool = False

    @property
    def page(self) -> Path:
        return self.folder / "report.html"


def run_job(cells: Sequence[Cell], job: Job) -> Iterator[Record]:
    """The record of each cell as soon as it stands in the folder, the page with it."""
    _check_folder(cells, job)
    run = Run(records=[], rows=[], images={})
    for cell in cells:
        run = _with_cell(run, cell, job)
        write_run(job.folder, run)
        write_page(job.page, run, redact=job.redact)
        yield run.records[-1]


def _with_cell(run: Run, cell: Cell, job: Job) -> Run:
    result = run_cell(cell, seed=job.seed, device=job.device)
    made = record(result, recipe=job.recipe, scale=job.scale, seed=job.seed, command=job.command)
    run = replace(run, records=[*run.records, made])
    if job.redact:
        return run
    pictures = {f"{len(run.records) - 1}/{name}": x for name, x in images(result).items()}
    return replace(run, rows=[*run.rows, *rows(result)], images={**run.images, **pictures})


def _check_folder(cells: Sequence[Cell], job: Job) -> None:
    """Refuse, before any work, a folder that cannot be written or holds what these cells do not make again."""
    check_writable(job.folder)
    if not job.force and any((job.folder / name).exists() for name in FILES) and not _made_again(cells, job):
        raise BadInput(
            f"`{job.folder}` holds other results: choose another folder with `--out`, or replace them with `--force`"
        )


def _made_again(cells: Sequence[Cell], job: Job) -> bool:
    ours = {(job.recipe, job.scale, job.seed, cell.label, repr(cell.attack)) for cell in cells}
    try:
        there = {(r["recipe"], r["scale"], r["seed"], r["cell"], r["attack"]) for r in read_records(job.folder)}
    except BadInput:
        return False
    return there <= ours
