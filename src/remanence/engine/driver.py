"""Training, driven: one model, or several of a sweep, from initial to final weights.

Where the gradient of an MLP on full batches has a closed form, weights are updated in place, and on a CUDA device each
step is the same captured graph, without a sync with the host. All other trainings take the pure steps of `Training`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, inf

import torch
from torch import Tensor, nn

from remanence.engine.base import Engine, on_batches
from remanence.engine.chooser import engine_for
from remanence.engine.convex import minimised
from remanence.engine.cuda import changed_by, copied, replayed, set_lr, torch_optimizer
from remanence.engine.mlp import MLPEngine
from remanence.errors import BadInput
from remanence.progress import SOON, track
from remanence.seeds import derive_seed
from remanence.training import SGD, ByLoss, Optimizer, QuasiNewton, SquaredError, Training, UntilStationary
from remanence.training.clipping import scaled, squared_norms
from remanence.training.losses import LogOf
from remanence.training.schedules import Schedule
from remanence.types import Data, Params

_EPOCHS_PER_UPDATE = 1000  # of the progress that is shown


def train(training: Training, model: nn.Module, initial: Params, data: Data, *, seed: int = 0) -> Params:
    """The final weights of `model`; `seed` shuffles or samples mini-batches and samples the noise of DP-GD."""
    if isinstance(training.optimizer, QuasiNewton):
        return minimised(training, model, initial, data)
    engine, schedule = engine_for(model, training, data.shape), training.lr_schedule
    # on the CPU a pure step is as fast, or faster where the network is small
    fast = not isinstance(schedule, tuple) or data.x.device.type == "cuda"
    if fast and (closed_form := _closed_form(training, engine, len(data))):
        descended = _of_objective(training, closed_form)

        def gradient(params: Params) -> Params:
            return _with_decay(training, params, descended.gradient(params, data.x, data.y), stacked=False)

        return train_full_batch(gradient, initial, training.optimizer, epochs=training.epochs, schedule=schedule)
    gradient_of_batch = on_batches(engine.gradient, data.x, data.y)
    batches, noise_seed = _shown_batches(training, len(data), seed), derive_seed(seed, "noise")
    return training.descend(gradient_of_batch, initial, batches, records=len(data), noise_seed=noise_seed)


def train_each(training: Training, model: nn.Module, initial: Sequence[Params], data: Sequence[Data]) -> list[Params]:
    """The final weights of several MLPs of a sweep, each trained on its own data: what `train` gives, as one ensemble.

    `UntilStationary` waits until all are stationary; `ByLoss` follows the loss of each.
    """
    if len(initial) == 1:  # an ensemble of one takes longer
        return [train(training, model, initial[0], data[0])]
    engine, sizes = engine_for(model, training, data[0].shape), {len(each) for each in data}
    closed_form = _closed_form(training, engine, max(sizes))
    if closed_form is None or closed_form.structure.record_norm is not None or len(sizes) > 1:
        raise BadInput(
            "train_each() is for MLPs with ReLU without standardised inputs, full batches of equal sizes and a loss of "
            "ours, without DP-GD and `clip`: train the others one by one",
            code="unsupported-training",
        )
    descended = _of_objective(training, closed_form)
    x, y = torch.stack([each.x.flatten(1) for each in data]), torch.stack([each.y for each in data])

    def gradient(params: Params) -> Params:
        return _with_decay(training, params, descended.stacked_gradient(params, x, y), stacked=True)

    stacked = {name: torch.stack([each[name] for each in initial]) for name in initial[0]}
    final = train_full_batch(
        gradient, stacked, training.optimizer, epochs=training.epochs, schedule=training.lr_schedule
    )
    return [{name: p[k].clone() for name, p in final.items()} for k in range(len(initial))]


def trajectory(training: Training, model: nn.Module, initial: Params, data: Data, *, seed: int = 0) -> list[Params]:
    """The weights before each step, without the noise of DP-GD."""
    passed = list[Params]()
    follow(passed.append, training, model, initial, data, seed=seed)
    return passed


def follow(
    visit: Callable[[Params], None], training: Training, model: nn.Module, initial: Params, data: Data, *, seed: int = 0
) -> None:
    """Show `visit` the weights of a `trajectory` one after another, none of which is stored."""
    gradient = on_batches(engine_for(model, training, data.shape).gradient, data.x, data.y)

    def shown(params: Params, batch: Tensor | None) -> Params:
        visit(params)
        return gradient(params, batch)

    noiseless = replace(training, privacy=training.privacy and replace(training.privacy, noise=0.0))
    batches = _shown_batches(training, len(data), seed)
    noiseless.descend(shown, initial, batches, records=len(data), noise_seed=0)


def train_full_batch(
    gradient: Callable[[Params], Params], initial: Params, optimizer: Optimizer, *, epochs: int, schedule: Schedule
) -> Params:
    """The weights after at most `epochs` full-batch steps of torch's optimizer along `gradient`, which holds weight
    decay already."""
    params = {name: p.detach().clone() for name, p in initial.items()}
    trained = {name: nn.Parameter(params[name]) for name in gradient(params)}
    stepper = torch_optimizer(optimizer, list(trained.values()))

    @torch.no_grad()
    def step() -> None:
        for name, g in gradient(params).items():
            trained[name].grad = g
        stepper.step()

    next_step = replayed(step, lambda: changed_by([stepper]))

    def set_factor(factor: float) -> None:
        set_lr(stepper, factor * optimizer.lr)

    if isinstance(schedule, UntilStationary):
        parts = _until_stationary(next_step, set_factor, list(trained.values()), schedule, epochs)
        length = schedule.check_every
    else:
        parts, length = _scheduled(next_step, set_factor, _factors(schedule, epochs), epochs), _EPOCHS_PER_UPDATE
    for _ in track(parts, total=ceil(epochs / length), label="training") if epochs > length else parts:
        pass
    return params


def _closed_form(training: Training, engine: Engine, records: int) -> MLPEngine | None:
    """The engine of a training by full batches whose gradient has a closed form; None for others."""
    full_batch = training.batch_size is None or training.batch_size >= records
    return engine if isinstance(engine, MLPEngine) and full_batch and training.clip is None else None


def _of_objective(training: Training, engine: MLPEngine) -> MLPEngine:
    """The engine of what the steps descend: the log of the loss where the learning rate follows the loss."""
    if not isinstance(training.lr_schedule, ByLoss):
        return engine
    loss = engine.loss
    if training.weight_decay or isinstance(loss, SquaredError | LogOf) or not isinstance(training.optimizer, SGD):
        message = (
            f"`lr_schedule` {training.lr_schedule} is for SGD on CrossEntropy or Logistic without weight decay, where "
            "the loss falls for ever, got another training: give (epochs, factor) pairs"
        )
        raise BadInput(message, code="unsupported-training", argument="lr_schedule")
    return replace(engine, loss=LogOf(loss=loss))


def _with_decay(training: Training, params: Params, grads: Params, *, stacked: bool) -> Params:
    """The gradients with weight decay, or for `ByLoss` shortened such that a step decreases the log of the loss by no
    more than the schedule allows."""
    if isinstance(training.lr_schedule, ByLoss):
        bound = training.lr_schedule.decrease / (training.optimizer.lr * squared_norms(grads, stacked=stacked))
        return scaled(grads, bound.clamp_max(1.0))
    decay = training.weight_decay
    return {name: g.add(params[name], alpha=decay) if training.decays(name) else g for name, g in grads.items()}


def _shown_batches(training: Training, records: int, seed: int) -> Iterator[Tensor | None]:
    """The batches of a training, with their progress shown."""
    total = training.epochs * training.steps_per_epoch(records)
    return track(training.batches(records, seed), total=total, label="training", after=SOON)


def _factors(schedule: tuple[tuple[int, float], ...] | ByLoss, epochs: int) -> dict[int, float]:
    """Factors of the learning rate by the epoch from which on each holds."""
    if isinstance(schedule, ByLoss):
        return {int(fraction * epochs): factor for fraction, factor in schedule.factors}
    return dict(schedule)


def _scheduled(
    next_step: Callable[[], None], set_factor: Callable[[float], None], factors: Mapping[int, float], epochs: int
) -> Iterator[None]:
    """Yields after each update of the progress."""
    for start in range(0, epochs, _EPOCHS_PER_UPDATE):
        for epoch in range(start, min(start + _EPOCHS_PER_UPDATE, epochs)):
            if epoch in factors:
                set_factor(factors[epoch])
            next_step()
        yield


def _until_stationary(
    next_step: Callable[[], None],
    set_factor: Callable[[float], None],
    weights: Sequence[Tensor],
    rule: UntilStationary,
    epochs: int,
) -> Iterator[None]:
    """Yields after each check."""
    remaining = epochs
    for factor in rule.factors:
        set_factor(factor)
        minimum, update = inf, 0.0
        while remaining and update <= rule.shrinks * minimum:
            minimum, before = min(minimum, update or inf), copied(weights)
            for _ in range(steps := min(rule.check_every, remaining)):
                next_step()
            remaining -= steps
            squares = [(now.detach() - then).square().sum() for now, then in zip(weights, before, strict=True)]
            update = float(torch.stack(squares).sum().sqrt()) / factor
            yield
