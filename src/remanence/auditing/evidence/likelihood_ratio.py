"""Membership by likelihood ratio: Carlini et al., "Membership Inference Attacks From First Principles" (S&P 2022).

Shadow models are trained by the recipe of the release, each on a random part of the private and held-out records that
is as large as the private set. A record's log odds under the shadows that saw it and under those that did not are
fitted by normal distributions; its score is the log of the ratio of their densities at the log odds under the released
model. Private and held-out records are treated alike, so a model that saw neither ranks neither higher.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, final

import torch
from torch import Tensor

from remanence.auditing.checks.outputs import endpoints, logits_of, losses_of
from remanence.engine import train
from remanence.errors import BadInput, NotEnoughKnowledge
from remanence.models import initial_params
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence.training import CrossEntropy, Logistic, SquaredError, Training
from remanence.types import Data, Params, concat

_MIN_SHADOWS, _MAX_SHADOWS = 8, 64
_MIN_HELD_OUT = 400  # in the pool that shadows are trained on parts of
_MIN_SHADOWS_EACH = 2  # shadows that a record is in, and is not in, before both distributions are fitted
_MIN_PRIVATE = 2
_RESERVE = 0.9  # of the seconds


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class LikelihoodRatios:
    """The scores of the private and of some held-out records, larger for members."""

    private: Tensor
    held_out: Tensor
    index: Tensor  # of the held-out records that are scored
    shadows: int
    online: bool  # whether the distributions of members were fitted too


def likelihood_ratios(release: Any, private: Data, held_out: Data, *, seconds: float, seed: int) -> LikelihoodRatios:
    """The scores of private and held-out records, from as many shadow models as are trained in so many `seconds`."""
    training = getattr(release, "training", None)
    if training is None:
        message = "shadow models need the training recipe, which the release does not tell: give it with `--recipe`"
        raise NotEnoughKnowledge(message, code="not-enough-knowledge", argument="release")
    if len(private) < _MIN_PRIVATE:
        message = "shadow models are trained on parts of the private records, and there is only one: use RecoNN"
        raise NotEnoughKnowledge(message, code="not-enough-knowledge", argument="truth")
    generator = torch.Generator().manual_seed(derive_seed(seed, "pool"))
    size = min(len(held_out), max(len(private), _MIN_HELD_OUT))
    some = torch.randperm(len(held_out), generator=generator)[:size]
    pool = concat([private, held_out.take(some)])
    trained = _shadows(release, training, pool, len(private), seconds=seconds, seed=seed)
    odds = torch.stack([_log_odds(release, params, pool) for params, _ in trained])
    inside = torch.zeros(odds.shape, dtype=torch.bool)
    for row, (_, part) in enumerate(trained):
        inside[row, part] = True
    counts = inside.sum(0)
    online = int(counts.min()) >= _MIN_SHADOWS_EACH and int(counts.max()) <= len(trained) - _MIN_SHADOWS_EACH
    scores = _ratios(_log_odds(release, release.final, pool), odds, inside, online=online)
    ours, theirs = scores.split([len(private), size])
    return LikelihoodRatios(private=ours, held_out=theirs, index=some, shadows=len(trained), online=online)


def _shadows(
    release: Any, training: Training, pool: Data, size: int, *, seconds: float, seed: int
) -> list[tuple[Params, Tensor]]:
    """The weights of each shadow and the indices of the records of the pool that it was trained on."""
    start, trained = perf_counter(), list[tuple[Params, Tensor]]()
    for params_and_part in track(_trained(release, training, pool, size, seed), total=_MAX_SHADOWS, label="shadows"):
        trained.append(params_and_part)
        each = (perf_counter() - start) / len(trained)
        if each * _MIN_SHADOWS > seconds:
            message = (
                f"{_MIN_SHADOWS} shadow models take about {each * _MIN_SHADOWS:.0f} s, and {max(seconds, 0):.0f} s are "
                "left: give more with `--budget`"
            )
            raise BadInput(message, code="out-of-time", argument="budget")
        if each * (len(trained) + 1) > _RESERVE * seconds:
            break
    return trained


def _trained(release: Any, training: Training, pool: Data, size: int, seed: int) -> Iterator[tuple[Params, Tensor]]:
    generator = torch.Generator().manual_seed(derive_seed(seed, "parts"))
    fixed = getattr(release, "fixed", None)
    for shadow in range(_MAX_SHADOWS):
        part = torch.randperm(len(pool), generator=generator)[:size]
        data = pool.take(part) if fixed is None else concat([fixed, pool.take(part)])
        initial = endpoints(release)[0]
        if initial is None:
            sampled = initial_params(release.model, seed=derive_seed(seed, "initial weights", shadow))
            initial = {name: p.to(pool.x) for name, p in sampled.items()} | getattr(release, "initial", {})
        yield train(training, release.model, initial, data, seed=derive_seed(seed, "shadow", shadow)), part


def _log_odds(release: Any, params: Params, data: Data) -> Tensor:
    """(records,): the log odds of the label, which are nearly normal over models; the negated squared error where that
    is the loss."""
    logits, loss = logits_of(release.model, params, data.x).double(), release.training.loss
    if isinstance(loss, SquaredError):
        return -losses_of(logits, data.y, loss).cpu()
    odds = (CrossEntropy() if logits.shape[1] > 1 else Logistic()).log_odds(logits, data.y)
    return -odds.cpu()


def _ratios(target: Tensor, odds: Tensor, inside: Tensor, *, online: bool) -> Tensor:
    """(records,): the log of the likelihood ratio; offline, how many standard deviations the odds lie above those of
    shadows that did not see the record. Variances are pooled over records, as for few shadows they have to be."""
    mean_out, std_out = _fitted(odds, ~inside)
    if not online:
        return (target - mean_out) / std_out
    mean_in, std_in = _fitted(odds, inside)
    return _log_density(target, mean_in, std_in) - _log_density(target, mean_out, std_out)


def _fitted(odds: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of each record over the `chosen` shadows, and one standard deviation for all records."""
    counts = chosen.sum(0).clamp_min(1)
    mean = (odds * chosen).sum(0) / counts
    squares = ((odds - mean).square() * chosen).sum()
    free = (chosen.sum(0) - 1).clamp_min(0).sum().clamp_min(1)
    return mean, (squares / free).sqrt().clamp_min(1e-12)


def _log_density(value: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return -((value - mean) / std).square() / 2 - std.log()
