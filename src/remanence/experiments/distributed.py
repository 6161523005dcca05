"""Run the experiments of one or several recipes on a backend: whole experiments on the workers of a Ray cluster, one
GPU each, or one after the other in this process.

A worker receives the name of the recipe, the scale, the label, the seed and the device, imports the recipe itself, and
sends back a run of one result: no victim, model or function travels. Every experiment depends on its seed alone, so
that the results are those of one process.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import final

from remanence.attacks import ShadowAttack
from remanence.errors import BadInput
from remanence.execution import Ray
from remanence.experiments import SCALES, Experiment, Recipe, Scale
from remanence.experiments.experiment import device_named
from remanence.experiments.folder import Run
from remanence.experiments.results import Result
from remanence.experiments.run import Job, collect, in_turn, run_missing


def recipes() -> Mapping[str, Recipe]:
    """The recipes by name: a package of its own, loaded when it is needed."""
    known: Mapping[str, Recipe] = import_module("remanence_recipes").RECIPES
    return known


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """Experiments of a recipe by their names, for a process that imports the recipe itself.

    `labels` are all of the job, `positions` those that this task runs; `attacks` are their attacks as Python
    expressions, by which a worker with another version of the recipe is noticed.
    """

    job: Job
    labels: tuple[str, ...]
    positions: tuple[int, ...]
    attacks: tuple[str, ...]


def run_jobs(jobs: Sequence[tuple[Sequence[Experiment], Job]]) -> Iterator[tuple[Job, Run, Result]]:
    """The job, its run so far and the result of each experiment, as soon as it is in the job's folder.

    On Ray, as the first job has it, whole experiments of recipes are distributed, of all jobs together; those that
    learn from one bank of shadow models stay together, as it is trained once. A single task runs in this process and
    distributes its shadow models.
    """
    collected = collect(jobs)
    if not distributes(jobs):
        for (experiments, job), each in zip(jobs, collected, strict=True):
            yield from ((job, run, result) for run, result in run_missing(experiments, job, each))
        return
    backend = jobs[0][1].backend
    assert isinstance(backend, Ray)
    backend.connect()
    for (_, job), each in zip(jobs, collected, strict=True):
        yield from ((job, run, result) for run, result in each.resumed())
    tasks, owners = list[Task](), list[int]()
    for number, (experiments, job) in enumerate(jobs):
        for positions in _together(experiments, collected[number].missing):
            tasks.append(_task(experiments, job, positions))
            owners.append(number)
    titles = [_title(each, among_jobs=len(jobs) > 1) for each in tasks]
    cuda = any(device_named(job.device).type == "cuda" for _, job in jobs)
    for index, (parts, error) in backend.as_finished(run_task, tasks, titles=titles, cuda=cuda):
        number = owners[index]
        for position, part in parts:
            yield from ((jobs[number][1], run, result) for run, result in collected[number].add(position, part))
        if error is not None:
            raise error
    for each in collected:
        each.check_any_finished()


def distributes(jobs: Sequence[tuple[Sequence[Experiment], Job]]) -> bool:
    """Whether `run_jobs` distributes whole experiments: several, of recipes that a worker can import, on Ray."""
    if not all(isinstance(job.backend, Ray) for _, job in jobs):
        return False
    several = sum(len(_together(experiments, range(len(experiments)))) for experiments, _ in jobs) > 1
    return several and all(job.recipe in recipes() for _, job in jobs)


def run_task(task: Task) -> tuple[list[tuple[int, Run]], BadInput | None]:
    """On a worker: each position with its run of one result, and the refusal that ended the task, if one did."""
    made = list[tuple[int, Run]]()
    try:
        for each in in_turn(_named(task), task.job, task.positions):
            made.append(each)
    except BadInput as refusal:
        if not made:
            raise
        return made, refusal
    return made, None


def _named(task: Task) -> list[Experiment]:
    """The experiments of the job, from the recipe of this name in this process."""
    scales: dict[str, Scale] = {name: name for name in SCALES}
    recipe = recipes().get(task.job.recipe)
    known = {each.label: each for each in recipe(scales[task.job.scale])} if recipe else {}
    if not known.keys() >= set(task.labels) or _attacks(known, task) != task.attacks:
        message = (
            f"a worker of the Ray cluster has another version of the recipe `{task.job.recipe}`: install the same "
            "version of remanence on all machines"
        )
        raise BadInput(message, code="conflict", argument="backend")
    return [known[label] for label in task.labels]


def _attacks(known: Mapping[str, Experiment], task: Task) -> tuple[str, ...]:
    return tuple(repr(known[task.labels[i]].attack) for i in task.positions)


def _together(experiments: Sequence[Experiment], positions: Sequence[int]) -> list[tuple[int, ...]]:
    """The positions of each task: one, or all that learn from the shadow models of the same victims."""
    tasks: dict[object, list[int]] = {}
    for i in positions:
        learns = isinstance(experiments[i].attack, ShadowAttack)
        tasks.setdefault(experiments[i].victims if learns else i, []).append(i)
    return [tuple(task) for task in tasks.values()]


def _task(experiments: Sequence[Experiment], job: Job, positions: tuple[int, ...]) -> Task:
    store = job.store.absolute() if job.store else None  # a worker may be in another folder
    device = device_named(job.device).type  # of a worker, that sees no other than its own
    return Task(
        job=replace(job, backend=None, store=store, device=device),
        labels=tuple(each.label for each in experiments),
        positions=positions,
        attacks=tuple(repr(experiments[i].attack) for i in positions),
    )


def _title(task: Task, *, among_jobs: bool) -> str:
    """What the lines of a worker are about."""
    first, more = task.labels[task.positions[0]], len(task.positions) - 1
    label = f"{first} and {more} more" if more else first
    return f"{task.job.recipe}, seed {task.job.seed}, {label}" if among_jobs else label
