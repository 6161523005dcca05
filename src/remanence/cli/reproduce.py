"""The command that sets all claims of the papers beside our results, and runs what is missing."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from remanence.cli.experiments import sentence
from remanence.cli.options import (
    Backend,
    Json,
    RayAddress,
    Seed,
    backend_from,
    command_line,
    one_of,
    papers,
    print_path,
    recipes,
)
from remanence.errors import BadInput, unknown_name

if TYPE_CHECKING:
    from remanence.execution import Local, Ray
    from remanence.reproduction import Archive, Decided, Paper, Plan, Status

_STATUSES = ("beaten", "reproduced", "smaller", "open", "contradicted", "not-run")


def reproduce(
    paper: Annotated[str | None, typer.Argument(metavar="PAPER", hidden=True)] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="STATUS",
            help=f"Only claims of this status (may be repeated): {', '.join(_STATUSES)}.",
            autocompletion=one_of(*_STATUSES),
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", metavar="N", min=0, help="Run what is missing and fits, what decides most first."),
    ] = None,
    show_plan: Annotated[bool, typer.Option("--plan", help="Show what would run, and run nothing.")] = False,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="PAGE", help="Write one page of everything: a file or a folder.")
    ] = None,
    as_json: Json = False,
    results: Annotated[Path, typer.Option("--results", metavar="FOLDER", help="The committed results.")] = Path(
        "results"
    ),
    runs: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder of the runs, their shadow models and searches.")
    ] = Path("runs/reproduce"),
    seed: Seed = 3,
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda or cuda:N, of what is run.")
    ] = "cuda",
    backend: Backend = "local",
    ray_address: RayAddress = None,
) -> None:
    """Show every claim of the papers, our numbers and the status.

    A status follows from the committed results alone: beaten, reproduced, smaller (than the paper's scale or budget, or
    in another setting), open (too few results, or the paper does not say what decides), contradicted or not run. PAPER
    is one of balle2022, mnemonist2023, wang2023, haim2022, buzaglo2023 and tian2025; by default all.
    """
    from remanence.reproduction import GAPS, decide, plan_runs, read_archive, total_minutes

    chosen, statuses = _papers(paper), [_status(each) for each in only or ()]
    workers = backend_from(backend, ray_address)
    archive = read_archive(results, recipes())
    decided = decide(chosen, archive)
    if show_plan or minutes is not None:
        budget = inf if minutes is None else minutes
        planned = plan_runs(decided, archive, minutes=budget, statuses=statuses or GAPS, seed=seed)
        out = sys.stderr if as_json else sys.stdout
        print(_plan_words(planned), file=out)
        if not show_plan:
            _run(planned, budget, results=results, runs=runs, device=device, backend=workers, out=out)
            archive = read_archive(results, recipes())
            decided = decide(chosen, archive)
            print(_counts(decided), file=out)
    shown = [each for each in decided if not statuses or each.row.status in statuses]
    if page is not None:
        _write_page(page, shown, chosen, archive, results)
    elif as_json:
        print(json.dumps([asdict(each.row) for each in shown], indent=1))
    elif not show_plan and minutes is None:
        _print_table(shown, chosen, total_minutes(shown, archive))


def _papers(name: str | None) -> "Sequence[Paper]":
    known = {each.name: each for each in papers()}
    if name is not None and name not in known:
        raise unknown_name("paper", name, known)
    return tuple(known.values()) if name is None else (known[name],)


def _status(name: str) -> "Status":
    from remanence.reproduction import STATUSES

    found: dict[str, Status] = {each: each for each in STATUSES}
    if (spaced := name.replace("-", " ")) not in found:
        raise unknown_name("status", name, _STATUSES)
    return found[spaced]


def _counts(decided: "Sequence[Decided]") -> str:
    from remanence.reproduction import STATUSES
    from remanence.reproduction.words import count_words

    counts = Counter(each.row.status for each in decided)
    return f"{count_words(len(decided), 'claim')}: " + ", ".join(f"{counts[status]} {status}" for status in STATUSES)


def _print_table(decided: "Sequence[Decided]", chosen: "Sequence[Paper]", minutes: float) -> None:
    """One table for each paper, wrapped to the terminal, or wide where the output is no terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from remanence.reproduction.words import measured_words, number_words, printed_words, run_words

    console = Console(width=None if sys.stdout.isatty() else 180, highlight=False)
    for paper in chosen:
        mine = [each.row for each in decided if each.row.paper == paper.name]
        if not mine:
            continue
        table = Table(box=None, pad_edge=False)
        for name in ("status", "claim", "printed", "ours", "chance", "run"):
            table.add_column(name, justify="left" if name in ("status", "claim", "run") else "right")
        for row in mine:
            numbers = printed_words(row), measured_words(row), number_words(row.chance)
            table.add_row(*map(Text, (row.status, f"{row.where}: {row.claim}", *numbers, run_words(row))))
        console.print(Text(paper.title, style="bold"))
        console.print(table)
        console.print()
    console.print(f"{_counts(decided)}; one run of all of it: {minutes / 60:.1f} hours on one H200")


def _plan_words(planned: "Plan") -> str:
    from remanence.reproduction.words import count_words

    lines = [f"{count_words(len(planned.chosen), 'run')}, {planned.minutes:.0f} minutes on one H200"]
    for work in planned.chosen:
        lines.append(f"  {work.minutes:6.1f} min  {work.recipe}, seed {work.seed}: {_first(work.experiments)}")
        decides = "; ".join(work.decides) or "nothing yet: a part of what claims wait for, or repetitions"
        lines.append(f"              decides {decides}")
    lines += [
        f"  does not fit: {work.minutes:.1f} min  {work.recipe}: {_first(work.experiments)}" for work in planned.left
    ]
    if planned.unmeasured or planned.short:
        lines.append(
            f"  no run helps {count_words(planned.unmeasured, 'claim')} that no recipe measures yet, and "
            f"{planned.short} whose recipe spends less than the paper or has another setting"
        )
    return "\n".join(lines)


def _first(labels: Sequence[str]) -> str:
    return "; ".join(labels[:3]) + (f"; and {len(labels) - 3} more" if len(labels) > 3 else "")


def _run(
    planned: "Plan", minutes: float, *, results: Path, runs: Path, device: str, backend: "Local | Ray", out: TextIO
) -> None:
    """Run the plan; each result is in `results` before the next one starts."""
    from remanence.report import write_page
    from remanence.reproduction import run_plan

    made = run_plan(
        planned,
        recipes(),
        minutes=minutes,
        results=results,
        runs=runs,
        device=device,
        command=command_line(),
        backend=backend,
    )
    done = 0
    try:
        for folder, run, result in made:
            write_page(folder / "report.html", run)
            print(f"{result.recipe}, {sentence(result)}", file=out, flush=True)
            done += 1
    except KeyboardInterrupt:
        print(f"interrupted; {done} results are in `{results}`: the same command goes on", file=sys.stderr)
        raise


def _write_page(
    path: Path, decided: "Sequence[Decided]", chosen: "Sequence[Paper]", archive: "Archive", results: Path
) -> None:
    from remanence.disk import check_writable, replace_file
    from remanence.report.reproduction import render_reproduction

    path = path / "reproduction.html" if path.is_dir() or not path.suffix else path
    if path.suffix.lower() not in (".html", ".htm"):
        message = f"`--page` must end in .html or be a folder, as the page is HTML, got `{path.name}`"
        raise BadInput(message, code="wrong-suffix", argument="--page")
    check_writable(path.parent, option="--page")
    html = render_reproduction(decided, chosen, archive, galleries=results)
    replace_file(path, lambda temporary: temporary.write_text(html, encoding="utf-8"))
    print_path(path)
