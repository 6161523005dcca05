"""The inspection of a model that a server sent, before a client trains it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from remanence.cli.audit import Model
from remanence.cli.auditing import GATE_FAILED
from remanence.cli.options import Json
from remanence.errors import BadInput, printable


def inspect(
    network: Model,
    weights: Annotated[
        Path,
        typer.Option("--weights", metavar="FILE", help="What the server sent: safetensors, a state dict, an .npz."),
    ],
    shape: Annotated[
        str | None, typer.Option("--shape", metavar="NUMBERS", help="The shape of one record, e.g. 1,28,28.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look for known traps in a model that a server sent.

    It exits with code 3 if the model is flagged.
    MODULE:NAME makes the network, such as client:make_net; it is imported from the working directory.
    """
    from remanence.auditing.inputs.models import load_model, load_release_weights
    from remanence.diagnostics.inspection import inspect_model

    sizes = None if shape is None else _sizes(shape)
    model = load_model(network)
    inspection = inspect_model(model, load_release_weights(weights, model).params, sizes)
    print(json.dumps(inspection.to_json(), indent=1) if as_json else inspection)
    if inspection.flags:
        raise SystemExit(GATE_FAILED)


def _sizes(given: str) -> tuple[int, ...]:
    parts = given.split(",")
    if all(part.strip().isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        return tuple(int(part) for part in parts)
    message = f"`--shape` must be whole numbers above 0, such as 1,28,28, got `{printable(given, 60)}`"
    raise BadInput(message, code="wrong-type", argument="--shape")
