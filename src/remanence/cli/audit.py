"""The audit of one's own release: `audit model`, `audit update`, `audit data`, `audit init`, or an audit.toml."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remanence.cli.experiments import run_experiments
from remanence.cli.options import (
    Backend,
    Device,
    Force,
    Json,
    Out,
    RayAddress,
    Redact,
    Seed,
    Store,
    backend_from,
    command_line,
    examples,
    one_of,
)

if TYPE_CHECKING:
    pass


app = typer.Typer(
    no_args_is_help=True,
    help="Audit your own release: what can be read back from it.",
    epilog=examples("remanence audit data --data records.csv --label outcome"),
)

Label = Annotated[str | None, typer.Option("--label", metavar="COLUMN", help="The label column of a .csv.")]
Encode = Annotated[
    str | None,
    typer.Option(
        "--encode",
        metavar="HOW",
        help="auto: take categories, dates and missing values of a .csv too, and leave out ids.",
        autocompletion=one_of("auto"),
    ),
]
Attacks = Annotated[
    list[str] | None, typer.Option("--attack", metavar="ATTACK", help="Only this attack (may be repeated).")
]


def with_command(arguments: Sequence[str]) -> list[str]:
    """The arguments with `file` between `audit` and a file that is given in place of a command."""
    given = list(arguments)
    if len(given) > 1 and given[0] == "audit" and given[1].endswith(".toml"):
        given.insert(1, "file")
    return given


@app.command(
    epilog=examples(
        "remanence audit data --data records.csv --label outcome",
        "remanence audit data --data images.npz --net cnn --attack RecoNN",
    )
)
def data(
    source: Annotated[
        str,
        typer.Option("--data", metavar="SOURCE", help="A named data set, an .npz, a .csv or a folder of images."),
    ],
    label: Label = None,
    encode: Encode = None,
    net: Annotated[
        str,
        typer.Option(
            "--net",
            metavar="NAME",
            help="The architecture of the models: mlp or cnn.",
            autocompletion=one_of("mlp", "cnn"),
        ),
    ] = "mlp",
    attack: Attacks = None,
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
    """Train small models on your records and attack them. It answers before you have a model of your own."""
    from remanence.auditing.presets import audit_experiments
    from remanence.data import load
    from remanence.experiments.run import Job

    chosen = audit_experiments(partial(load, source, label=label, encode=encode), net, attack, named=source)
    options = [*(["--label", label] if label else []), *(["--encode", encode] if encode else [])]
    job = Job(
        recipe=shlex.join(["audit", source, *options, "--net", net]),
        scale="small",
        seed=seed,
        device=device,
        folder=out or Path("runs") / f"audit-{Path(source).stem}",
        command=command_line(),
        force=force,
        skip_refused=len(chosen) > 1,
        redact=redact,
        backend=backend_from(backend, ray_address),
        store=store,
    )
    run_experiments(chosen, job, as_json=as_json)
