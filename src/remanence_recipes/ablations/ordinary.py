"""Weights of ordinary MLPs: which of them give their training records back.

remanence run ablations.ordinary_weights --scale full --device cuda      one GPU: about ten seconds for each victim
expected      SGD with weight decay, full batches or mini-batches: most of 50 photographs; Adam with L2 fewer;
              AdamW, whose fixed point is another, few but more than chance
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from remanence.attacks import Rounds
from remanence.experiments import Experiment, Scale
from remanence.training import SGD, Adam, AdamW, CrossEntropy, Logistic, Training
from remanence_recipes.weights_alone.ordinary import VICTIMS, WIDE, Shipped, along, forecast_study, study

PER_CLASS: Mapping[Scale, int] = {"smoke": 2, "small": 3, "full": 5}
MANY: Mapping[Scale, int] = {"smoke": 3, "small": 10, "full": 50}
EPOCHS: Mapping[Scale, int] = {"smoke": 1500, "small": 2000, "full": 4000}
DECAY: Mapping[Scale, float] = {"smoke": 0.01, "small": 0.003, "full": 0.003}
STEPS: Mapping[Scale, int] = {"smoke": 400, "small": 1000, "full": 3000}
RESTARTS: Mapping[Scale, int] = {"smoke": 1, "small": 4, "full": 16}  # on a GPU 16 take hardly longer than 4
NARROW: Mapping[Scale, tuple[int, ...]] = {"smoke": (), "small": (70, 70), "full": (70, 70)}  # few for 60 records
BATCH: Mapping[Scale, int] = {"smoke": 12, "small": 16, "full": 32}
SMOOTHING = 0.1
ONE_OUTPUT = "One output; the network subtracts the mean of its own records, which is released with it."
ADAM_LR = 1e-3
ABOUT = (
    "MLPs with biases in every layer; reconstructed from the final weights alone. The number of records is known, but "
    "for `any number of records`, and that classes are equally frequent, which holds but for `any labels`."
)


def sgd(epochs: int, decay: float, *, lr: float = 0.05) -> Training:
    """SGD with momentum and weight decay, at a learning rate that falls by ten twice near the end."""
    late = ((8 * epochs // 10, 0.1), (9 * epochs // 10, 0.01))
    return Training(optimizer=SGD(lr=lr, momentum=0.9), epochs=epochs, weight_decay=decay, lr_schedule=late)


def usual(scale: Scale) -> Shipped:
    """Standardised records, full batches of SGD."""
    return Shipped(
        scale=scale,
        per_class=PER_CLASS[scale],
        training=sgd(EPOCHS[scale], DECAY[scale]),
        steps=STEPS[scale],
        restarts=RESTARTS[scale],
        rounds=Rounds(returned=min(4, RESTARTS[scale])),
    )


def ordinary_weights(scale: Scale) -> Sequence[Experiment]:
    """Stationarity on MLPs as people train them: inputs, mini-batches, optimizers, activations, labels."""
    base, epochs, decay = usual(scale), EPOCHS[scale], DECAY[scale]
    slow = sgd(epochs, decay, lr=0.02)
    adam = replace(base.training, optimizer=Adam(lr=ADAM_LR))
    kinds = {
        "inputs in [0, 1]": replace(base, inputs="unit", training=slow),
        "inputs in [0, 1], twice the epochs": replace(base, inputs="unit", training=sgd(2 * epochs, decay, lr=0.02)),
        "standardised inputs": base,
        f"mini-batches of {BATCH[scale]}": replace(
            base, inputs="unit", training=replace(slow, batch_size=BATCH[scale])
        ),
        "Adam, L2 penalty": replace(base, training=adam),
        "AdamW, decay 0.1": replace(base, training=_adamw(epochs, 0.1)),
        "AdamW, decay 0.01": replace(base, training=_adamw(epochs, 0.01)),
        "leaky ReLU": replace(base, activation=nn.LeakyReLU),
        "GELU": replace(base, activation=nn.GELU),
        "label smoothing": replace(base, training=replace(base.training, loss=CrossEntropy(label_smoothing=SMOOTHING))),
        "any labels": replace(base, balanced=False),
        "any number of records": replace(base, known_count=False),
    }
    return [study(name, ABOUT, shipped, victims=VICTIMS[scale]) for name, shipped in kinds.items()]


def ordinary_two_groups(scale: Scale) -> Sequence[Experiment]:
    """Stationarity on networks of one output: two groups of records, 50 and 500 at full scale."""
    few, many = _grouped(usual(scale)), _grouped(_many(scale, usual(scale)))
    return [
        study(
            f"{each.records} records",
            f"{ABOUT} {ONE_OUTPUT}",
            each,
            victims=VICTIMS[scale],
        )
        for each in (few, many)
    ]


def ordinary_many(scale: Scale) -> Sequence[Experiment]:
    """Stationarity on 500 standardised photographs in an MLP with biases everywhere."""
    base = _many(scale, usual(scale))
    return [study(f"{base.records} records", ABOUT, base, victims=VICTIMS[scale])]


def ordinary_convergence(scale: Scale) -> Sequence[Experiment]:
    """What Stationarity finds against the length of training and weight decay."""
    base, top = usual(scale), EPOCHS[scale]
    curves = {
        f"weight decay {decay:g}": {
            epochs: replace(base, training=sgd(epochs, decay)) for epochs in (top // 8, top // 4, top // 2, top)
        }
        for decay in (DECAY[scale] / 3, DECAY[scale], 3 * DECAY[scale])
    }
    return [along("epochs", f"{ABOUT} One victim for each point.", "epochs", curves)]


def ordinary_size(scale: Scale) -> Sequence[Experiment]:
    """What Stationarity finds against the number of records, in a network of one width: ten classes, and two groups."""
    many = _many(scale, usual(scale))
    sizes: Mapping[Scale, tuple[int, ...]] = {"smoke": (1, 2, 4), "small": (2, 5, 10), "full": (5, 10, 20, 50, 90)}
    about = f"{ABOUT} One victim for each point."
    return [
        along(label, each_about, "records", {name: {10 * n: replace(each, per_class=n) for n in sizes[scale]}})
        for label, name, each, each_about in (
            ("records", "standardised inputs", many, about),
            ("records of two groups", "one output", _grouped(many), f"{about} {ONE_OUTPUT}"),
        )
    ]


def ordinary_forecast(scale: Scale) -> Sequence[Experiment]:
    """What weights tell before any search, fitted on some victims and checked on others."""
    base, top, decay = usual(scale), EPOCHS[scale], DECAY[scale]
    if scale != "full":
        base = replace(base, restarts=1 if scale == "smoke" else 2, rounds=Rounds())
    lengths = (top // 16, top // 4, top) if scale == "small" else (top // 8, top)
    sizes = (1, 3) if scale == "smoke" else (1, 3, 6)
    trained = [sgd(epochs, d) for epochs in lengths for d in (decay / 3, 3 * decay)]
    trained += [replace(sgd(top, decay), optimizer=Adam(lr=ADAM_LR)), _adamw(top, 0.1)]
    kinds = [replace(base, training=training, per_class=size) for training in trained for size in sizes]
    inputs = [replace(each, inputs="unit", training=sgd(top, decay, lr=0.02)) for each in kinds[: len(sizes)]]
    narrow = [replace(each, hidden=NARROW[scale]) for each in kinds if each.per_class > 1 and NARROW[scale]]
    grouped = [
        replace(each, one_output=True, training=replace(each.training, loss=Logistic()))
        for each in [*kinds[:: len(sizes)], *narrow[:: len(sizes)]]
    ]
    mixed = shuffled_list([*kinds, *grouped, *inputs, *narrow])
    return [forecast_study("forecast", f"{ABOUT} From what weights tell beforehand.", mixed)]


def shuffled_list(kinds: Sequence[Shipped]) -> list[Shipped]:
    """In an order by chance, which is always the same."""
    order = torch.randperm(len(kinds), generator=torch.Generator().manual_seed(0)).tolist()
    return [kinds[index] for index in order]


def _many(scale: Scale, few: Shipped) -> Shipped:
    restarts = {"smoke": 1, "small": 1, "full": 4}[scale]
    rounds = Rounds(levels=2)
    if scale == "full":
        rounds = Rounds(levels=3, keep_fractions=(0.3, 0.5, 0.7, 0.9), returned=restarts)
    epochs = 3 * EPOCHS[scale] // 2
    return replace(
        few,
        per_class=MANY[scale],
        hidden=WIDE[scale],
        training=sgd(epochs, DECAY[scale]),
        first_whitening=0.7,
        restarts=restarts,
        rounds=rounds,
    )


def _grouped(shipped: Shipped) -> Shipped:
    """A network of one output on two groups of records, which it centres, trained and attacked as `shipped`."""
    training = replace(shipped.training, loss=Logistic())
    return replace(shipped, inputs="centred", one_output=True, first_whitening=0.7, training=training)


def _adamw(epochs: int, decay: float) -> Training:
    late = ((8 * epochs // 10, 0.1), (9 * epochs // 10, 0.01))
    return Training(optimizer=AdamW(lr=ADAM_LR, weight_decay=decay), epochs=epochs, lr_schedule=late)
