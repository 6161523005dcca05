"""Options that several commands have, and what they become.

The help speaks the user's words: every option names its value (`metavar`), as typer would else print a Python type, and
an argument is hidden from typer's list, which prints the type always, and explained in the command's docstring.
"""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remanence.errors import BadInput, printable, unknown_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from remanence.execution import Local, Ray
    from remanence.experiments import Recipe
    from remanence.reproduction import Paper


def one_of(*names: str) -> "Callable[[], list[str]]":
    """The completion of a value that is one of the names; typer keeps those that begin like the word on the line."""
    return lambda: list(names)


def examples(*commands: str) -> str:
    """The end of a command's help: what people type, one command a line."""
    return "\n".join(["\b", "Examples:" if len(commands) > 1 else "Example:", *(f"  {each}" for each in commands)])


Out = Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Folder of the run.  [default: runs/NAME]")]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Every random choice follows from it."),
]
Seeds = Annotated[
    list[int] | None,
    typer.Option(
        "--seed",
        metavar="N",
        min=0,
        max=2**32 - 1,
        help="Every random choice follows from it; of several each has a folder.  [default: 0]",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device", metavar="DEVICE", help="cpu, cuda or cuda:N.", autocompletion=one_of("cpu", "cuda", "cuda:0")
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the results of another run in the folder.")]
Redact = Annotated[
    bool, typer.Option("--redact", help="Keep counts and curves, write no picture and no row of a record.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Backend = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="Where experiments run and shadow models are trained: local or ray.",
        autocompletion=one_of("local", "ray"),
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option("--ray-address", metavar="ADDRESS", help="A running cluster.  [default: one started here]"),
]
Store = Annotated[
    Path | None,
    typer.Option("--store", metavar="FOLDER", help="Folder of shadow models and searches; a broken run goes on."),
]
Scale = Annotated[
    str,
    typer.Option(
        "--scale",
        metavar="SCALE",
        help="smoke (seconds), small (a laptop) or full (one GPU).",
        autocompletion=one_of("smoke", "small", "full"),
    ),
]


def recipes() -> "Mapping[str, Recipe]":
    """The recipes by name, loaded when a command needs them."""
    from remanence.experiments import distributed

    return distributed.recipes()


def papers() -> "Sequence[Paper]":
    """The papers with all their claims, which come with the recipes."""
    from importlib import import_module

    papers: Sequence[Paper] = import_module("remanence_recipes.papers").PAPERS
    return papers


def command_line() -> str:
    """The command as it was typed; bytes of a file name that are no text, which no page can hold, are escaped."""
    return printable(shlex.join(["remanence", *sys.argv[1:]]))


def backend_from(name: str, ray_address: str | None) -> "Local | Ray":
    from remanence.execution import Local, Ray

    if name not in ("local", "ray"):
        raise unknown_name("backend", name, ("local", "ray"))
    if ray_address and name != "ray":
        message = f"`--ray-address` needs `--backend ray`, got `--backend {name}`: change one of them"
        raise BadInput(message, code="conflict", argument="--ray-address")
    return Ray(address=ray_address) if name == "ray" else Local()


def print_path(path: Path) -> None:
    """Print the path of a result: as it is for a program that reads it, escaped where a terminal would obey it."""
    print(printable(str(path)) if sys.stdout.isatty() else path)


def first_line(described: object) -> str:
    return (described.__doc__ or "").strip().split("\n")[0]
