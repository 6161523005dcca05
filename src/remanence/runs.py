"""Run cells one after the other and write the folder after each, so that a break loses only the cell at hand."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import final

from remanence.errors import BadInput
from remanence.execution import Backend
from remanence.experiments import Cell, CellResult, Refusal, Stage, Study, StudyResult, prepare, run_cell, run_study
from remanence.experiments.device import device_of
from remanence.experiments.results import (
    Record,
    Run,
    check_writable,
    images,
    read_records,
    record,
    redacted,
    rows,
    write_run,
)
from remanence.report import write_page
from remanence.shadow import Store

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
    go_on: bool = False  # past a cell that is refused, which otherwise ends the run
    redact: bool = False
    backend: Backend | None = None
    store: Path | None = None  # a sub-folder for each recipe, and in it one for the shadows or searches of each cell

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    def store_of(self, cell: Cell) -> Store | None:
        name = re.sub(r"[^\w.]+", "-", cell.label).strip("-.").lower()
        return Store(folder=self.store / self.recipe.split()[0] / name) if self.store else None


def run_job(cells: Sequence[Cell | Study], job: Job) -> Iterator[Record]:
    """The record of each cell or study as soon as it stands in the folder, the page with it.

    A run that goes on past refusals writes none before a cell is finished; where all are refused the first is raised.
    """
    _check_folder(cells, job)
    device = device_of(job.device)
    run, stage, told = Run(records=[], rows=[], images={}), None, 0
    for cell in cells:
        result: CellResult | StudyResult | Refusal
        start = perf_counter()
        try:
            if isinstance(cell, Study):
                result = run_study(cell, seed=job.seed, device=device)
            else:
                stage = stage if stage and stage.serves(cell) else _prepared(cell, job)
                result = run_cell(cell, seed=job.seed, stage=stage, store=job.store_of(cell))
        except BadInput as refusal:
            if not job.go_on:
                raise
            result = Refusal(label=cell.label, why=str(refusal), seconds=0.0, device=device)
        run = _with_result(run, replace(result, seconds=perf_counter() - start), job)
        if told or not isinstance(result, Refusal):
            write_run(job.folder, run)
            write_page(job.page, run, redact=job.redact)
            yield from run.records[told:]
            told = len(run.records)
    if run.records and not told:
        raise BadInput(run.records[0]["refusal"])


def _prepared(cell: Cell, job: Job) -> Stage:
    return prepare(cell, seed=job.seed, device=job.device, backend=job.backend, store=job.store_of(cell))


def _with_result(run: Run, result: CellResult | StudyResult | Refusal, job: Job) -> Run:
    made = record(result, recipe=job.recipe, scale=job.scale, seed=job.seed, command=job.command)
    pictures = {f"{len(run.records)}/{name}": x for name, x in images(result).items()}
    run = Run(records=[*run.records, made], rows=[*run.rows, *rows(result)], images={**run.images, **pictures})
    return redacted(run) if job.redact else run


def _check_folder(cells: Sequence[Cell | Study], job: Job) -> None:
    """Refuse, before any work, a folder that cannot be written or holds what these cells do not make again."""
    check_writable(job.folder)
    if job.store:
        check_writable(job.store, option="--store")
    if not job.force and any((job.folder / name).exists() for name in FILES) and not _made_again(cells, job):
        raise BadInput(
            f"`{job.folder}` holds other results: choose another folder with `--out`, or replace them with `--force`"
        )


def _made_again(cells: Sequence[Cell | Study], job: Job) -> bool:
    ours = {cell.label: repr(cell.attack) if isinstance(cell, Cell) else None for cell in cells}
    try:
        return all(
            (r["recipe"], r["scale"], r["seed"]) == (job.recipe, job.scale, job.seed)
            and r["cell"] in ours
            and (r["kind"] == "refused" or r.get("attack") == ours[r["cell"]])
            for r in read_records(job.folder)
        )
    except BadInput:
        return False
