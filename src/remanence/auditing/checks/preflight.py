"""What is looked at before any attack, in seconds: do the model, its weights and the records fit together?

A check that stops an audit says what does not fit and the way out; a warning goes on; a note says what an attack will
meet. Numbers are by stable names, None where they do not apply.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from remanence.auditing.answer.report import Check, PreflightSummary
from remanence.auditing.checks.base import check_base
from remanence.auditing.checks.dynamics import check_dynamics
from remanence.auditing.checks.fit import check_descent, check_fit, check_update
from remanence.auditing.checks.kinds import check_kind, check_near_copies
from remanence.auditing.checks.lookups import check_lookups
from remanence.auditing.checks.outputs import checked_logits, endpoints
from remanence.auditing.checks.preprocessing import check_preprocessing
from remanence.auditing.checks.records import check_disjoint, check_labels, evenly
from remanence.diagnostics.forecasting import forecast
from remanence.errors import BadInput
from remanence.models import Unsupported, parse, tied_names
from remanence.releases import KnowsFinal, KnowsInitial, KnowsUpdate
from remanence.types import Data, Params

SECONDS = 10.0
_MAX_RECORDS, _MIN_RECORDS = 1000, 32
_PASSES = 60  # forward passes over the records that all checks together take


def preflight(release: Any, private: Data, held_out: Data, *, seconds: float = SECONDS) -> PreflightSummary:
    """The checks of a release and its records, in about so many `seconds` at most; `estimates` are added when the
    attacks were asked."""
    start = perf_counter()
    checks, numbers, layers = _looked_at(release, private, held_out, seconds)
    return PreflightSummary(
        checks=tuple(checks), numbers=numbers, updated_layers=layers, estimates=(), seconds=perf_counter() - start
    )


def _looked_at(
    release: Any, private: Data, held_out: Data, seconds: float
) -> tuple[list[Check], dict[str, float | None], tuple[str, ...]]:
    before, after = endpoints(release)
    params = after if after is not None else before
    assert params is not None
    numbers: dict[str, float | None] = {"private_records": len(private), "held_out_records": len(held_out)}
    checks = _check_weights(release, params)
    if _stops(checks):
        return checks, numbers, ()
    outputs, per_record, refusal = _probed(release, params, private)
    if refusal is not None:
        return [*checks, refusal], numbers, ()
    numbers["outputs"] = outputs
    checks += check_labels(private, held_out, outputs, release)
    if _stops(checks):
        return checks, numbers, ()
    checks += check_disjoint(release, private, held_out, numbers)
    if not _stops(checks):
        checks += [*check_kind(private, held_out), *check_near_copies(private, held_out, numbers)]
    limit = int(max(_MIN_RECORDS, min(_MAX_RECORDS, seconds / _PASSES / max(per_record, 1e-9))))
    records = len(private)
    private, held_out = (evenly(data, limit) for data in (private, held_out))
    checks += check_fit(release, before, after, private, held_out, numbers)
    checks += check_lookups(release, params, private, held_out)
    logits = not any(check.name == "outputs" for check in checks)
    if after is not None and logits and not hasattr(release.model, "encoder"):  # one that holds its preprocessing
        more, found = check_preprocessing(release, after, private, held_out)
        checks, numbers = checks + more, numbers | found
    layers: tuple[str, ...] = ()
    if isinstance(release, KnowsInitial):
        more, found, layers = check_base(release, release.initial, release.final)
        descent = [] if before is None else check_descent(release, before, release.final, private)
        checks, numbers = checks + descent + more, numbers | found
    if isinstance(release, KnowsUpdate):
        checks += check_update(release, private, held_out, numbers)
    checks += _check_modules(release)
    if isinstance(release, KnowsFinal):
        checks += _check_forecast(release, records, numbers)
    more, found = check_dynamics(release, before, after, private, layers, records=records)
    return checks + more, numbers | found, layers


def _stops(checks: Sequence[Check]) -> bool:
    return any(check.status == "stop" for check in checks)


def _check_weights(release: Any, params: Params) -> list[Check]:
    infinite = [name for name, p in params.items() if p.is_floating_point() and not bool(p.isfinite().all())]
    if infinite:
        text = f"`{infinite[0]}` of the weights is not finite: the training diverged, or the file is damaged."
        return [Check(name="weights", status="stop", text=text)]
    held = release.model.state_dict()
    if absent := sorted(name for name in held if name not in params and not name.endswith("num_batches_tracked")):
        text = f"The weights lack `{absent[0]}`, which the model has: give the file of this architecture."
        return [Check(name="weights", status="stop", text=text)]
    if other := sorted(name for name, p in params.items() if name in held and held[name].shape != p.shape):
        got, expected = (tuple(each[other[0]].shape) for each in (params, held))
        text = f"`{other[0]}` is {got} in the weights, {expected} in the model: give the file of this model."
        return [Check(name="weights", status="stop", text=text)]
    return _check_tied(release)


def _check_tied(release: Any) -> list[Check]:
    """A note on weights that the model holds under several names, and a stop where these differ."""
    tied = tied_names(release.model)
    for params in filter(None, (getattr(release, name, None) for name in ("initial", "at", "final"))):
        pairs = ((name, first) for name, first in tied.items() if name in params and first in params)
        if other := next((pair for pair in pairs if not torch.equal(params[pair[0]], params[pair[1]])), None):
            text = (
                f"`{other[0]}` is `{other[1]}` in the model, which ties them, and another tensor in the weights: give "
                "the weights of this architecture, or a model that does not tie them."
            )
            return [Check(name="weights", status="stop", text=text)]
    if not tied:
        return []
    text = f"The model ties {', '.join(f'`{name}` to `{first}`' for name, first in tied.items())}: one tensor each."
    return [Check(name="tied", status="note", text=text)]


def _probed(release: Any, params: Params, private: Data) -> tuple[int, float, Check | None]:
    """The number of outputs and the seconds that a record takes; or why the model does not take the records."""
    some = private.x[:_MIN_RECORDS]
    try:
        checked_logits(release.model, params, some[:1])
        start = perf_counter()
        logits = checked_logits(release.model, params, some)
        taken = (perf_counter() - start) / len(some)
    except BadInput as refusal:
        return 0, 0.0, Check(name="model", status="stop", text=str(refusal))
    if not bool(logits.isfinite().all()):
        text = (
            "The model puts out values that are not finite for the private records: check the weights and the inputs."
        )
        return 0, 0.0, Check(name="model", status="stop", text=text)
    return logits.shape[1], taken, None


def _check_modules(release: Any) -> list[Check]:
    """What of the architecture attacks will meet."""
    checks = []
    if any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in release.model.modules()):
        text = "The model has dropout: attacks take it in evaluation mode, and a simulated training leaves it out."
        checks.append(Check(name="dropout", status="note", text=text))
    structure = parse(release.model, release.shape)
    if isinstance(structure, Unsupported):
        text = f"The architecture is not recognised ({structure.reason}): attacks in closed form do not apply."
        checks.append(Check(name="architecture", status="note", text=text))
    else:
        checks.append(Check(name="architecture", status="ok", text=f"{structure}."))
    return checks


def _check_forecast(release: KnowsFinal, records: int, numbers: dict[str, float | None]) -> list[Check]:
    """What an MLP's weights tell beforehand of an attack on them alone."""
    try:
        expected = forecast(release.model, release.final, release.shape, records=records)
    except BadInput:
        return []
    numbers["forecast_found"], numbers["neuron_imbalance"] = expected.fraction, expected.imbalance
    numbers["directions_above_noise"] = expected.above_noise
    text = (
        f"By the weights alone, a long search of Stationarity may find about {expected.fraction:.0%} of the "
        f"records: the norms of incoming and outgoing weights of neurons differ by {expected.imbalance:.0%} (0 % where "
        f"training with weight decay has converged), and {expected.above_noise:.0%} of the directions of records stand "
        "above what is left of the initial weights. It ranks networks better than it "
        "counts records."
    )
    return [Check(name="forecast", status="note", text=text)]
