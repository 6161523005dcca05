"""The audit of one's own release: `audit model`, `audit update`, `audit data`, `audit init`, or an audit.toml."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from remanence.cli.auditing import parsed, run_audit, wanted_files
from remanence.cli.experiments import run_experiments
from remanence.cli.options import (
    Backend,
    Device,
    Force,
    Json,
    RayAddress,
    Redact,
    Seed,
    Store,
    backend_from,
    command_line,
    examples,
    one_of,
    print_path,
)
from remanence.errors import printable

app = typer.Typer(
    no_args_is_help=True,
    help="Audit your own release: what can be read back from it.",
    epilog=examples(
        "remanence audit init",
        "remanence audit audit.toml",
        "remanence audit model mymodel:MyCNN --weights cnn.safetensors --data private.npz --held-out others.npz",
    ),
)

Model = Annotated[str, typer.Argument(metavar="MODULE:NAME", hidden=True)]
Records = Annotated[
    str, typer.Option("--data", metavar="SOURCE", help="The private records: an .npz, a .csv or a folder of images.")
]
HeldOut = Annotated[
    str, typer.Option("--held-out", metavar="SOURCE", help="Records of the same kind that were not trained on.")
]
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
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Folder of the audit.  [default: runs/audit-NAME, NAME being that of the audited file]",
    ),
]
Normalize = Annotated[
    str | None,
    typer.Option("--normalize", metavar="NUMBERS", help="Means, then standard deviations, e.g. 0.1307,0.3081."),
]
Budget = Annotated[str, typer.Option("--budget", metavar="TIME", help="How long it may take: 90s, 15m, 1h.")]
Defenses = Annotated[
    bool, typer.Option("--defenses", help="Make stand-ins with defenses: what each saves, and what it costs.")
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if", metavar="CONDITION", help='Exit with code 3 if so, e.g. "found>0", "membership.tpr@1%>0.05".'
    ),
]
Compare = Annotated[
    Path | None,
    typer.Option("--compare", metavar="FOLDER", help="Exit with code 3 if worse than the audit in this folder."),
]
JUnit = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write a JUnit file.")]
Sarif = Annotated[Path | None, typer.Option("--sarif", metavar="FILE", help="Write a SARIF file.")]
Summary = Annotated[Path | None, typer.Option("--summary", metavar="FILE", help="Write a summary in Markdown.")]


def with_command(arguments: Sequence[str]) -> list[str]:
    """The arguments with `file` between `audit` and a file that is given in place of a command, and the axes of a sweep
    as one word, though they are typed as several."""
    given = list[str]()
    for each in arguments:
        joins = given[-2:-1] == ["--sweep"] and "=" in each and not each.startswith("-")
        given = [*given[:-1], f"{given[-1]} {each}"] if joins else [*given, each]
    if len(given) > 1 and given[0] == "audit" and given[1].endswith(".toml"):
        given.insert(1, "file")
    return given


@app.command(
    epilog=examples(
        "remanence audit model mymodel:MyCNN --weights cnn.safetensors --data private.npz --held-out others.npz",
        "remanence audit model nets:make --weights tuned.pt --base base.pt --data private.npz --held-out others.npz",
    )
)
def model(
    network: Model,
    weights: Annotated[
        Path, typer.Option("--weights", metavar="FILE", help="The weights you publish: safetensors or a state dict.")
    ],
    data: Records,
    held_out: HeldOut,
    base: Annotated[
        Path | None, typer.Option("--base", metavar="FILE", help="The weights that training started from.")
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option("--recipe", metavar="FILE", help="How it was trained: a TOML file.")
    ] = None,
    fixed: Annotated[
        str | None,
        typer.Option("--fixed", metavar="SOURCE", help="All other training records, for an attacker who has them."),
    ] = None,
    label: Label = None,
    normalize: Normalize = None,
    budget: Budget = "15m",
    attack: Attacks = None,
    defenses: Defenses = False,
    fail_if: FailIf = None,
    compare: Compare = None,
    junit: JUnit = None,
    sarif: Sarif = None,
    summary: Summary = None,
    out: Out = None,
    seed: Seed = 0,
    device: Device = "cpu",
    force: Force = False,
    redact: Redact = False,
    as_json: Json = False,
) -> None:
    """Audit trained weights. What can be read back from them, alone or beside their base?

    MODULE:NAME makes your network, such as mymodel:MyCNN; it is imported from the working directory.
    """
    from remanence.auditing.request import Request

    request = Request(
        kind="model",
        model=network,
        weights=str(weights),
        data=data,
        held_out=held_out,
        base=str(base) if base else None,
        recipe=str(recipe) if recipe else None,
        fixed=fixed,
        label=label,
        defenses=defenses,
        seed=seed,
        device=device,
        **parsed(normalize, attack, budget),
    )
    wanted = wanted_files(out, f"audit-{weights.stem}", fail_if, compare, junit, sarif, summary, redact=redact)
    run_audit(request, wanted, force=force, as_json=as_json)


@app.command(
    epilog=examples(
        "remanence audit update client:make_net --before r7.pt --after c3.pt --data batch.npz --held-out others.npz",
        "remanence audit update client:make_net --before r7.pt --after c3.pt --data batch.npz --held-out others.npz"
        " --local 'sgd lr=0.1 epochs=1 batch=full' --sweep 'clients=1,2,5,10 noise=0,0.1,1'",
        "remanence audit update client:make_gpt --before r7.pt --gradient g.pt --data tokens.npz --held-out others.npz",
    )
)
def update(
    network: Model,
    before: Annotated[Path, typer.Option("--before", metavar="FILE", help="The weights that the server sent.")],
    data: Records,
    held_out: HeldOut,
    after: Annotated[
        Path | None, typer.Option("--after", metavar="FILE", help="The weights that the client sent back.")
    ] = None,
    gradient: Annotated[
        Path | None,
        typer.Option("--gradient", metavar="FILE", help="Of a transformer: the gradient that it sent, not weights."),
    ] = None,
    vocabulary: Annotated[
        Path | None,
        typer.Option("--vocabulary", metavar="FILE", help="Of a transformer: the words of its tokens, JSON or lines."),
    ] = None,
    local: Annotated[
        str | None,
        typer.Option("--local", metavar="RECIPE", help='How the client trained: "adam lr=1e-3 epochs=5 batch=16".'),
    ] = None,
    label: Label = None,
    normalize: Normalize = None,
    budget: Budget = "15m",
    attack: Attacks = None,
    defenses: Defenses = False,
    sweep: Annotated[
        str | None,
        typer.Option("--sweep", metavar="AXES", help="What would hide the records: clients=1,2,5 noise=0,0.1,1."),
    ] = None,
    fail_if: FailIf = None,
    compare: Compare = None,
    junit: JUnit = None,
    sarif: Sarif = None,
    summary: Summary = None,
    out: Out = None,
    seed: Seed = 0,
    device: Device = "cpu",
    force: Force = False,
    redact: Redact = False,
    as_json: Json = False,
) -> None:
    """Audit the update of a federated client, the weights before and after its training on the records.

    MODULE:NAME makes the network, such as client:make_net; it is imported from the working directory.
    """
    from remanence.auditing.request import Request

    request = Request(
        kind="update",
        model=network,
        before=str(before),
        after=str(after) if after else None,
        gradient=str(gradient) if gradient else None,
        vocabulary=str(vocabulary) if vocabulary else None,
        data=data,
        held_out=held_out,
        local=local,
        label=label,
        defenses=defenses,
        sweep=sweep,
        seed=seed,
        device=device,
        **parsed(normalize, attack, budget),
    )
    wanted = wanted_files(
        out, f"audit-{(gradient or after or before).stem}", fail_if, compare, junit, sarif, summary, redact=redact
    )
    run_audit(request, wanted, force=force, as_json=as_json)


@app.command("file", hidden=True, epilog=examples("remanence audit file audit.toml"))
def from_file(
    path: Annotated[Path, typer.Argument(metavar="AUDIT.TOML", hidden=True)],
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Audit what AUDIT.TOML describes, a file as `remanence audit init` writes it."""
    from dataclasses import replace

    from remanence.auditing.request_file import read_toml

    request, wanted = read_toml(path)
    wanted = wanted if wanted.out else replace(wanted, out=str(Path("runs") / f"audit-{path.stem}"))
    run_audit(request, wanted, force=force, as_json=as_json)


@app.command(epilog=examples("remanence audit init", "remanence audit init mine.toml"))
def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", hidden=True)] = Path("audit.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Write a commented audit.toml to fill in; FILE is another name for it."""
    from remanence.auditing.request_file import write_template

    write_template(path, force=force)
    print_path(path)


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
    from remanence.auditing.demo_models.presets import audit_experiments
    from remanence.data import load
    from remanence.experiments.run import Job

    chosen = audit_experiments(partial(load, source, label=label, encode=encode), net, attack, named=source)
    options = [*(["--label", label] if label else []), *(["--encode", encode] if encode else [])]
    job = Job(
        recipe=printable(shlex.join(["audit", source, *options, "--net", net])),
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
    run_experiments([(chosen, job)], as_json=as_json)
