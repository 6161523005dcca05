"""The program: results on stdout, progress and errors on stderr.

Exit codes: 0 done, 1 it failed (disk, network, a defect of ours), 2 what was asked for cannot be done, 3 a gate of an
audit (`--fail-if`, `--compare`) was not passed or an inspected model was flagged, 130 interrupted, 143 ended by
SIGTERM.
"""

import os
import sys
import warnings
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from remanence import progress
from remanence.cli import audit, experiments, inspection, listing, reproduce
from remanence.cli.interruption import exit_code, terminable
from remanence.cli.options import examples
from remanence.errors import MAX_MESSAGE, BadInput, printable

app = typer.Typer(
    name="remanence",
    help="How much of the training data can be reconstructed from what was released?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Anywhere on the line: `--quiet` says nothing on stderr but errors, `--verbose` more, `--debug` shows the "
    "traceback of an error.\n\n"
    + examples("remanence demo", "remanence audit data --data records.csv --label outcome"),
)
app.command(epilog=examples("remanence demo", "remanence demo --out runs/shown --redact"))(experiments.demo)
app.add_typer(audit.app, name="audit")
app.command(
    epilog=examples(
        "remanence inspect client:make_net --weights round7.pt",
        "remanence inspect client:make_net --weights round7.npz --shape 1,28,28 --json",
    ),
)(inspection.inspect)
app.command(
    epilog=examples("remanence run balle2022.mnist", "remanence run balle2022.mnist --scale full --device cuda"),
)(experiments.run)
app.command(epilog=examples("remanence report runs/demo", "remanence report runs/demo --out page.html --redact"))(
    experiments.report
)
app.command(
    epilog=examples(
        "remanence reproduce",
        "remanence reproduce balle2022 --only not-run",
        "remanence reproduce --page reproduction.html",
        "remanence reproduce --minutes 30 --device cuda",
    ),
)(reproduce.reproduce)
app.command(
    "schema",
    epilog=examples("remanence schema --audit > audit.schema.json"),
)(listing.show_schema)
app.command("list", epilog=examples("remanence list", "remanence list --json"))(listing.list_all)
app.add_typer(listing.data_app, name="data")
_MODES: dict[str, progress.Mode] = {"--quiet": "quiet", "--verbose": "verbose"}


def main() -> None:
    """Run the command line; an error is one or two lines unless `--debug` is given."""
    debug = "--debug" in sys.argv
    for option, mode in _MODES.items():
        if option in sys.argv:
            progress.set_mode(mode)
    python_format = warnings.formatwarning
    warnings.formatwarning = python_format if debug else _warning_line
    arguments = audit.with_command([each for each in sys.argv[1:] if each != "--debug" and each not in _MODES])
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed before we began
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a sign that the terminal lacks must not cost a result
    try:
        with terminable():
            if app(args=arguments or ["--help"], prog_name="remanence", standalone_mode=False):
                raise KeyboardInterrupt  # typer takes it and returns a code instead; no command returns anything
            sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            raise
        _fail(error)
    finally:
        warnings.formatwarning = python_format


def _warning_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning of Python's, without the file and the line of source it comes from."""
    return f"warning: {printable(str(message), MAX_MESSAGE)}\n"


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
    """What went wrong and how to go on, in one or two lines, and the exit code."""
    lines, code = _lines(error)
    return "\n".join(printable(line, MAX_MESSAGE) for line in lines), code


def _lines(error: BaseException) -> tuple[list[str], int]:
    if isinstance(error, BadInput):
        return [str(error), *getattr(error, "__notes__", ())], 2
    if hasattr(error, "format_message"):  # typer's own, whose class it does not export
        context = getattr(error, "ctx", None)
        command = getattr(context, "command_path", "remanence")
        said = str(error.format_message())
        if context is not None and said.startswith("Usage: "):  # a group without a command: the message is its help
            said = f"`{command}` needs a command: {', '.join(context.command.list_commands(context))}"
        return [said, f"`{command} --help` shows what can be given."], 2
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return ["interrupted"], exit_code()
    if isinstance(error, OSError):
        where = f" (`{error.filename}`)" if error.filename else ""
        said = f"{error.strerror}{where}: put that right and repeat the command" if error.strerror else str(error)
        return [said], 1
    first = str(error).partition("\n")[0]
    return [f"{type(error).__name__}: {first}", "This is a defect of remanence: `--debug` shows where."], 1


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
