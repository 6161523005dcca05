"""The command line: results on stdout, progress and errors on stderr.

Exit codes: 0 done, 1 it failed (disk, network, interrupted, a defect of ours), 2 what was asked for cannot be done.
"""

import json
import os
import shlex
import sys
from contextlib import redirect_stdout
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from remanence.errors import BadInput, unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remanence.execution import Local, Ray
    from remanence.experiments import Experiment, Recipe
    from remanence.experiments.results import Result
    from remanence.experiments.run import Job

app = typer.Typer(
    name="remanence",
    help="How much of the training data can be reconstructed from what was released?",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`--debug` anywhere on the line shows the traceback of an error.",
)
data_app = typer.Typer(help="Named data sets: what is here, and how to get the rest.")
app.add_typer(data_app, name="data")

Out = Annotated[Path | None, typer.Option("--out", help="Folder of the run.  [default: runs/NAME]")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Every random choice follows from it.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the results of another run in the folder.")]
Redact = Annotated[
    bool, typer.Option("--redact", help="Keep counts and curves, write no picture and no row of a record.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Backend = Annotated[str, typer.Option("--backend", help="Where shadow models are trained: local or ray.")]
RayAddress = Annotated[
    str | None, typer.Option("--ray-address", help="A running cluster.  [default: one started here]")
]
Store = Annotated[
    Path | None, typer.Option("--store", help="Folder of shadow models and searches; a broken run goes on.")
]
Scale = Annotated[str, typer.Option("--scale", help="smoke (seconds), small (a laptop) or full (one GPU).")]


def main() -> None:
    """Run the command line; an error is one or two lines unless `--debug` is given."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a sign that the terminal lacks must not cost a result
    try:
        if app(args=arguments or ["--help"], prog_name="remanence", standalone_mode=False):
            raise KeyboardInterrupt  # typer takes it and returns a code instead; no command returns anything
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            raise
        _fail(error)


def _fail(error: BaseException) -> NoReturn:
    text, code = _explained(error)
    try:
        sys.stdout.flush()
    except OSError:  # or the interpreter tries once more on its way out, and reports it in its own words
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):  # `remanence list | head` has read enough
        print(f"error: {text}", file=sys.stderr)
    raise SystemExit(code)


def _explained(error: BaseException) -> tuple[str, int]:
    """What went wrong and how to go on, and the exit code."""
    if isinstance(error, BadInput):
        return str(error), 2
    if hasattr(error, "format_message"):  # typer's own, whose class it does not export
        command = getattr(getattr(error, "ctx", None), "command_path", "remanence")
        return f"{error.format_message()}\n`{command} --help` shows what can be given.", 2
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "interrupted", 1
    if isinstance(error, OSError):
        where = f" (`{error.filename}`)" if error.filename else ""
        return f"{error.strerror}{where}: put that right and repeat the command" if error.strerror else str(error), 1
    first = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first}\nThis is a defect of remanence: `--debug` shows where.", 1


def _show_version(asked: bool) -> None:
    if asked:
        from remanence.experiments.provenance import commit, version

        at = commit()
        print(f"remanence {version()}" + (f", commit {at}" if at else ""))
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and the commit.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(out: Out = None, seed: Seed = 0, force: Force = False, redact: Redact = False, as_json: Json = False) -> None:
    """Attack small models on embedded data and write a page. It takes under a minute on two cores."""
    from remanence.experiments.run import Job

    job = Job(
        recipe="demo.digits",
        scale="small",
        seed=seed,
        device="cpu",
        folder=out or Path("runs/demo"),
        command=_command(),
        force=force,
        redact=redact,
    )
    _run(_recipes()["demo.digits"]("small"), job, as_json=as_json)


@app.command()
def audit(
    data: Annotated[
        str, typer.Option("--data", help="A named data set, an .npz, a .csv or a folder of images.")
    ] = "digits",
    label: Annotated[str | None, typer.Option("--label", help="The label column of a .csv.")] = None,
    net: Annotated[
        str | None, typer.Option("--net", help="The victim's architecture: mlp or cnn.  [default: mlp]")
    ] = None,
    attack: Annotated[list[str] | None, typer.Option("--attack", help="Only this attack (may be repeated).")] = None,
    weights: Annotated[
        Path | None, typer.Option("--weights", help="A finished MLP that --data trained: one SVD, no attack.")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option("--start", help="With --weights: what it was tuned from; exact for SGD without weight decay."),
    ] = None,
    held_out: Annotated[
        str | None, typer.Option("--held-out", help="With --weights: records of the same kind that did not train it.")
    ] = None,
    out: Out = None,
    seed: Seed = 0,
    device: Device = "cpu",
    backend: Backend = "local",
    ray_address: RayAddress = None,
    store: Store = None,
    force: Force = False,
    redact: Redact = False,
    as_json: Json = False,
) -> None:
    """Train small victims on your data, attack them, and write a page."""
    from remanence.auditing.first_layer import weights_experiment
    from remanence.auditing.presets import audit_experiments
    from remanence.data import load
    from remanence.experiments.run import Job

    records = partial(load, data, label=label)
    if weights or held_out or start:
        if not (weights and held_out) or attack or net:
            raise BadInput(
                "`--weights` and `--held-out` go together, `--start` with both, and without `--attack` and `--net`, "
                "which are for victims that the audit trains: give both",
                code="conflict",
                argument="--weights",
            )
        if label:
            raise BadInput(
                "a table's columns are scaled by its own extremes, which is not how the network saw them: with "
                "`--weights` give what it saw as an .npz, without `--label`",
                code="conflict",
                argument="--label",
            )
        chosen: list[Experiment] = [weights_experiment(records, partial(load, held_out), weights, start)]
        tuned_from = ["--start", str(start)] if start else []
        subject = ["--weights", str(weights), *tuned_from, "--held-out", held_out]
    else:
        chosen = audit_experiments(records, net or "mlp", attack, named=data)
        subject = ["--net", net or "mlp"]
    job = Job(
        recipe=shlex.join(["audit", data, *(["--label", label] if label else []), *subject]),
        scale="small",
        seed=seed,
        device=device,
        folder=out or Path("runs") / f"audit-{Path(data).stem}",
        command=_command(),
        force=force,
        skip_refused=len(chosen) > 1,
        redact=redact,
        backend=_backend(backend, ray_address),
        store=store,
    )
    _run(chosen, job, as_json=as_json)


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="The name of a recipe: `remanence list` shows them.")],
    scale: Scale = "small",
    experiment: Annotated[
        list[str] | None, typer.Option("--experiment", help="Only the experiment with this label (may be repeated).")
    ] = None,
    out: Out = None,
    seed: Seed = 0,
    device: Device = "cpu",
    backend: Backend = "local",
    ray_address: RayAddress = None,
    store: Store = None,
    force: Force = False,
    redact: Redact = False,
    as_json: Json = False,
) -> None:
    """Run a recipe: one figure or table of a paper. Its printed numbers stand beside ours."""
    from remanence.experiments import SCALES
    from remanence.experiments.run import Job

    recipes = _recipes()
    if recipe not in recipes:
        raise unknown_name("recipe", recipe, recipes, shown_by="remanence list")
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
    experiments = recipes[recipe](named[scale])
    labels = [each.label for each in experiments]
    for label in experiment or []:
        if label not in labels:
            raise unknown_name("experiment", label, labels)
    job = Job(
        recipe=recipe,
        scale=scale,
        seed=seed,
        device=device,
        folder=out or Path("runs") / f"{recipe}-{scale}",
        command=_command(),
        force=force,
        redact=redact,
        backend=_backend(backend, ray_address),
        store=store,
    )
    _run([each for each in experiments if each.label in (experiment or labels)], job, as_json=as_json)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A run folder, as demo, audit and run write it.")],
    out: Annotated[Path | None, typer.Option("--out", help="The page.  [default: FOLDER/report.html]")] = None,
    redact: Redact = False,
) -> None:
    """Render the page of a run again from its results alone."""
    from remanence.experiments.folder import check_writable, read_run
    from remanence.report import write_page

    run = read_run(folder)
    page = out or folder
    page = page / "report.html" if page.is_dir() else page
    if page.suffix.lower() not in (".html", ".htm"):
        message = f"`--out` must end in .html or be a folder, as the page is HTML, got `{page.name}`"
        raise BadInput(message, code="wrong-suffix", argument="--out")
    check_writable(page.parent)
    write_page(page, run, redact=redact)
    print(page)


@app.command("schema")
def show_schema() -> None:
    """Print the JSON schema of results.json."""
    from remanence.experiments.results import schema

    print(json.dumps(schema(), indent=1))


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """Show the attacks, recipes, matchings, metrics and data sets."""
    from remanence.attacks import ATTACKS
    from remanence.data import list_named
    from remanence.metrics import MATCHINGS, METRICS

    listed = {
        "attacks": {attack.__name__: _first_line(sys.modules[attack.__module__]) for attack in ATTACKS},
        "recipes": {name: _first_line(recipe) for name, recipe in _recipes().items()},
        "matchings": {matching.name: _first_line(matching.pair) for matching in MATCHINGS},
        "metrics": {m.name: f"{'higher' if m.higher_is_better else 'lower'} is better" for m in METRICS},
        "data": {entry.name: entry.description for entry in list_named()},
    }
    if as_json:
        print(json.dumps(listed, indent=1))
        return
    for kind, entries in listed.items():
        print(kind)
        width = max(map(len, entries))
        for name, text in entries.items():
            print(f"  {name:<{width}}  {text}".rstrip())


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """Show the named data sets and where each was found."""
    from remanence.data import list_named

    if as_json:
        rows = [
            {"name": e.name, "present": e.present, "where": str(e.where or ""), "about": e.description}
            for e in list_named()
        ]
        print(json.dumps(rows, indent=1))
        return
    width = max(len(entry.description) for entry in list_named())
    for entry in list_named():
        state = str(entry.where) if entry.present and entry.where else "embedded" if entry.present else "not here"
        print(f"{entry.name:<14} {entry.description:<{width}}  {state}")


@data_app.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(metavar="NAME", help="A named data set.")]) -> None:
    """Download a data set from its canonical address. It is verified; a broken download goes on where it stopped."""
    from remanence.data import fetch_named

    paths = fetch_named(name)
    for path in paths:
        print(path)
    if not paths:
        print(f"{name} comes with an installed package: there is nothing to fetch", file=sys.stderr)


def _recipes() -> "Mapping[str, Recipe]":
    """The recipes by name: a package of its own, loaded when a command needs it."""
    from importlib import import_module

    recipes: Mapping[str, Recipe] = import_module("remanence_recipes").RECIPES
    return recipes


def _command() -> str:
    return shlex.join(["remanence", *sys.argv[1:]])


def _backend(name: str, ray_address: str | None) -> "Local | Ray":
    from remanence.execution import Local, Ray

    if name not in ("local", "ray"):
        raise unknown_name("backend", name, ("local", "ray"))
    if ray_address and name != "ray":
        message = f"`--ray-address` needs `--backend ray`, got `--backend {name}`: change one of them"
        raise BadInput(message, code="conflict", argument="--ray-address")
    return Ray(address=ray_address) if name == "ray" else Local()


def _run(experiments: "Sequence[Experiment]", job: "Job", *, as_json: bool) -> None:
    """Run the experiments, print what each gave as soon as it is written, and end with the path of the page."""
    from remanence.execution import Ray
    from remanence.experiments.results import dump_results
    from remanence.experiments.run import run_job
    from remanence.report import write_page

    distributed = job.store or isinstance(job.backend, Ray)
    if idle := [each.label for each in experiments if each.attack is None and distributed]:
        print(f"note: `--store` and `--backend` do nothing without an attack ({', '.join(idle)})", file=sys.stderr)
    results: list[Result] = []
    out, total = sys.stdout, len(experiments)
    try:
        with redirect_stdout(sys.stderr):  # Ray writes about its workers to stdout
            for run, result in run_job(experiments, job):
                write_page(job.page, run, redact=job.redact)
                results.append(result)
                if not as_json:
                    print(_sentence(result), file=out, flush=True)
    except BadInput as error:
        if not results:
            raise
        text = f"{error}\n{len(results)} of {total} experiments were finished: `{job.page}`"
        raise BadInput(text, code=error.code, argument=error.argument) from error
    except KeyboardInterrupt:
        where = f"; what is finished is in `{job.folder}`" if results else ""
        print(f"interrupted after {len(results)} of {total} experiments{where}", file=sys.stderr)
        raise SystemExit(1) from None
    print(dump_results(results).rstrip() if as_json else job.page)
    if refused := [result.label for result in results if result.refusal is not None]:
        text = f"{len(refused)} of {total} experiments refused ({'; '.join(refused)}): `{job.page}` says why"
        raise BadInput(text, code="refused")


def _sentence(result: "Result") -> str:
    from remanence.report import verdict

    attack = result.attack
    scored_by = f" ({attack.scores.primary}, matched by {attack.matching})" if attack else ""
    return f"{result.label}: {verdict(result)}{scored_by}"


def _first_line(described: object) -> str:
    return (described.__doc__ or "").strip().split("\n")[0]


if __name__ == "__main__":
    main()
