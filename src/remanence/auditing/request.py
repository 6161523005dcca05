"""A request for an audit as files and names, from the command line or an `audit.toml`, and how it is carried out."""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from torch import nn

from remanence.auditing.answer.report import Digests, Report
from remanence.auditing.attempts.settings import outputs
from remanence.auditing.countermeasures.axes import parse_sweep
from remanence.auditing.inputs.digests import digest_data, digest_file
from remanence.auditing.inputs.models import load_model
from remanence.auditing.inputs.recipe import load_recipe
from remanence.auditing.inputs.records import as_data
from remanence.auditing.inputs.sources import load_records, raw_units
from remanence.auditing.inputs.updates import update_release
from remanence.auditing.inputs.weights import load_release_weights
from remanence.auditing.pipeline import BUDGET, audit
from remanence.disk import read_text
from remanence.errors import BadInput, NotEnoughKnowledge, unknown_name
from remanence.experiments.experiment import device_of
from remanence.models import normalized, normalized_params
from remanence.progress import say
from remanence.releases import AllButOne, AllButOneUnknownInit, FineTuned, FineTunedUnknownRecipe, WeightsOnly
from remanence.training import Training
from remanence.types import Caveat, Data, Params

Kind: TypeAlias = Literal["model", "update"]
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?")
_UNITS = {None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """What is released, where the records are, and how long the audit may take; see `TEMPLATE` for each field."""

    kind: Kind
    model: str
    data: str
    held_out: str
    weights: str | None = None
    base: str | None = None
    before: str | None = None
    after: str | None = None
    fixed: str | None = None
    label: str | None = None
    normalize: tuple[float, ...] | None = None
    recipe: str | None = None
    local: str | None = None
    attacks: tuple[str, ...] | None = None
    defenses: bool = False
    sweep: str | None = None
    budget: float = BUDGET
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        needed = ("weights",) if self.kind == "model" else ("before", "after")
        of_updates, of_models = ("before", "after", "local", "sweep"), ("weights", "base", "fixed", "recipe")
        foreign = of_updates if self.kind == "model" else of_models
        for name in needed:
            if getattr(self, name) is None:
                raise BadInput(f"an audit of a {self.kind} needs `{name}`: give it", code="empty", argument=name)
        for name in foreign:
            if getattr(self, name) is not None:
                message = f"`{name}` has no meaning in an audit of a {self.kind}: leave it out"
                raise BadInput(message, code="conflict", argument=name)
        if self.sweep is not None:
            parse_sweep(self.sweep)  # before files are read
            if self.local is None:
                message = "`sweep` makes the update of the client again, and needs how it trained: give `--local`"
                raise NotEnoughKnowledge(message, argument="local")
            if missing := load_recipe(self.local).missing:
                message = (
                    f"`sweep` makes the update of the client again, and `local` lacks {', '.join(missing)}: add them, "
                    "as in `sgd lr=0.1 epochs=1 batch=full`"
                )
                raise NotEnoughKnowledge(message, argument="local")


def run_request(request: Request, *, command: str, store: Path | None = None) -> Report:
    """Load what the request names and audit it; searches that an interrupted audit left in `store` are resumed."""
    device_of(request.device)
    private, others, *known = load_records(
        [source for source in (request.data, request.held_out, request.fixed) if source is not None], request.label
    )
    release, caveats = _release(request, private, known[0] if known else None)
    return audit(
        release,
        truth=private,
        held_out=others,
        budget=request.budget,
        seed=request.seed,
        attacks=request.attacks,
        command=command,
        digests=_digests(request, private, others),
        store=store,
        caveats=caveats,
        defenses=request.defenses,
        sweep=None if request.sweep is None else parse_sweep(request.sweep),
    )


def _release(request: Request, private: Data, fixed: Data | None) -> tuple[Any, tuple[Caveat, ...]]:
    """The release that the files make, and what was simplified."""
    module = load_model(request.model).eval()
    model = _with_preprocessing(module, request, private)

    def params(path: str, *, before: str | None = None) -> Params:
        sent = None if before is None else load_release_weights(Path(before), module).params
        loaded = load_release_weights(Path(path), module, before=sent)
        for note in loaded.notes:
            say(f"{path}: {note}")
        named = {name: p for name, p in loaded.params.items() if name not in loaded.absent}
        for wrapped in _wrappers(model, module):
            named = normalized_params(wrapped, named)
        return {name: p.to(request.device) for name, p in named.items()}

    if request.kind == "update":
        assert request.before is not None
        assert request.after is not None
        at = params(request.before)
        probed = WeightsOnly(
            model=model, final=at, shape=private.shape, bounds=private.bounds, num_classes=private.num_classes
        )
        classes = _outputs(probed, private)
        made = update_release(
            model,
            at,
            params(request.after, before=request.before),
            _training(request.local, classes),
            batch_size=len(private),
            shape=private.shape,
            bounds=private.bounds,
            num_classes=max(2, classes),
        )
        weaker = f"Attacks may be weaker than possible: {made.weaker}."
        return made.release, (Caveat(code="update-as-gradient", text=weaker),) if made.weaker else ()
    assert request.weights is not None
    published = WeightsOnly(
        model=model,
        final=params(request.weights),
        shape=private.shape,
        bounds=private.bounds,
        num_classes=private.num_classes,
    )
    published = replace(published, num_classes=max(2, _outputs(published, private)))
    return _with_knowledge(request, published, params, fixed), ()


def _outputs(release: WeightsOnly, private: Data) -> int:
    """The number of outputs of the model; where it does not take rows of a table, their features are named."""
    try:
        return outputs(release)
    except BadInput as refusal:
        if private.columns is None or refusal.code != "shape-mismatch":
            raise
        names = [
            f"{each.name} ({each.size} features)" if each.size > 1 else each.name for each in private.columns.columns
        ]
        done = "".join(f" {note}." for note in private.columns.notes)
        message = (
            f"{refusal} Rows of the table have {private.shape[0]} features, in this order: {', '.join(names)}.{done}"
        )
        raise BadInput(message, code=refusal.code, argument=refusal.argument) from None


def _with_preprocessing(module: nn.Module, request: Request, private: Data) -> nn.Module:
    """The network for records as they were loaded: of a table in [0, 1] they become raw values first, then they are
    normalised."""
    mean, std = _halves(request.normalize)
    model = normalized(module, mean, std) if mean and std else module
    if (units := raw_units(private)) is not None:
        model = normalized(model, *units)
    return model


def _wrappers(model: nn.Module, module: nn.Module) -> list[nn.Sequential]:
    """The normalised networks around `module`, the innermost first."""
    found: list[nn.Sequential] = []
    while model is not module:
        assert isinstance(model, nn.Sequential)
        found.append(model)
        model = model[-1]
    return found[::-1]


def _with_knowledge(
    request: Request, published: WeightsOnly, params: Callable[[str], Params], fixed: Data | None
) -> Any:
    """The release with the base, the recipe and the other records, as far as they are given."""
    shown = {field.name: getattr(published, field.name) for field in fields(published)}
    training = _training(request.recipe, outputs(published))
    initial = None if request.base is None else params(request.base)
    if fixed is not None:
        if training is None:
            message = "`fixed`, all records but one, needs the training recipe: give `recipe`"
            raise BadInput(message, code="not-enough-knowledge", argument="recipe")
        fixed = replace(as_data(fixed, published, "fixed"), num_classes=published.num_classes)
        if initial is None:
            return AllButOneUnknownInit(**shown, training=training, fixed=fixed)
        return AllButOne(**shown, training=training, fixed=fixed, initial=initial)
    if initial is None:
        return published
    if training is None:
        return FineTunedUnknownRecipe(**shown, initial=initial)
    return FineTuned(**shown, initial=initial, training=training)


def _training(given: str | None, outputs: int) -> Training | None:
    """The recipe where it is complete enough to be simulated."""
    if given is None:
        return None
    recipe = load_recipe(given)
    if recipe.missing:
        missing = ", ".join(recipe.missing)
        say(f"warning: {given} lacks {missing}, without which no training can be simulated: give it if it is known")
        return None
    return recipe.training(outputs=outputs)


def _halves(values: tuple[float, ...] | None) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """The means and the standard deviations of `normalize`."""
    if values is None:
        return None, None
    half = len(values) // 2
    if len(values) % 2 or not half or min(values[half:]) <= 0:
        message = (
            "`normalize` must be means and then as many positive standard deviations, such as 0.1307,0.3081, "
            f"got {','.join(map(str, values))}"
        )
        raise BadInput(message, code="out-of-range", argument="normalize")
    return values[:half], values[half:]


def _digests(request: Request, private: Data, others: Data) -> Digests:
    """Digests of the files where there are files, otherwise of the values."""
    model, base = (request.weights, request.base) if request.kind == "model" else (request.after, request.before)
    assert model is not None
    return Digests(
        model=digest_file(Path(model)),
        base=None if base is None else digest_file(Path(base)),
        data=digest_file(Path(request.data)) if Path(request.data).is_file() else digest_data(private),
        held_out=digest_file(Path(request.held_out)) if Path(request.held_out).is_file() else digest_data(others),
    )


def seconds(text: str, *, argument: str = "budget") -> float:
    """A duration such as 90, 90s, 15m or 1h, in seconds."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or float(match[1]) <= 0:
        message = f"`{argument}` must be a duration such as 90s, 15m or 1h, got `{text}`"
        raise BadInput(message, code="out-of-range", argument=argument)
    return float(match[1]) * _UNITS[match[2]]


def numbers(text: str, *, argument: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(float(part) for part in text.replace("/", ",").split(","))
    except ValueError:
        message = f"`{argument}` must be numbers separated by commas, such as 0.1307,0.3081, got `{text}`"
        raise BadInput(message, code="wrong-type", argument=argument) from None


@final
@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What becomes of a report: where it is written, and what fails the command."""

    out: str | None = None
    fail_if: tuple[str, ...] = ()
    compare: str | None = None
    junit: str | None = None
    sarif: str | None = None
    summary: str | None = None
    redact: bool = False


_MAX_TOML = 2**20  # bytes


def read_toml(path: Path) -> tuple[Request, Wanted]:
    """The request in an `audit.toml`; paths in it are relative to its folder."""
    try:
        given = tomllib.loads(read_text(path, max_bytes=_MAX_TOML))
    except OSError as error:
        message = f"cannot read `{path}` ({error.strerror}): `remanence audit init` writes such a file"
        raise BadInput(message, code="missing-file", argument=str(path)) from None
    except BadInput:
        raise
    except (ValueError, RecursionError) as error:
        raise BadInput(f"`{path}` is not TOML ({error})", code="damaged-file", argument=str(path)) from None
    known = {field.name for field in fields(Request)}, {field.name for field in fields(Wanted)}
    for name in given:
        if name not in known[0] | known[1]:
            raise unknown_name("setting", name, known[0] | known[1], argument=name)
    values = {name: _value(name, value, path.parent) for name, value in given.items()}
    for name in ("kind", "model", "data", "held_out"):
        if name not in values:
            raise BadInput(f"`{path}` lacks `{name}`: `remanence audit init` writes one that has all", argument=name)
    if values["kind"] not in ("model", "update"):
        raise unknown_name("kind", str(values["kind"]), ("model", "update"), argument="kind")
    request = Request(**{name: value for name, value in values.items() if name in known[0]})
    return request, Wanted(**{name: value for name, value in values.items() if name in known[1]})


_PATHS = ("weights", "base", "before", "after", "recipe", "out", "compare", "junit", "sarif", "summary")
_SOURCES = ("data", "held_out", "fixed")
_LISTS = ("attacks", "fail_if", "normalize")
_TYPES: dict[str, tuple[type, str]] = {
    "seed": (int, "a whole number"),
    "defenses": (bool, "true or false"),
    "redact": (bool, "true or false"),
}


def _value(name: str, value: Any, folder: Path) -> Any:
    if name == "budget":
        return seconds(str(value))
    kind, words = (float, "numbers") if name == "normalize" else _TYPES.get(name, (str, "a text in quotes"))
    values = value if name in _LISTS and isinstance(value, list) else [value]
    if any(type(each) is not kind and not (kind is float and type(each) is int) for each in values):
        raise BadInput(f"`{name}` must be {words}, got {value!r}", code="wrong-type", argument=name)
    if name in _LISTS:
        return tuple(float(each) if name == "normalize" else str(each) for each in values)
    if name in _PATHS or (name in _SOURCES and (folder / str(value)).exists()):
        return str(folder / str(value))
    return value


TEMPLATE = """\
# What is audited: remanence audit audit.toml
# Lines that begin with # are optional. Paths are relative to this file.

kind = "model"                  # or "update", of a federated client
model = "mymodel:MyNet"         # package.module:callable that makes the network, imported from the working directory
weights = "model.safetensors"   # what is about to be published: safetensors or a torch state dict
data = "private.npz"            # the records it was trained on: x and y in an .npz, a .csv, a folder of images
held_out = "others.npz"         # records of the same kind that it never saw; some hundred of each class are best
# label = "diagnosis"           # the label column of a .csv
# normalize = [0.1307, 0.3081]  # means, then standard deviations, by which the model's inputs are normalised
# base = "base.safetensors"     # the weights that training started from, where an attacker can have them
# recipe = "train.toml"         # optimizer, lr, momentum, epochs, batch_size, weight_decay, loss: what is known
# fixed = "known.npz"           # all training records but those in `data`, for an attacker who has them

# of an update, in place of weights, base, recipe and fixed:
# before = "round7.pt"
# after = "client3.pt"
# local = "sgd lr=0.1 epochs=1 batch=full"
# sweep = "clients=1,2,5,10 noise=0,0.1,1"   # what would hide the records: also topk, bits, clip

budget = "15m"
# attacks = ["Stationarity"]    # only these
# defenses = true               # what would help: stand-ins made with DP, weight decay, ...; updates with noise, ...
# seed = 0
# device = "cpu"

out = "audit"                   # the folder of the page and the record
# redact = true                 # keep counts and curves, write no picture and no row of a record
# fail_if = ["found>0", "membership.tpr@1%>0.05"]   # exit code 3
# compare = "audit-of-the-last-release"             # exit code 3 where this one is worse
# junit = "audit.xml"
# sarif = "audit.sarif"
# summary = "audit.md"
"""


def write_template(path: Path, *, force: bool) -> None:
    """Write a commented `audit.toml`."""
    if path.exists() and not force:
        raise BadInput(f"`{path}` exists: give another name, or `--force`", code="conflict", argument=str(path))
    path.write_text(TEMPLATE, encoding="utf-8")
