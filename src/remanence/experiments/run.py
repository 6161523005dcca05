"""Run experiments one after the other and write the folder after each, so that an interruption loses only one."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import final

from remanence.disk import check_writable
from remanence.errors import BadInput
from remanence.execution import Backend, Ray
from remanence.experiments import Completed, Experiment, Prepared, Victims, prepare, run_experiment
from remanence.experiments.experiment import device_of
from remanence.experiments.folder import Run, read_results, redacted, write_run
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
    sub-folder for each recipe, and in it one for the shadow models or searches of each experiment.
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
    _check_folder(experiments, job)
    if isinstance(job.backend, Ray) and job.backend.address:
        job.backend.connect()  # or a wrong address is noticed after the victims are trained
    device, run, yielded = device_of(job.device), Run(results=[], rows=[], images={}), 0
    shared: dict[tuple[Victims, int], Prepared] = {}
    for i, experiment in enumerate(experiments):
        prepared = partial(_prepared, shared, job, experiment)
        start = perf_counter()
        try:
            completed = run_experiment(
                experiment, seed=job.seed, device=device, store=job.store_for(experiment), prepared=prepared
            )
        except BadInput as refusal:
            if not job.skip_refused:
                raise
            completed = Completed(experiment=experiment, refusal=str(refusal), seconds=0.0, device=device)
        run = _with_result(run, replace(completed, seconds=perf_counter() - start), job)
        later = {each.victims for each in experiments[i + 1 :]}
        for key in [key for key in shared if key[0] not in later]:
            del shared[key]
        if yielded or completed.refusal is None:
            if yielded and not job.folder.exists():
                say(f"note: `{job.folder}` vanished and is made again, with all that is finished")
            write_run(job.folder, run)
            yield from ((run, result) for result in run.results[yielded:])
            yielded = len(run.results)
    if run.results and not yielded:
        raise BadInput(run.results[0].refusal or "", code="refused")


def _prepared(
    shared: dict[tuple[Victims, int], Prepared], job: Job, experiment: Experiment, victims: Victims, seed: int
) -> Prepared:
    """The victims of `experiment`, from `shared` where an earlier experiment had them."""
    if (victims, seed) not in shared:
        shared[victims, seed] = prepare(
            victims,
            seed=seed,
            device=job.device,
            backend=job.backend,
            store=job.store_for(experiment),
            require_fit=job.scale != "smoke",
        )
    return shared[victims, seed]


def _with_result(run: Run, completed: Completed, job: Job) -> Run:
    made = result_of(completed, recipe=job.recipe, scale=job.scale, seed=job.seed, command=job.command)
    pictures = {f"{len(run.results)}/{name}": x for name, x in images(completed).items()}
    evidence = {f"{len(run.results)}/{name}": x for name, x in arrays(completed).items()}
    run = Run(
        results=[*run.results, made],
        rows=[*run.rows, *rows(completed)],
        images={**run.images, **pictures},
        evidence={**run.evidence, **evidence},
    )
    return redacted(run) if job.redact else run


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
