"""Countermeasures as training recipes: differential privacy, weight decay, early stopping, batches, a withheld base."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt
from typing import final

from remanence.auditing.answer.words import count
from remanence.training import DPGD, SGD, AdamW, Training
from remanence.training.dp import DELTA
from remanence.types import Params

EPSILONS = (1.0, 4.0, 16.0, 64.0)
_STEPS, _CLIP, _MAX_LR = 100, 1.0, 1.0  # of DP-GD
_DRIFT, _DRIFT_FROM_BASE = 2.0, 0.3  # of the weights by the noise of DP-GD, in units of their norm before
_DECAYS = (1e-3, 1e-2)  # where the recipe has none
_FRACTIONS = (4, 10)  # early stopping: after a quarter and a tenth of the epochs


@final
@dataclass(frozen=True, kw_only=True)
class Variant:
    """A countermeasure as a training recipe and what is released; where it does not apply, `refusal` says why."""

    name: str
    setting: str
    training: Training
    withholds_base: bool = False
    refusal: str | None = None


def variants(training: Training, initial: Params, *, records: int, base: bool) -> list[Variant]:
    """Every countermeasure for the recipe `training` of so many `records`, from the parameters `initial`, which are
    those of a trained `base` or random."""
    return [
        _withheld(training, base=base),
        *(_private(training, initial, epsilon, records, base=base) for epsilon in EPSILONS),
        *_decayed(training),
        *_stopped(training),
        *_larger_batches(training, records),
    ]


def _withheld(training: Training, *, base: bool) -> Variant:
    refusal = None if base else "no base is released: what an attacker sees is the weights alone"
    setting = "the same weights, without those before training"
    return Variant(name="withheld base", setting=setting, training=training, withholds_base=True, refusal=refusal)


def _private(training: Training, initial: Params, epsilon: float, records: int, *, base: bool) -> Variant:
    """DP-GD with the largest learning rate, up to a limit, at which noise alone moves the weights no further than by a
    multiple of their norm. No record has a say in that, so that epsilon holds for the choice too."""
    privacy = DPGD.for_epsilon(epsilon, steps=_STEPS, clip=_CLIP)
    norm = sqrt(sum(float(p.detach().double().square().sum()) for p in initial.values()))
    walk = privacy.noise * _CLIP / records * sqrt(_STEPS * sum(p.numel() for p in initial.values()))
    lr = float(f"{min(_MAX_LR, (_DRIFT_FROM_BASE if base else _DRIFT) * norm / walk):.2g}")
    recipe = Training(optimizer=SGD(lr=lr), epochs=_STEPS, privacy=privacy, loss=training.loss)
    setting = (
        f"epsilon {epsilon:g}, delta {DELTA:g}: {_STEPS} full-batch steps, learning rate {lr:g}, clipped to {_CLIP:g}, "
        f"noise {privacy.noise:.3g}"
    )
    return Variant(name="differential privacy", setting=setting, training=recipe)


def _decayed(training: Training) -> Iterator[Variant]:
    optimizer = training.optimizer
    before = optimizer.weight_decay if isinstance(optimizer, AdamW) else training.weight_decay
    for decay in (0.0, 10 * before) if before else _DECAYS:
        if isinstance(optimizer, AdamW):
            recipe = replace(training, optimizer=replace(optimizer, weight_decay=decay))
        else:
            recipe = replace(training, weight_decay=decay)
        yield Variant(name="weight decay", setting=f"{decay:g} in place of {before:g}", training=recipe)


def _stopped(training: Training) -> Iterator[Variant]:
    for fraction in _FRACTIONS:
        epochs = max(1, training.epochs // fraction)
        setting = f"after {epochs} of {training.epochs} epochs"
        refusal = None if epochs < training.epochs else "the recipe has one epoch, and less than that is not trained"
        stopped = replace(training, epochs=epochs)
        yield Variant(name="early stopping", setting=setting, training=stopped, refusal=refusal)


def _larger_batches(training: Training, records: int) -> Iterator[Variant]:
    name, size = "larger batches", training.batch_size
    if training.sample_rate < 1:
        why = "the batches of DP-SGD are part of its guarantee"
        yield Variant(name=name, setting="a larger sample rate", training=training, refusal=why)
        return
    if size is None or size >= records:
        why = "the recipe takes all records at once already"
        yield Variant(name=name, setting="all records at once", training=training, refusal=why)
        return
    if 4 * size < records:
        recipe = replace(training, batch_size=4 * size)
        yield Variant(name=name, setting=f"{4 * size} records in place of {size}", training=recipe)
    recipe = replace(training, batch_size=None)
    yield Variant(name=name, setting=f"all {records} records at once in place of {size}", training=recipe)


def describe(training: Training) -> str:
    """The recipe in words."""
    batches = "all records at once" if training.batch_size is None else f"batches of {training.batch_size}"
    batches = batches if training.sample_rate == 1 else f"Poisson samples at the rate {training.sample_rate:g}"
    decay = f", weight decay {training.weight_decay:g}" if training.weight_decay else ""
    optimizer = training.optimizer
    momentum = f", momentum {optimizer.momentum:g}" if isinstance(optimizer, SGD) and optimizer.momentum else ""
    privacy = f", {training.privacy}" if training.privacy else ""
    return (
        f"{type(optimizer).__name__}, learning rate {optimizer.lr:g}{momentum}, {count(training.epochs, 'epoch')}, "
        f"{batches}{decay}{privacy}"
    )
