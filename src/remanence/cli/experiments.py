"""The commands that run experiments and render their pages: demo, run, report."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remanence.cli.interruption import exit_code
from remanence.cli.options import (
    Backend,
    Device,
    Force,
    Json,
    Out,
    RayAddress,
    Redact,
    Scale,
    Seed,
    Seeds,
    Store,
    backend_from,
    command_line,
    print_path,
    recipes,
)
from remanence.errors import BadInput, unknown_name

if TYPE_CHECKING:
    from remanence.experiments import Experiment
    from remanence.experiments.results import Result
    from remanence.experiments.run import Job


def demo(out: Out = None, seed: Seed = 0, force: Force = False, redact: Redact = False, as_json: Json = False) -> None:
    """Attack small models on embedded data and write a page. It takes under a minute on two cores."""
    from remanence.experiments.run import Job

    job = Job(
        recipe="demo.digits",
        scale="small",
        seed=seed,
        device="cpu",
        folder=out or Path("runs/demo"),
        command=command_line(),
        force=force,
        redact=redact,
    )
    run_experiments([(recipes()["demo.digits"]("small"), job)], as_json=as_json)


def run(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", hidden=True)],
    scale: Scale = "small",
    experiment: Annotated[
        list[str] | None,
        typer.Option("--experiment", metavar="LABEL", help="Only the experiment with this label (may be repeated)."),
    ] = None,
    out: Out = None,
    seed: Seeds = None,
    device: Device = "cpu",
    backend: Backend = "local",
    ray_address: RayAddress = None,
    store: Store = None,
    force: Force = False,
    redact: Redact = False,
    as_json: Json = False,
) -> None:
    """Run a recipe: one figure or table of a paper. Its printed numbers stand beside ours.

    RECIPE is one of the names that `remanence list` shows.
    """
    from remanence.experiments import SCALES
    from remanence.experiments.run import Job

    known = recipes()
    if recipe not in known:
        raise unknown_name("recipe", recipe, known, shown_by="remanence list")
    if scale == "paper":
        raise BadInput(
            "there is no scale `paper`: what one GPU does is called `full`, and each result says where it is less than "
            "the paper's; use `--scale full`",
            code="unknown-name",
            argument="--scale",
        )
    named = {name: name for name in SCALES}
    if scale not in named:
        raise unknown_name("scale", scale, SCALES)
    experiments = known[recipe](named[scale])
    labels = [each.label for each in experiments]
    for label in experiment or []:
        if label not in labels:
            raise unknown_name("experiment", label, labels)
    chosen = [each for each in experiments if each.label in (experiment or labels)]
    seeds, folder = list(dict.fromkeys(seed or [0])), out or Path("runs") / f"{recipe}-{scale}"
    jobs = []
    for each in seeds:
        of_seed = f"seed-{each}" if len(seeds) > 1 else ""
        job = Job(
            recipe=recipe,
            scale=scale,
            seed=each,
            device=device,
            folder=folder / of_seed,
            command=command_line(),
            force=force,
            redact=redact,
            backend=backend_from(backend, ray_address),
            store=store / of_seed if store else None,
            resume=True,
        )
        jobs.append((chosen, job))
    run_experiments(jobs, as_json=as_json)


def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", hidden=True)],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="PAGE", help="The page.  [default: FOLDER/report.html]")
    ] = None,
    redact: Redact = False,
) -> None:
    """Render the page of a run or an audit from its results alone.

    FOLDER is the folder of a run, as demo, audit and run write it.
    """
    from remanence.auditing import Report
    from remanence.auditing.answer.saved import ANSWER
    from remanence.disk import check_writable, replace_file
    from remanence.experiments.folder import read_run
    from remanence.report import render

    audited = (folder / ANSWER).is_file()
    html = Report.load(folder).to_html(redact=redact) if audited else render(read_run(folder), redact=redact)
    page = out or folder
    page = page / "report.html" if page.is_dir() else page
    if page.suffix.lower() not in (".html", ".htm"):
        message = f"`--out` must end in .html or be a folder, as the page is HTML, got `{page.name}`: print it to a PDF"
        raise BadInput(message, code="wrong-suffix", argument="--out")
    check_writable(page.parent)
    replace_file(page, lambda temporary: temporary.write_text(html, encoding="utf-8"))
    print_path(page)


def run_experiments(jobs: "Sequence[tuple[Sequence[Experiment], Job]]", *, as_json: bool) -> None:
    """Run the experiments, print what each gave as soon as it is written, and end with the paths of the pages.

    The jobs differ in their seeds and folders.
    """
    from remanence.disk import one_process
    from remanence.execution import Ray
    from remanence.experiments.distributed import run_jobs
    from remanence.experiments.results import dump_results
    from remanence.report import write_page

    _note_idle(jobs)
    runs: dict[Path, list[Result]] = {job.folder: [] for _, job in jobs}
    out, total, backend = sys.stdout, sum(len(experiments) for experiments, _ in jobs), jobs[0][1].backend
    try:
        with ExitStack() as locks:
            for _, job in jobs:
                locks.enter_context(one_process(job.folder))
            locks.enter_context(_stdout_of_others(dropped=isinstance(backend, Ray)))
            for job, run, result in run_jobs(jobs):
                write_page(job.page, run, redact=job.redact)
                runs[job.folder] = run.results  # in the order of the experiments, whichever ended first
                if not as_json:
                    which = f"seed {job.seed}, " if len(jobs) > 1 else ""
                    print(f"{which}{sentence(result)}", file=out, flush=True)
    except BadInput as error:
        if any(runs.values()):
            pages = ", ".join(f"`{job.page}`" for _, job in jobs if runs[job.folder])
            error.add_note(f"{sum(map(len, runs.values()))} of {total} experiments were finished: {pages}")
        raise
    except KeyboardInterrupt:
        where = ", ".join(f"`{folder}`" for folder, found in runs.items() if found)
        finished = f"{sum(map(len, runs.values()))} of {total} experiments"
        said = f"; what is finished is in {where}" if where else ""
        print(f"interrupted after {finished}{said}", file=sys.stderr)
        if isinstance(backend, Ray):
            backend.leave_at_once(exit_code())
        raise SystemExit(exit_code()) from None
    results = [result for found in runs.values() for result in found]
    if as_json:
        print(dump_results(results).rstrip())
    else:
        for _, job in jobs:
            print_path(job.page)
    if refused := [result.label for result in results if result.refusal is not None]:
        text = f"{len(refused)} of {total} experiments refused ({'; '.join(refused)}): `{jobs[0][1].page}` says why"
        raise BadInput(text, code="refused")


def _note_idle(jobs: "Sequence[tuple[Sequence[Experiment], Job]]") -> None:
    """Say which options change nothing for experiments without an attack."""
    from remanence.execution import Ray
    from remanence.experiments.distributed import distributes

    experiments, job = jobs[0]
    idle = ["`--store`"] if job.store else []
    idle += ["`--backend`"] if isinstance(job.backend, Ray) and not distributes(jobs) else []
    if idle and (labels := [each.label for each in experiments if each.attack is None]):
        options = f"{' and '.join(idle)} {'do' if len(idle) > 1 else 'does'}"
        print(f"note: {options} nothing without an attack ({', '.join(labels)})", file=sys.stderr)


@contextmanager
def _stdout_of_others(*, dropped: bool) -> Iterator[None]:
    """Within it what libraries print goes to stderr; Ray's words about its processes, of which the end is said by us,
    are dropped."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere if dropped else sys.stderr):
        yield


def sentence(result: "Result") -> str:
    from remanence.report import verdict

    attack = result.attack
    scored_by = f" ({attack.scores.primary}, matched by {attack.matching})" if attack else ""
    return f"{result.label}: {verdict(result)}{scored_by}"
