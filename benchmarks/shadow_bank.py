"""Shadow models per second, MNIST-shaped (784-10-10, ELU, full batch of 10,001, momentum GD, 100 steps).

    python benchmarks/shadow_bank.py --quick            two CPU cores, under a minute
    python benchmarks/shadow_bank.py --device cuda

One model at a time, `torch.func.vmap`, and our ensemble take the same steps; the slower ones take fewer steps or
models, and rates are per 100 steps. The last line is the ratio of our ensemble in float32 to `vmap` in the same run.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import torch

from remanence.engine import train
from remanence.engine.ensembles.chunked import chunk_size, stack, train_by_vmap, train_chunk
from remanence.models import initial_params, mlp
from remanence.training import Training
from remanence.types import Data, concat

STEPS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps and few models, for two CPU cores")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    fixed = _records(10_000, seed=0, device=given.device)
    model = mlp(fixed.shape, 10)
    initial = {name: p.to(given.device) for name, p in initial_params(model, seed=0).items()}
    own = _records(chunk_size(model, fixed), seed=1, device=given.device)
    few = own.take(slice(0, 8 if given.device == "cpu" else 200))
    steps = 2 if given.quick else 10 if given.device == "cpu" else STEPS
    training, some = Training(epochs=steps), Training(epochs=min(steps, 10))

    def alone() -> None:
        train(some, model, initial, concat([fixed, few.take(slice(0, 1))]))

    def mapped() -> None:
        starts = stack(model, initial, torch.zeros(len(few), dtype=torch.int64, device=given.device))
        train_by_vmap(some, model, starts, fixed, few, seed=0, noise_seed=0)

    def stacked(chosen: Training) -> Callable[[], object]:
        return lambda: train_chunk(chosen, model, initial, fixed, own, seed=0, noise_seed=0)

    print(f"{given.device}, {torch.get_num_threads()} threads, {len(fixed):,} fixed records")
    _show("one after the other", alone, models=1, steps=some.epochs)
    reference = _show(f"vmap of {len(few)} models", mapped, models=len(few), steps=some.epochs)
    ours = _show(f"stack of {len(own)}, float32", stacked(training), models=len(own), steps=steps)
    if given.device != "cpu":
        for centred in (True, False):
            chosen = replace(training, tf32=True, centred=centred)
            _show(f"stack, TF32{', centred' if centred else ''}", stacked(chosen), models=len(own), steps=steps)
    print(f"ratio {ours / reference:.1f}")


def _records(count: int, *, seed: int, device: str) -> Data:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, 28, 28, generator=generator)
    y = torch.randint(10, (count,), generator=generator)
    return Data(x=x, y=y, num_classes=10).to(device)


def _show(name: str, work: Callable[[], object], *, models: int, steps: int) -> float:
    """Models per second of 100 steps each: the best of three after a warm-up."""
    work()
    best = float("inf")
    for _ in range(3):
        start = perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        best = min(best, perf_counter() - start)
    rate = models * steps / STEPS / best
    print(f"{name:<28}{rate:12.2f} models/s", flush=True)
    return rate


if __name__ == "__main__":
    main()
