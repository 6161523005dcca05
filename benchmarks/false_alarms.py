"""False alarms of an audit: models that never saw the private records, every attack that applies, in small budgets.

    python benchmarks/false_alarms.py --models 20 --budget 25

Private and held-out records are drawn at random from one set, models are trained on others of it. Without a leak no
severity may be above "none-found", and at most one record in a hundred be found.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, final

import torch
from torch import nn

from remanence import audit, load
from remanence.data import Split, split
from remanence.engine import train
from remanence.models import initial_params, mlp
from remanence.releases import (
    FineTuned,
    FineTunedUnknownRecipe,
    Victim,
    WeightsOnly,
    gradient_at_initial,
    local_update,
    train_victim,
)
from remanence.training import SGD, AdamW, Training
from remanence.types import Data

PRIVATE, TRAINED, BATCH = 50, 60, 16


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Null:
    """A release, and records that it was not made from."""

    kind: str
    release: Any
    private: Data
    held_out: Data


def null_models(data: Data, count: int) -> Iterator[Null]:
    """`count` releases, of each kind in turn, each with records and initial weights of its own."""
    kinds: dict[str, Callable[[Split, int], Any]] = {
        "weights of an MLP with weight decay": _decayed,
        "tuned MLP": _tuned,
        "gradient of a batch": _gradient,
        "tuned MLP, unknown recipe": _unknown_recipe,
        "weights of a CNN": _cnn,
        "local update": _local_update,
        "tuned CNN": _tuned_cnn,
    }
    for number in range(count):
        kind = list(kinds)[number % len(kinds)]
        parts = split(data, private=PRIVATE, fixed=TRAINED, public=300, test=1000, seed=number)
        few = "batch" in kind or "update" in kind
        private = parts.private.take(slice(0, BATCH)) if few else parts.private
        yield Null(kind=kind, release=kinds[kind](parts, number), private=private, held_out=parts.test)


def _mlp(data: Data) -> nn.Module:
    return mlp(data.shape, data.num_classes, hidden=(100,), activation=nn.ReLU)


def _trained(model: nn.Module, training: Training, parts: Split, seed: int) -> FineTuned:
    initial, data = initial_params(model, seed=seed), parts.fixed
    final = train(training, model, initial, data, seed=seed)
    return FineTuned(
        model=model, final=final, shape=data.shape, num_classes=data.num_classes, initial=initial, training=training
    )


def _weights(release: FineTuned) -> WeightsOnly:
    return WeightsOnly(model=release.model, final=release.final, shape=release.shape, num_classes=release.num_classes)


def _decayed(parts: Split, seed: int) -> WeightsOnly:
    training = Training(optimizer=SGD(lr=0.1, momentum=0.9), epochs=300, weight_decay=0.01)
    return _weights(_trained(_mlp(parts.fixed), training, parts, seed))


def _tuned(parts: Split, seed: int) -> FineTuned:
    return _trained(_mlp(parts.fixed), Training(optimizer=SGD(lr=0.1, momentum=0.9), epochs=20), parts, seed)


def _unknown_recipe(parts: Split, seed: int) -> FineTunedUnknownRecipe:
    training = Training(optimizer=AdamW(lr=1e-3), epochs=20, batch_size=16)
    tuned = _trained(_mlp(parts.fixed), training, parts, seed)
    return FineTunedUnknownRecipe(
        model=tuned.model, final=tuned.final, shape=tuned.shape, num_classes=tuned.num_classes, initial=tuned.initial
    )


def _small_cnn(data: Data) -> nn.Module:
    channels, height, width = data.shape
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * (height // 2) * (width // 2), data.num_classes),
    )


def _cnn(parts: Split, seed: int) -> WeightsOnly:
    training = Training(optimizer=AdamW(lr=1e-3), epochs=20, batch_size=16)
    return _weights(_trained(_small_cnn(parts.fixed), training, parts, seed))


def _tuned_cnn(parts: Split, seed: int) -> FineTuned:
    return _trained(_small_cnn(parts.fixed), Training(optimizer=SGD(lr=0.05, momentum=0.9), epochs=10), parts, seed)


def _client(parts: Split, seed: int) -> Victim:
    batch, model = parts.fixed.take(slice(0, BATCH)), _mlp(parts.fixed)
    training = Training(optimizer=SGD(lr=0.1), epochs=3)
    return train_victim(model, training, initial_params(model, seed=seed), batch.take(slice(0, 0)), batch, seed=seed)


def _gradient(parts: Split, seed: int) -> Any:
    return gradient_at_initial(_client(parts, seed)).release


def _local_update(parts: Split, seed: int) -> Any:
    return local_update(_client(parts, seed)).release


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--budget", type=float, default=25.0, help="seconds for each audit")
    parser.add_argument("--data", default="digits")
    given = parser.parse_args()
    torch.set_num_threads(1)
    above, many = 0, 0
    for number, null in enumerate(null_models(load(given.data), given.models)):
        start = perf_counter()
        report = audit(null.release, truth=null.private, held_out=null.held_out, budget=given.budget, seed=number)
        ran = [row for row in report.attacks if row.status == "ran" and row.subject == "release"]
        found = max(((row.found or 0) / (row.records or 1) for row in ran), default=0.0)
        smallest = min((row.p for row in [*ran, *report.evidence] if row.p is not None), default=1.0)
        tests = sum(row.p is not None for row in [*ran, *report.evidence])
        above += report.severity not in ("none-found", "inconclusive")
        many += found > 0.01
        counts = ", ".join(f"{row.name} {row.found}/{row.records}" for row in ran) or "no attack ran"
        print(
            f"{number:2} {null.kind}: {report.severity}; {counts}; smallest of {tests} p-values {smallest:.2g}; "
            f"{perf_counter() - start:.0f} s",
            flush=True,
        )
    print(f"of {given.models} models: severity above the lowest in {above}, more than 1 % found in {many}")


if __name__ == "__main__":
    main()
