"""Figure 15: the longer the released model was trained, the less is reconstructed, with a jump at 240 to 250 epochs.

Hypothesis of ours: there training reaches the edge of stability (Cohen et al. 2021). Gradient descent with momentum b
and learning rate r amplifies any difference once the largest eigenvalue of the Hessian exceeds (2 + 2 b) / r, here 380:
from then on the rounding of a model's training outweighs what one record changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import sqrt
from typing import final

import torch
from torch import nn

from remanence.attacks import RecoNN
from remanence.engine import GenericEngine, trajectory
from remanence.engine.ensembles.chunked import chunks, stack, train_chunk
from remanence.experiments import Budget, Experiment, Figure, Measure, Outcome, Scale, Series, Trial
from remanence.metrics import MSE, Interval
from remanence.metrics.nulls import nearest_neighbour
from remanence.metrics.statistics import bootstrap_mean
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence.shadow import ShadowBank, stack_weights
from remanence.training import SGD, Training
from remanence.training.optimizers import State
from remanence.types import Data, Params, concat
from remanence_recipes.balle2022.on_cifar10 import cifar10, cifar10_victims
from remanence_recipes.curves import figure_along, measures_along

SIZES: Mapping[Scale, Mapping[str, int]] = {
    "smoke": {},
    "small": {"private": 50, "fixed": 200, "public": 400},
    "full": {"private": 50, "fixed": 2000, "public": 440},  # whole chunks of 70 models, four minutes on an H200
}
EPOCHS: Mapping[Scale, tuple[int, ...]] = {
    "smoke": (1, 4),
    "small": (1, 50, 100, 200),
    "full": (1, 50, 100, 150, 200, 240, 260, 300),
}
_POWER_STEPS = (50, 10)  # of the power iteration: from noise, and from the eigenvector of the epoch before


def figure15_cifar10(scale: Scale) -> Sequence[Experiment]:
    """Figure 15 on CIFAR-10: the error after 1 to 300 epochs of the released model, from one bank with snapshots."""
    budget = Budget(shadows=(440, 54_000), victims=(50, 1000), records=(2000, 5000))
    return [
        replace(
            cifar10(scale)[0],
            label="snapshots",
            about="The error of reconstructors of the same shadow models and victims after more and more epochs.",
            victims=cifar10_victims(scale, activation=nn.ELU, **SIZES[scale]),
            evaluations=(partial(_errors_by_epoch, EPOCHS[scale]),),
            claims=(),
            budget=budget if scale == "full" else None,
        )
    ]


def figure15_stability(scale: Scale) -> Sequence[Experiment]:
    """The edge of stability on CIFAR-10: the largest eigenvalue of the Hessian, and the distance of twins, by epoch."""
    epochs, every = {"smoke": (6, 2), "small": (200, 10), "full": (400, 10)}[scale]
    usual = {f"{sizes['fixed']:,} fixed records": sizes for sizes in ({"fixed": 5000}, SIZES["full"])}
    cases = usual if scale == "full" else {"fixed records": SIZES[scale]}
    return [
        Experiment(
            label=label,
            about="Two models from initial weights that differ by 1e-7, in float64, and the curvature of their loss: "
            "above (2 + 2 momentum) / learning rate every step amplifies their difference.",
            victims=cifar10_victims(scale, activation=nn.ELU, **sizes),
            evaluations=(partial(_twins, epochs, every),),
        )
        for label, sizes in cases.items()
    ]


@final
@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """An optimizer that keeps the weights after some steps of each training, for as long as it lives."""

    optimizer: SGD
    steps: tuple[int, ...]
    checkpoints: list[dict[int, Params]] = field(default_factory=list, repr=False, compare=False)  # of each training

    @property
    def lr(self) -> float:
        return self.optimizer.lr

    def init(self, params: Params) -> State:
        self.checkpoints.append({})
        return self.optimizer.init(params)

    def update(self, params: Params, grads: Params, state: State, step: int) -> tuple[Params, State]:
        params, state = self.optimizer.update(params, grads, state, step)
        if step + 1 in self.steps:
            self.checkpoints[-1][step + 1] = params
        return params, state

    def stacked(self, step: int, models: int) -> Params:
        """The weights of all models after `step`; trainings that ran out of memory are left out."""
        complete = [each[step] for each in self.checkpoints if len(each) == len(self.steps)]
        return {name: torch.cat([each[name] for each in complete])[:models] for name in complete[0]}


def train_with_snapshots(
    training: Training,
    model: nn.Module,
    initial: Params,
    fixed: Data,
    targets: Data,
    epochs: Sequence[int],
    *,
    seed: int,
) -> dict[int, Params]:
    """By epoch, the stacked weights of models that were trained on the fixed records and a target each, as ensembles.

    `initial` holds the initial weights of all models, or a stack with one for each target.
    """
    assert isinstance(training.optimizer, SGD)
    starts = stack(model, initial, torch.arange(len(targets), device=targets.x.device))
    pieces, parts, first = chunks(model, fixed, targets), {epoch: list[Params]() for epoch in epochs}, 0
    for chunk in track(pieces, total=len(pieces), label="models with snapshots"):
        snapshots = Snapshots(optimizer=training.optimizer, steps=tuple(epochs))
        recorded = replace(training, optimizer=snapshots, epochs=max(epochs))
        some = {name: p[first : first + len(chunk)] for name, p in starts.items()}
        train_chunk(recorded, model, some, fixed, chunk, seed=seed, noise_seed=seed)
        for epoch, params in parts.items():
            params.append(snapshots.stacked(epoch, len(chunk)))
        first += len(chunk)
    return {
        epoch: {name: torch.cat([p[name] for p in all_parts]) for name in starts} for epoch, all_parts in parts.items()
    }


def _errors_by_epoch(epochs: Sequence[int], trial: Trial) -> Outcome:
    """Evaluation: mean MSE after each number of epochs; victims and shadow models are trained once, and together."""
    attack, victims, parts, seed = trial.attack, trial.victims, trial.victims.split, trial.seed
    assert isinstance(attack, RecoNN)
    targets, count = concat([parts.private, parts.public]), len(parts.private)
    training, initial = victims.victims.training, victims.initial
    models = train_with_snapshots(training, victims.model, initial, parts.fixed, targets, epochs, seed=seed)

    def error(params: Params) -> Interval:
        weights = stack_weights(params)
        bank = ShadowBank(weights=weights[count:], targets=parts.public, model=victims.model, initial=initial)
        found = attack.fit(bank, seed=seed).reconstruct(weights[:count])
        return bootstrap_mean(MSE.paired(found, parts.private.x), seed=seed)

    lines = {"error": [error(models[epoch]) for epoch in epochs]}
    _, null = nearest_neighbour(parts.private, concat([parts.public, parts.fixed]), (MSE,))
    chance = [float(null.values[MSE.name].mean())] * len(epochs)
    meaning = "mean MSE over the targets; chance is the nearest record that the attacker owns"
    return Outcome(
        measures=measures_along(lines, [f"{epoch} epochs" for epoch in epochs], meaning=meaning, chance=chance),
        figures=(figure_along("Error", ("epochs", "mean MSE"), lines, epochs, {"nearest neighbour": chance}),),
    )


def _twins(epochs: int, every: int, trial: Trial) -> Outcome:
    """Evaluation: how far two models have come from each other, and the sharpness of the loss, at every few epochs."""
    victims, usual = trial.victims, trial.victims.victims.training
    data = concat([victims.split.fixed, victims.split.private.take(slice(0, 1))])
    data, training = data.to(data.x.device, torch.float64), replace(usual, epochs=epochs + 1)
    initial = {name: p.double() for name, p in victims.initial.items()}
    generator = torch.Generator().manual_seed(derive_seed(trial.seed, "twin"))
    noise = {name: torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p) for name, p in initial.items()}
    other = {name: p + 1e-7 * noise[name] for name, p in initial.items()}
    one, two = (trajectory(training, victims.model, p, data, seed=trial.seed)[::every] for p in (initial, other))
    distances = [_norm({name: p - b[name] for name, p in a.items()}) for a, b in zip(one, two, strict=True)]
    engine, direction, eigenvalues = GenericEngine(model=victims.model, loss=training.loss), noise, []
    for index, params in enumerate(track(one, total=len(one), label="sharpness")):
        value, direction = top_eigenvalue(engine, params, data, direction, steps=_POWER_STEPS[index > 0])
        eigenvalues.append(value)
    assert isinstance(usual.optimizer, SGD)
    limit = (2 + 2 * usual.optimizer.momentum) / usual.optimizer.lr
    growth, x = [each / distances[0] for each in distances], [float(i * every) for i in range(len(one))]
    return Outcome(measures=_crossings(x, eigenvalues, growth, limit), figures=_figures(x, eigenvalues, growth, limit))


def top_eigenvalue(
    engine: GenericEngine, params: Params, data: Data, start: Params, *, steps: int
) -> tuple[float, Params]:
    """The eigenvalue of the Hessian of the loss that is largest in absolute value, and a multiple of its eigenvector,
    by power iteration."""
    direction, value = start, 0.0
    for _ in range(steps):
        size = _norm(direction)
        unit = {name: d / size for name, d in direction.items()}
        direction, *_ = engine.hvp(params, data.x, data.y, unit)
        value = float(torch.stack([(d * direction[name]).sum() for name, d in unit.items()]).sum())
    return value, direction


def _norm(params: Params) -> float:
    return sqrt(float(torch.stack([p.square().sum() for p in params.values()]).sum()))


def _crossings(
    x: Sequence[float], eigenvalues: Sequence[float], growth: Sequence[float], limit: float
) -> tuple[Measure, ...]:
    """Where the sharpness reaches the limit and the distance has doubled; both at the last epoch."""
    meaning = f"the largest eigenvalue of the Hessian of the loss; the limit of stability is {limit:g}"
    grown = "distance of two models over that of their initial weights, in float64"
    first = {
        "epoch of the edge of stability": (eigenvalues, limit, meaning),
        "epoch of a doubled distance": (growth, 2.0, grown),
    }
    reached = [
        Measure(name=name, value=next((e for e, v in zip(x, values, strict=True) if v >= bar), None), meaning=text)
        for name, (values, bar, text) in first.items()
    ]
    last = (("sharpness", eigenvalues, meaning), ("distance of twins", growth, grown))
    return (*reached, *(Measure(name=f"{n}, {x[-1]:g} epochs", value=v[-1], meaning=text) for n, v, text in last))


def _figures(
    x: Sequence[float], eigenvalues: Sequence[float], growth: Sequence[float], limit: float
) -> tuple[Figure, ...]:
    at = tuple(x)
    edge = Series(name="limit of stability", x=at, y=(limit,) * len(at), role="limit")
    return (
        Figure(
            title="Sharpness",
            x_label="epoch",
            y_label="largest eigenvalue of the Hessian",
            series=(Series(name="sharpness", x=at, y=tuple(eigenvalues)), edge),
        ),
        Figure(
            title="Distance of twins",
            x_label="epoch",
            y_label="distance over that of the initial weights",
            series=(Series(name="distance", x=at, y=tuple(growth)),),
            log_y=True,
        ),
    )
