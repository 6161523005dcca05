"""The commands that show what there is: list, schema, data."""

import json
import sys
from typing import Annotated

import typer

from remanence.cli.options import Json, examples, first_line, recipes
from remanence.errors import BadInput

data_app = typer.Typer(
    help="Named data sets: what is here, and how to get the rest.",
    epilog=examples("remanence data list", "remanence data fetch mnist"),
)


def show_schema(
    of_audit: Annotated[bool, typer.Option("--audit", help="The schema of an audit's report.json.")] = False,
    of_record: Annotated[bool, typer.Option("--record", help="The schema of an audit's record.json.")] = False,
) -> None:
    """Print the JSON schema of results.json or of an audit."""
    from remanence.auditing.answer.record import record_schema
    from remanence.auditing.answer.report import schema as audit_schema
    from remanence.experiments.results import schema

    if of_audit and of_record:
        message = "`--audit` and `--record` are two schemas: ask for one at a time"
        raise BadInput(message, code="conflict", argument="--record")
    print(json.dumps(audit_schema() if of_audit else record_schema() if of_record else schema(), indent=1))


def list_all(as_json: Json = False) -> None:
    """Show the attacks, recipes, matchings, metrics and data sets."""
    from remanence.attacks import ATTACKS
    from remanence.data import list_named
    from remanence.metrics import MATCHINGS, METRICS

    listed = {
        "attacks": {attack.__name__: first_line(sys.modules[attack.__module__]) for attack in ATTACKS},
        "recipes": {name: first_line(recipe) for name, recipe in recipes().items()},
        "matchings": {matching.name: first_line(matching.assign) for matching in MATCHINGS},
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


@data_app.command("list", epilog=examples("remanence data list", "remanence data list --json"))
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


@data_app.command("fetch", epilog=examples("remanence data fetch mnist"))
def data_fetch(name: Annotated[str, typer.Argument(metavar="NAME", hidden=True)]) -> None:
    """Download a data set from its canonical address. It is verified; a broken download goes on where it stopped.

    NAME is one of the names that `remanence data list` shows.
    """
    from remanence.data import fetch_named

    paths = fetch_named(name)
    for path in paths:
        print(path)
    if not paths:
        print(f"{name} comes with an installed package: there is nothing to fetch", file=sys.stderr)
