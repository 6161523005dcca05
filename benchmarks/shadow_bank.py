"""Shadow models per second, MNIST-shaped (784-10-10, ELU, full batch of 10,001, momentum GD, 100 steps).

    python benchmarks/shadow_bank.py --quick            two CPU cores, under a minute
    python benchmarks/shadow_bank.py --device cuda
    python benchmarks/shadow_bank.py --device cuda --variants    how a centred ensemble is computed, with its rounding

One model at a time, `torch.func.vmap`, and our ensemble take the same steps; the slower ones take fewer steps or
models, and rates are per 100 steps. The last line is the ratio of our ensemble in float32 to `vmap` in the same run.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter

import torch
from kinds import print_kinds
from torch import nn

from remanence.engine import train
from remanence.engine.ensembles import mlp as ensemble
from remanence.engine.ensembles.chunked import chunk_size, stack, train_by_vmap, train_chunk
from remanence.models import initial_params, mlp
from remanence.training import Training
from remanence.types import Data, Params, concat

STEPS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps and few models, for two CPU cores")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--variants", action="store_true", help="the variants of a centred ensemble alone")
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
    if given.variants:
        _compare_variants(replace(training, tf32=True), model, initial, fixed, own)
        return
    _show("one after the other", alone, models=1, steps=some.epochs)
    reference = _show(f"vmap of {len(few)} models", mapped, models=len(few), steps=some.epochs)
    ours = _show(f"stack of {len(own)}, float32", stacked(training), models=len(own), steps=steps)
    if given.device != "cpu":
        for centred in (True, False):
            chosen = replace(training, tf32=True, centred=centred)
            _show(f"stack, TF32{', centred' if centred else ''}", stacked(chosen), models=len(own), steps=steps)
    print(f"ratio {ours / reference:.1f}")


VARIANTS = {
    "as it was": ensemble.Variant(),
    "half, two blocks": ensemble.Variant(half=True, blocks=2),
    "half, two blocks, concurrent": ensemble.Variant(half=True, blocks=2, concurrent=True),
    "half, one block, concurrent": ensemble.Variant(half=True, blocks=1, concurrent=True),
    "transposed, concurrent": ensemble.Variant(transposed=True, concurrent=True),
    "transposed, one block, conc.": ensemble.Variant(transposed=True, blocks=1, concurrent=True),
}


def _compare_variants(training: Training, model: nn.Module, initial: Params, fixed: Data, own: Data) -> None:
    """The rate of each variant, the kernels of a step, and the rounding noise over the spread of the models."""
    few = own.take(slice(0, 128))
    exact = train_chunk_in_float64(training, model, initial, fixed, few)
    for name, variant in VARIANTS.items():
        ensemble.VARIANT, start = variant, perf_counter()
        try:
            final = train_chunk(training, model, initial, fixed, own, seed=0, noise_seed=0)
            error = torch.cat([(final[n][: len(few)] - p).flatten(1) for n, p in exact.items()], 1)
            spread = torch.cat([(p - p.mean(0)).flatten(1) for p in exact.values()], 1)
            noise = float((error - error.mean(0)).norm() / spread.norm())
            work = partial(train_chunk, training, model, initial, fixed, own, seed=0, noise_seed=0)
            _show(name, work, models=len(own), steps=training.epochs)
            print(f"    noise {noise:.1e}, {perf_counter() - start:.1f} s with all compilation", flush=True)
            if name in ("as it was", "half, two blocks", "transposed, one block, conc."):
                short = replace(training, epochs=10)
                print_kinds(partial(train_chunk, short, model, initial, fixed, own, seed=0, noise_seed=0), 10, top=12)
        except Exception as problem:  # the others are still of interest
            print(f"{name}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
    ensemble.VARIANT = ensemble.Variant()


def train_chunk_in_float64(training: Training, model: nn.Module, initial: Params, fixed: Data, own: Data) -> Params:
    fixed, own = (replace(each, x=each.x.double()) for each in (fixed, own))
    rows = torch.zeros(len(own), dtype=torch.int64, device=own.x.device)
    starts = stack(model, {n: p.double() for n, p in initial.items()}, rows)
    plain = replace(training, tf32=False)
    return ensemble.train_ensemble(plain, model, starts, fixed, own, seed=0, noise_seed=0)


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
