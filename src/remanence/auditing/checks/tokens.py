"""What is looked at before an attack on text: do the tokens explain the update, and what did rounding leave of it?"""

from time import perf_counter

import torch

from remanence.auditing.answer.report import Check, PreflightSummary
from remanence.auditing.checks.fit import OPPOSITE
from remanence.auditing.checks.records import check_disjoint
from remanence.auditing.evidence.tokens import as_records
from remanence.data import Tokens
from remanence.releases import TransformerUpdate, token_gradient
from remanence.types import Params

_EXPLAINED, _UNEXPLAINED = 0.99, 0.5  # cosine of the gradient that was sent with that of the tokens
_COARSE = 0.1  # of a gradient's root mean square: rounding errors that hide sequences


def check_tokens(release: TransformerUpdate, truth: Tokens, held_out: Tokens) -> PreflightSummary:
    """The checks of an update on text and its sequences."""
    start, numbers = perf_counter(), dict[str, float | None]()
    numbers |= {"private_records": len(truth), "held_out_records": len(held_out), "rounding": release.rounding}
    checks = check_disjoint(release, as_records(truth), as_records(held_out), numbers)
    checks.append(_check_update(release, truth, held_out, numbers))
    if release.rounding > _COARSE:
        text = (
            f"Rounding of the weights makes errors of {release.rounding:.2g} times the update's root mean square "
            "entry, which hide what it shows: store weights in float32, or give the gradient itself with `--gradient`."
        )
        checks.append(Check(name="rounding", status="warning", text=text))
    return PreflightSummary(
        checks=tuple(checks), numbers=numbers, updated_layers=(), estimates=(), seconds=perf_counter() - start
    )


def _check_update(
    release: TransformerUpdate, truth: Tokens, held_out: Tokens, numbers: dict[str, float | None]
) -> Check:
    """Whether the private sequences cause what was sent."""
    ours, theirs = (_cosine(release, batch) for batch in (truth, held_out.take(slice(0, len(truth)))))
    numbers |= {"update_cosine": ours, "update_cosine_held_out": theirs}
    if theirs > max(ours, 0.0) + 0.3 and theirs > _UNEXPLAINED:
        text = (
            f"The held-out sequences explain the update (cosine {theirs:.2f}), the private ones do not ({ours:.2f}): "
            "the two are swapped."
        )
        return Check(name="held-out", status="stop", text=text)
    if ours < OPPOSITE:
        text = (
            f"What was sent points away from what the private sequences cause (cosine {ours:.2f}): the weights before "
            "and after are swapped (`--before` is what the server sent, `--after` what came back), the gradient has "
            "the opposite sign, or it is one of other sequences."
        )
        return Check(name="update", status="warning", text=text)
    if ours < _EXPLAINED:
        text = (
            f"The gradient of the tokens has a cosine of {ours:.2f} with what was sent: they are not those of the "
            "batch, dropout was on, the client took several steps or another optimizer than SGD, or a defense changed "
            "it. The attack takes it for one gradient without dropout."
        )
        return Check(name="update", status="warning" if ours < _UNEXPLAINED else "note", text=text)
    return Check(name="update", status="ok", text=f"The private sequences explain the update (cosine {ours:.3f}).")


def _cosine(release: TransformerUpdate, batch: Tokens) -> float:
    computed = token_gradient(release.model, release.at, batch)
    sent, ours = (
        _flat({name: each[name] for name in computed if name in release.gradient})
        for each in (release.gradient, computed)
    )
    return float(torch.dot(sent, ours) / (sent.norm() * ours.norm()).clamp_min(1e-300))


def _flat(gradient: Params) -> torch.Tensor:
    return torch.cat([g.flatten() for g in gradient.values()]).double()
