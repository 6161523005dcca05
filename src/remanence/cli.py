"""The command line: results on stdout, progress and errors on stderr.

Exit codes: 0 done, 1 it failed (disk, network, interrupted, a defect of ours), 2 what was asked for cannot be done.
"""

import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from remanence.errors import BadInput, unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remanence.experiment import Cell
    from remanence.results import Record

app = typer.Typer(
    name="remanence",
    help="How much of the training data can be read back from what was released?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="`--debug` anywhere on the line shows the traceback of an error.",
)
data_app = typer.Typer(help="Named data sets: what is here, and how to get the rest.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Out = Annotated[Path | None, typer.Option("--out", help="Folder of the run.  [default: runs/NAME]")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Every random choice follows from it.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the results of another run in the folder.")]
Redact = Annotated[
    bool, typer.Option("--redact", help="Keep counts and curves, write no picture and no row of a record.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Scale = Annotated[str, typer.Option("--scale", help="smoke (seconds), small (a laptop) or paper (one GPU).")]


def main() -> None:
    """Run the command line; an error is one or two lines unless `--debug` is given."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        app(args=arguments, prog_name="remanence")
    except Exception as error:
        if debug:
            raise
        _fail(error)


def _fail(error: Exception) -> NoReturn:
    if isinstance(error, BadInput):
        text, code = str(error), 2
    elif isinstance(error, OSError):
        where = f": `{error.filename}`" if error.filename else ""
        text, code = f"{error.strerror or error}{where}", 1
    else:
        text, code = f"{type(error).__name__}: {error}\nThis is a defect of remanence: `--debug` shows where.", 1
    print(f"error: {text}", file=sys.stderr)
    raise SystemExit(code)


@app.command()
def demo(out: Out = None, seed: Seed = 0, force: Force = False, redact: Redact = False, as_json: Json = False) -> None:
    """Audit two small models on embedded data and write a page: under a minute on two cores."""
    from remanence_recipes.demo import digits

    _run(
        digits("small"),
        "demo.digits",
        "small",
        out or Path("runs/demo"),
        seed=seed,
        device="cpu",
        force=force,
        redact=redact,
        as_json=as_json,
    )


@app.command()
def audit(
    data: Annotated[
        str, typer.Option("--data", help="A named data set, an .npz, a .csv or a folder of images.")
    ] = "digits",
    label: Annotated[str | None, typer.Option("--label", help="The label column of a .csv.")] = None,
    net: Annotated[str, typer.Option("--net", help="The victim's architecture: mlp or cnn.")] = "mlp",
    attack: Annotated[list[str] | None, typer.Option("--attack", help="Only this attack (may be repeated).")] = None,
    out: Out = None,
    seed: Seed = 0,
    device: Device = "cpu",
    force: Force = False,
    redact: Redact = False,
    as_json: Json = False,
) -> None:
    """Train the demo's victims on your data, attack them, and write a page."""
    from remanence.data import load
    from remanence_recipes.demo import NETS, audit_cells

    if net not in NETS:
        raise unknown("net", net, NETS)
    cells = audit_cells(partial(load, data, label=label), net=net)
    names = {type(cell.attack).__name__: cell for cell in cells}
    for name in attack or []:
        if name not in names:
            raise unknown("attack", name, names)
    chosen = [cell for name, cell in names.items() if name in (attack or names)]
    _run(
        chosen,
        f"audit {data}",
        "small",
        out or Path("runs") / f"audit-{Path(data).stem}",
        seed=seed,
        device=device,
        force=force,
        redact=redact,
        as_json=as_json,
    )


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="The name of a recipe: `remanence list` shows them.")],
    scale: Scale = "small",
    out: Out = None,
    seed: Seed = 0,
    device: Device = "cpu",
    force: Force = False,
    redact: Redact = False,
    as_json: Json = False,
) -> None:
    """Run a recipe: one figure or table of a paper, its printed numbers beside ours."""
    from remanence.experiment import SCALES
    from remanence_recipes import RECIPES

    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    named = {name: name for name in SCALES}
    if scale not in named:
        raise unknown("scale", scale, SCALES)
    cells = RECIPES[recipe](named[scale])
    _run(
        cells,
        recipe,
        scale,
        out or Path("runs") / f"{recipe}-{scale}",
        seed=seed,
        device=device,
        force=force,
        redact=redact,
        as_json=as_json,
    )


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A run folder, as demo, audit and run write it.")],
    out: Annotated[Path | None, typer.Option("--out", help="The page.  [default: FOLDER/report.html]")] = None,
    redact: Redact = False,
) -> None:
    """Draw the page of a run again from its records alone."""
    from remanence.report import write_page
    from remanence.results import read_run

    page = out or folder / "report.html"
    write_page(page, read_run(folder), redact=redact)
    print(page)


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """Show the attacks, recipes, matchings, metrics and data sets."""
    from remanence.attacks import ATTACKS
    from remanence.data import list_named
    from remanence.metrics import MATCHINGS, METRICS
    from remanence_recipes import RECIPES

    listed = {
        "attacks": {attack.__name__: _first_line(sys.modules[attack.__module__]) for attack in ATTACKS},
        "recipes": {name: _first_line(recipe) for name, recipe in RECIPES.items()},
        "matchings": {matching.name: _first_line(matching.pair) for matching in MATCHINGS},
        "metrics": {m.name: f"{'higher' if m.higher_is_better else 'lower'} is better" for m in METRICS},
        "data": {entry.name: entry.description for entry in list_named()},
    }
    if as_json:
        print(json.dumps(listed, indent=1))
        return
    for kind, entries in listed.items():
        print(kind)
        for name, text in entries.items():
            print(f"  {name:<18} {text}".rstrip())


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
    for entry in list_named():
        state = str(entry.where) if entry.present and entry.where else "embedded" if entry.present else "not here"
        print(f"{entry.name:<14} {entry.description:<60} {state}")


@data_app.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(help="A named data set.")]) -> None:
    """Download a data set from its canonical address and verify it; a broken download goes on where it stopped."""
    from remanence.data import fetch_named

    for path in fetch_named(name):
        print(path)


def _run(
    cells: "Sequence[Cell]",
    recipe: str,
    scale: str,
    folder: Path,
    *,
    seed: int,
    device: str,
    force: bool,
    redact: bool,
    as_json: bool,
) -> None:
    """Run the cells, say what each gave as soon as it is written, and end with the path of the page."""
    from remanence.report import verdict
    from remanence.runs import Job, run_job

    job = Job(
        recipe=recipe,
        scale=scale,
        seed=seed,
        device=device,
        folder=folder,
        command=shlex.join(["remanence", *sys.argv[1:]]),
        force=force,
        redact=redact,
    )
    records: list[Record] = []
    try:
        for record in run_job(cells, job):
            records.append(record)
            if not as_json:
                print(f"{record['cell']}: {verdict(record)}", flush=True)
    except KeyboardInterrupt:
        kept = f"; what is finished is in `{folder}`" if records else ""
        print(f"interrupted after {len(records)} of {len(cells)} cells{kept}", file=sys.stderr)
        raise SystemExit(1) from None
    print(json.dumps(records, indent=1) if as_json else job.page)


def _first_line(described: object) -> str:
    return (described.__doc__ or "").strip().split("\n")[0]


if __name__ == "__main__":
    main()
