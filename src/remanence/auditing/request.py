"""A request for an audit as files and names, from the command line or an `audit.toml`, and how it is carried out."""

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
from remanence.auditing.inputs.transformers import embeds_tokens, token_network, unread_transformer
from remanence.auditing.inputs.updates import update_release
from remanence.auditing.inputs.weights import load_release_weights
from remanence.auditing.pipeline import BUDGET, audit
from remanence.errors import BadInput, NotEnoughKnowledge
from remanence.experiments.experiment import device_of
from remanence.models import normalized, normalized_params
from remanence.progress import say
from remanence.releases import AllButOne, AllButOneUnknownInit, FineTuned, FineTunedUnknownRecipe, WeightsOnly
from remanence.training import Training
from remanence.types import Caveat, Data, Params

Kind: TypeAlias = Literal["model", "update"]


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
    gradient: str | None = None
    vocabulary: str | None = None
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
        needed = ("weights",) if self.kind == "model" else ("before",) if self.gradient else ("before", "after")
        of_updates = ("before", "after", "gradient", "vocabulary", "local", "sweep")
        of_models = ("weights", "base", "fixed", "recipe")
        foreign = of_updates if self.kind == "model" else of_models
        for name in needed:
            if getattr(self, name) is None:
                other = ", or of a transformer `gradient`" if name == "after" else ""
                raise BadInput(f"`audit {self.kind}` needs `{name}`{other}: give it", code="empty", argument=name)
        for name in foreign:
            if getattr(self, name) is not None:
                message = f"`{name}` has no meaning in an audit of a {self.kind}: leave it out"
                raise BadInput(message, code="conflict", argument=name)
        if self.after is not None and self.gradient is not None:
            message = "a client sends weights or a gradient: give `after` or `gradient`, not both"
            raise BadInput(message, code="conflict", argument="gradient")
        if self.sweep is not None:
            parse_sweep(self.sweep)  # before files are read


def run_request(request: Request, *, command: str, store: Path | None = None) -> Report:
    """Load what the request names and audit it; searches that an interrupted audit left in `store` are resumed."""
    device_of(request.device)
    module = load_model(request.model).eval()
    if (network := token_network(module)) is not None:
        from remanence.auditing.text_request import run_text_request

        return run_text_request(request, network, command=command)
    _check_records(request, module)
    try:
        private, others, *known = load_records(
            [source for source in (request.data, request.held_out, request.fixed) if source is not None], request.label
        )
    except BadInput:
        if embeds_tokens(module):  # whose records are tokens
            raise unread_transformer(request.model) from None
        raise
    release, caveats = _release(request, module, private, known[0] if known else None)
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


def _check_records(request: Request, module: nn.Module) -> None:
    """Refuse what has a meaning for text alone, and a sweep of an update that cannot be made again."""
    for name in ("gradient", "vocabulary"):
        if getattr(request, name) is not None:
            if embeds_tokens(module):
                raise unread_transformer(request.model)
            message = (
                f"`{name}` is for transformers, ours or with the names of GPT-2, and `{request.model}` is none: leave "
                "it out, and give the weights after a step as `after`"
            )
            raise BadInput(message, code="conflict", argument=name)
    if request.sweep is None:
        return
    missing = ("how the client trained",) if request.local is None else load_recipe(request.local).missing
    if missing:
        message = (
            f"`sweep` makes the update of the client again, and `local` lacks {', '.join(missing)}: give it, as in "
            "`--local 'sgd lr=0.1 epochs=1 batch=full'`"
        )
        raise NotEnoughKnowledge(message, argument="local")


def _release(request: Request, module: nn.Module, private: Data, fixed: Data | None) -> tuple[Any, tuple[Caveat, ...]]:
    """The release that the files make, and what was simplified."""
    model = _with_preprocessing(module, request, private)

    def params(path: str, *, before: str | None = None, base: bool = False) -> Params:
        of_model = request.kind == "model"
        sent = None if before is None else load_release_weights(Path(before), module, base=of_model).params
        loaded = load_release_weights(Path(path), module, before=sent, base=base)
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
    initial = None if request.base is None else params(request.base, base=True)
    published = WeightsOnly(
        model=model,
        final=(initial or {}) | params(request.weights, before=request.base),
        shape=private.shape,
        bounds=private.bounds,
        num_classes=private.num_classes,
    )
    published = replace(published, num_classes=max(2, _outputs(published, private)))
    return _with_knowledge(request, published, initial, fixed), ()


def _outputs(release: WeightsOnly, private: Data) -> int:
    """The number of outputs of the model; where it does not take rows of a table, their features are named."""
    try:
        return outputs(release)
    except BadInput as refusal:
        if private.columns is None or refusal.code != "shape-mismatch":
            raise
        message = f"{refusal} As the table was read, {private.columns.encoding}"
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


def _with_knowledge(request: Request, published: WeightsOnly, initial: Params | None, fixed: Data | None) -> Any:
    """The release with the base, the recipe and the other records, as far as they are given."""
    shown = {field.name: getattr(published, field.name) for field in fields(published)}
    training = _training(request.recipe, outputs(published))
    if fixed is not None:
        if training is None:
            message = "`fixed`, all records but one, needs the training recipe: give `recipe`"
            raise BadInput(message, code="not-enough-knowledge", argument="recipe")
        fixed = replace(as_data(fixed, published, "fixed"), num_classes=published.num_classes)
        if initial is None or not published.final.keys() <= initial.keys():
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
