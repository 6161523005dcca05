"""How well labels are read off the last bias: batches of 1 to 32 records, at fresh and at trained weights."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from remanence.attacks import infer_labels
from remanence.data import Split, load, split
from remanence.engine import train
from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Scale, Series
from remanence.metrics import Interval
from remanence.metrics.statistics import bootstrap_mean
from remanence.models import apply, initial_params, mlp
from remanence.releases import Gradient, Victim, gradient_at_final
from remanence.seeds import derive_seed
from remanence.training import Training

SIZES = (1, 2, 4, 8, 16, 32)
GUESS = "guessed by frequency"


def labels(scale: Scale) -> Sequence[Experiment]:
    """Label inference: the share of a batch's labels that is read right, repeated ones included, beside guessing."""
    about = (
        "The labels of a batch from the gradient of the last bias. The mean softmax is that of noise or of public "
        "records; the net is a 256-neuron MLP."
    )
    epochs = (0, 5) if scale == "smoke" else (0, 5, 30, 100)
    return [
        Experiment(
            label=f"after {count} epochs",
            about=about,
            evaluations=(Measurement(measure=partial(_labels, scale, count)),),
        )
        for count in epochs
    ]


def _labels(scale: Scale, epochs: int, seed: int, device: torch.device) -> Outcome:
    parts, count = _cut(scale, seed), {"smoke": 2, "small": 20, "full": 100}[scale]
    victim, public = _victim(parts, epochs, seed, device), parts.public.to(device)
    noise = torch.rand(256, *public.shape, generator=torch.Generator().manual_seed(derive_seed(seed, "noise")))
    guesses = torch.Generator().manual_seed(derive_seed(seed, "guesses"))

    def guess(release: Gradient) -> Tensor:
        return public.y.cpu()[torch.randint(len(public), (release.batch_size or 0,), generator=guesses)]

    ways: dict[str, Callable[[Gradient], Tensor]] = {
        "by noise": lambda release: infer_labels(release, noise),
        "by public records": lambda release: infer_labels(release, public.x),
        GUESS: guess,
    }
    found = {
        name: [
            bootstrap_mean(_read(way, victim, size, count, seed), seed=derive_seed(seed, name, size), resamples=500)
            for size in SIZES
        ]
        for name, way in ways.items()
    }
    fitted = apply(victim.model, victim.final, public.x).argmax(1) == public.y
    return _outcome(found, accuracy=float(fitted.double().mean()), classes=public.num_classes)


def _cut(scale: Scale, seed: int) -> Split:
    data = load("digits" if scale == "smoke" else "mnist")
    return split(data, private=500, fixed=500, public=300, test=1, seed=seed)


def _victim(parts: Split, epochs: int, seed: int, device: torch.device) -> Victim:
    """Trained on the fixed records: a batch is new to it."""
    fixed, private = parts.fixed.to(device), parts.private.to(device)
    model, training = mlp(private.shape, private.num_classes, hidden=(256,)), Training(epochs=epochs)
    initial = {name: p.to(device) for name, p in initial_params(model, seed=seed).items()}
    final = train(training, model, initial, fixed, seed=seed)
    return Victim(model=model, training=training, initial=initial, final=final, fixed=fixed, private=private)


def _read(way: Callable[[Gradient], Tensor], victim: Victim, size: int, count: int, seed: int) -> Tensor:
    """The share of right labels in each of `count` batches of `size` records."""
    shares, drawn = [], torch.Generator().manual_seed(derive_seed(seed, "batches", size))
    for _ in range(count):
        batch = victim.private.take(torch.randperm(len(victim.private), generator=drawn)[:size])
        release = gradient_at_final(replace(victim, private=batch)).release
        right = Counter(batch.y.tolist()) & Counter(way(release).tolist())
        shares.append(right.total() / size)
    return torch.tensor(shares)


def _outcome(found: dict[str, list[Interval]], *, accuracy: float, classes: int) -> Outcome:
    x = tuple(map(float, SIZES))
    measures = [
        Measure.from_interval(
            f"labels right {name}, batches of {size}",
            each,
            meaning="mean share of a batch's labels; chance draws them by their frequency",
            chance=found[GUESS][i].value,
        )
        for name, intervals in found.items()
        if name != GUESS
        for i, (size, each) in enumerate(zip(SIZES, intervals, strict=True))
    ]
    right = Measure(name="accuracy of the net", value=accuracy, chance=1 / classes, meaning="on public records")
    series = tuple(
        Series(
            name=name,
            x=x,
            y=tuple(each.value for each in intervals),
            low=tuple(each.low for each in intervals),
            high=tuple(each.high for each in intervals),
            role="chance" if name == GUESS else "ours",
        )
        for name, intervals in found.items()
    )
    figure = Figure(
        title="Labels read right",
        x_label="records of a batch",
        y_label="share of the labels",
        series=series,
        log_x=True,
    )
    return Outcome(measures=(*measures, right), figures=(figure,))
