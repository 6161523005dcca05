"""How a request for an audit of text is carried out: tokens, vocabulary and what the client sent, from their files."""

from pathlib import Path

import torch

from remanence.auditing.answer.report import Digests, Report
from remanence.auditing.countermeasures.axes import parse_sweep
from remanence.auditing.inputs.digests import digest_file, digest_params
from remanence.auditing.inputs.recipe import Recipe, load_recipe
from remanence.auditing.inputs.tokens import load_tokens, load_vocabulary
from remanence.auditing.inputs.transformers import TokenNetwork, token_update
from remanence.auditing.inputs.weights import load_release_weights
from remanence.auditing.pipeline import audit
from remanence.auditing.request import Request
from remanence.errors import BadInput
from remanence.progress import say
from remanence.types import Caveat, Params


def run_text_request(request: Request, network: TokenNetwork, *, command: str) -> Report:
    """Load what the request names for a transformer, and audit it."""
    if request.kind != "update":
        message = "the network is a transformer, of which updates are audited: give `audit update` what a client sends"
        raise BadInput(message, code="unsupported-model", argument="model")
    for name in ("label", "normalize"):
        if getattr(request, name) is not None:
            message = f"`{name}` has no meaning in an audit of text: leave it out"
            raise BadInput(message, code="conflict", argument=name)
    vocabulary = load_vocabulary(Path(request.vocabulary) if request.vocabulary else None, network.model)
    truth, held_out = (
        load_tokens(source, network.model, vocabulary, argument=argument).to(request.device)
        for source, argument in ((request.data, "data"), (request.held_out, "held_out"))
    )
    recipe = Recipe() if request.local is None else load_recipe(request.local)
    assert request.before is not None
    before = _weights(request.before, network, request.device)
    sent_file = request.gradient or request.after
    assert sent_file is not None
    gradient = request.gradient is not None
    sent = _weights(sent_file, network, request.device, before=_absent(before, request), gradient=gradient)
    release = token_update(
        network,
        before,
        sent,
        truth,
        gradient=gradient,
        lr=recipe.lr or 1.0,
        decay=recipe.weight_decay or 0.0 if recipe.optimizer == "sgd" else 0.0,
    )
    return audit(
        release,
        truth=truth,
        held_out=held_out,
        budget=request.budget,
        seed=request.seed,
        attacks=request.attacks,
        command=command,
        digests=Digests(
            model=_digest(sent_file, sent),
            base=_digest(request.before, before),
            data=digest_file(Path(request.data)),
            held_out=digest_file(Path(request.held_out)),
        ),
        caveats=_caveats(recipe) if request.gradient is None else (),
        defenses=request.defenses,
        sweep=None if request.sweep is None else parse_sweep(request.sweep),
    )


def _absent(before: Params, request: Request) -> Params:
    """What the tensors have that a client did not send: its gradient is zero, its weights are those before."""
    return before if request.gradient is None else {name: torch.zeros_like(p) for name, p in before.items()}


def _weights(
    path: str, network: TokenNetwork, device: str, *, before: Params | None = None, gradient: bool = False
) -> Params:
    loaded = load_release_weights(Path(path), network.module, before=before, gradient=gradient)
    for note in loaded.notes:
        say(f"{path}: {note}")
    return {name: p.to(device) for name, p in loaded.params.items()}


def _digest(path: str, params: Params) -> str:
    """The digest of a file, or of the values where weights are a folder of shards."""
    return digest_file(Path(path)) if Path(path).is_file() else digest_params(params)


def _caveats(recipe: Recipe) -> tuple[Caveat, ...]:
    """What is simplified where a client did more than one step of SGD, or may have."""
    missing = recipe.missing
    simple = not recipe.momentum and recipe.optimizer == "sgd" and recipe.epochs == 1 and recipe.batch_size == "full"
    if not missing and simple:
        return ()
    how = "how the client trained is not known" if missing else f"the client trained by {recipe}"
    text = f"Attacks may be weaker than possible: {how}, and its update is taken for one gradient of all sequences."
    return (Caveat(code="update-as-gradient", text=text),)
