"""Run experiments one after the other and write the folder after each, so that an interruption loses only one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import final

import torch

from remanence.disk import check_writable
from remanence.errors import BadInput
from remanence.execution import Backend, Ray
from remanence.experiments import Completed, Experiment, Prepared, Victims, prepare, run_experiment
from remanence.experiments.experiment import device_of
from remanence.experiments.folder import Run, joined, read_finished, read_results, redacted, write_run
from remanence.experiments.provenance import UNKNOWN, commit, version
from remanence.experiments.results import Result
from remanence.experiments.summary import arrays, images, result_of, rows
from remanence.progress import say
from remanence.shadow import Store

FILES = ("results.json", "scores.csv", "images.safetensors", "evidence.safetensors", "report.html")


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """Which experiments these are, and where their results go.

    With `skip_refused` the run continues after an experiment that is refused, which otherwise ends it. `store` has a
    sub-folder for each recipe, and in it one for the shadow models or searches of each experiment. With `resume`
    experiments that the same command and commit finished before it was interrupted are taken from the folder; it is for
    recipes, whose data do not change.
    """

    recipe: str
    scale: str
    seed: int
    device: str
    folder: Path
    command: str
    force: bool = False
    skip_refused: bool = False
    redact: bool = False
    backend: Backend | None = None
    store: Path | None = None
    resume: bool = False

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    def store_for(self, experiment: Experiment) -> Store | None:
        """The folder of the experiment's shadow models and searches."""
        name = re.sub(r"[^\w.]+", "-", experiment.label).strip("-.").lower()
        return Store(folder=self.store / self.recipe.split()[0] / name) if self.store else None


def run_job(experiments: Sequence[Experiment], job: Job) -> Iterator[tuple[Run, Result]]:
    """The run so far and the result of each experiment, as soon as it is in the folder.

    A run that skips refused experiments writes nothing before one is finished; where all are refused the first refusal
    is raised. Victims that several experiments hold are prepared once, and dropped after the last of them.
    """
    (collected,) = collect([(experiments, job)])
    yield from run_missing(experiments, job, collected)


def run_missing(experiments: Sequence[Experiment], job: Job, collected: "Collected") -> Iterator[tuple[Run, Result]]:
    """What was finished before, then each experiment that is missing, run in this process."""
    if isinstance(job.backend, Ray) and job.backend.address:
        job.backend.connect()  # or a wrong address is noticed after the victims are trained
    yield from collected.resumed()
    for position, part in in_turn(experiments, job, collected.missing):
        yield from collected.add(position, part)
    collected.check_any_finished()


def in_turn(experiments: Sequence[Experiment], job: Job, positions: Sequence[int]) -> Iterator[tuple[int, Run]]:
    """Run the experiments at these positions, in this process one after the other: each position, and a run of one
    result."""
    device, shared = device_of(job.device), dict[tuple[Victims, int], Prepared]()
    stores = {each.victims: job.store_for(each) for each in reversed(experiments)}  # of the first that holds them
    for i, position in enumerate(positions):
        experiment, start = experiments[position], perf_counter()
        prepared = partial(_prepared, shared, job, stores[experiment.victims])
        try:
            completed = run_experiment(
                experiment, seed=job.seed, device=device, store=job.store_for(experiment), prepared=prepared
            )
        except BadInput as refusal:
            if not job.skip_refused:
                raise
            completed = Completed(experiment=experiment, refusal=str(refusal), seconds=0.0, device=device)
        part = _part(replace(completed, seconds=perf_counter() - start), job)
        later = {experiments[other].victims for other in positions[i + 1 :]}
        for key in [key for key in shared if key[0] not in later]:
            del shared[key]
        yield position, part


def _prepared(
    shared: dict[tuple[Victims, int], Prepared], job: Job, store: Store | None, victims: Victims, seed: int
) -> Prepared:
    """The victims of an experiment, from `shared` where an earlier experiment had them."""
    if (victims, seed) not in shared:
        shared[victims, seed] = prepare(
            victims,
            seed=seed,
            device=job.device,
            backend=job.backend,
            store=store,
            require_fit=job.scale != "smoke",
        )
    return shared[victims, seed]


def _part(completed: Completed, job: Job) -> Run:
    """The run of one result."""
    run = Run(
        results=[result_of(completed, recipe=job.recipe, scale=job.scale, seed=job.seed, command=job.command)],
        rows=rows(completed),
        images={f"0/{name}": x for name, x in images(completed).items()},
        evidence={f"0/{name}": x for name, x in arrays(completed).items()},
    )
    return redacted(run) if job.redact else run


@final
class Collected:
    """The folder of a job while its experiments are finished, in whatever order: it holds them in the job's order."""

    def __init__(self, job: Job, count: int, finished: Mapping[int, Run]) -> None:
        self._job, self._count, self._parts, self._yielded = job, count, dict(finished), set[int]()

    @property
    def missing(self) -> list[int]:
        """The positions of the experiments that are to be run."""
        return [i for i in range(self._count) if i not in self._parts]

    def resumed(self) -> Iterator[tuple[Run, Result]]:
        """The run of what was finished before, with each of its results."""
        if self._parts:
            say(f"note: {len(self._parts)} of {self._count} experiments were finished before, and are not run again")
            yield from self._new(self._run())

    def add(self, position: int, part: Run) -> Iterator[tuple[Run, Result]]:
        """Write the folder with one more experiment: the run so far, with each result that is new in it."""
        self._parts[position] = part
        if any(each.results[0].refusal is None for each in self._parts.values()):
            if self._yielded and not self._job.folder.exists():
                say(f"note: `{self._job.folder}` vanished and is made again, with all that is finished")
            write_run(self._job.folder, run := self._run())
            yield from self._new(run)

    def check_any_finished(self) -> None:
        """Raise the first refusal where all experiments were refused."""
        if self._parts and not self._yielded:
            raise BadInput(self._parts[min(self._parts)].results[0].refusal or "", code="refused")

    def _run(self) -> Run:
        return joined([self._parts[i] for i in sorted(self._parts)])

    def _new(self, run: Run) -> Iterator[tuple[Run, Result]]:
        for i in sorted(self._parts.keys() - self._yielded):
            self._yielded.add(i)
            yield run, self._parts[i].results[0]


def collect(jobs: Sequence[tuple[Sequence[Experiment], Job]]) -> list[Collected]:
    """The folder of each job, checked before any work.

    Jobs that were interrupted have those experiments already that the same command and code finished; where nothing is
    missing all are made again.
    """
    for experiments, job in jobs:
        _check_folder(experiments, job)
    finished = [_finished(experiments, job) if job.resume and not job.force else {} for experiments, job in jobs]
    if all(len(found) == len(experiments) for found, (experiments, _) in zip(finished, jobs, strict=True)):
        finished = [{} for _ in jobs]
    return [Collected(job, len(experiments), found) for found, (experiments, job) in zip(finished, jobs, strict=True)]


def _finished(experiments: Sequence[Experiment], job: Job) -> dict[int, Run]:
    """What the same command and code left in the folder, by position."""
    code = (commit(), version(), torch.__version__)
    if (code[0] or "").endswith("-dirty") or code[:2] == (None, UNKNOWN):
        return {}
    try:
        found = {part.results[0].label: part for part in read_finished(job.folder)}
    except BadInput:
        return {}
    same = {}
    for i, experiment in enumerate(experiments):
        if (part := found.get(experiment.label)) is not None:
            result = part.results[0]
            made_by = (result.commit, result.hardware.remanence, result.hardware.torch)
            if result.refusal is None and (result.command, made_by) == (job.command, code):
                same[i] = part
    return same


def _check_folder(experiments: Sequence[Experiment], job: Job) -> None:
    """Refuse, before any work, a folder that cannot be written or holds what these experiments do not make again."""
    check_writable(job.folder)
    if job.store:
        check_writable(job.store, option="--store")
    if not job.force and any((job.folder / name).exists() for name in FILES) and not _made_again(experiments, job):
        raise BadInput(
            f"`{job.folder}` holds other results: choose another folder with `--out`, or replace them with `--force`",
            code="conflict",
            argument="--out",
        )


def _made_again(experiments: Sequence[Experiment], job: Job) -> bool:
    ours = {each.label: repr(each.attack) if each.attack is not None else None for each in experiments}
    try:
        return all(
            (r.recipe, r.scale, r.seed) == (job.recipe, job.scale, job.seed)
            and r.label in ours
            and (r.refusal is not None or (r.attack and r.attack.call) == ours[r.label])
            for r in read_results(job.folder)
        )
    except BadInput:
        return False
