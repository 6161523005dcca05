"""Where the time of `balle2022.mnist` goes on a CUDA device: the training of a reconstructor, and all around it.

    python benchmarks/reconstructor.py                 # microseconds of a step
    python benchmarks/reconstructor.py --stages        # the recipe with two steps for a shadow, one epoch of fitting
    python benchmarks/reconstructor.py --stages --scale smoke --device cpu

A step is timed on a bank of random weights with the shapes of the recipe: the time of three epochs less that of one.
On an H200 it takes 267 us, 332 with autograd through the loss; by the paper's settings 235, 284 with autograd through
the loss, and 386 with torch's RMSprop.
"""

import argparse
import cProfile
import pstats
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from remanence.attacks import RecoNN
from remanence.experiments.run import Job, run_job
from remanence.models import initial_params, mlp
from remanence.shadow import ShadowBank
from remanence.training import Training
from remanence.types import Data
from remanence_recipes.balle2022 import on_mnist


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shadows", type=int, default=58_000)
    parser.add_argument("--scale", default="full")
    parser.add_argument("--stages", action="store_true")
    given = parser.parse_args()
    if given.stages:
        stages(given.scale, given.device)
        return
    bank = random_bank(given.shadows, given.device)
    for name, attack in (("ours", RecoNN()), ("the paper's", RecoNN.paper())):
        times = [seconds(attack, bank, epochs) for epochs in (1, 1, 3)]
        steps = -(-round((1 - attack.fitting.validation_fraction) * given.shadows) // attack.fitting.batch_size)
        step = (times[2] - times[1]) / 2 / steps
        total = times[1] + step * steps * (attack.fitting.epochs - 1)
        epochs = attack.fitting.epochs
        line = f"{name:<14}{1e6 * step:8.1f} us a step, {steps} to an epoch, {total:.1f} s for {epochs} epochs"
        print(line, flush=True)


def random_bank(shadows: int, device: str) -> ShadowBank:
    generator = torch.Generator(device).manual_seed(0)
    model = mlp((1, 28, 28), 10)
    initial = {name: p.to(device) for name, p in initial_params(model, seed=0).items()}
    count = sum(p.numel() for p in initial.values())
    weights = torch.randn(shadows, count, generator=generator, device=device)
    x = torch.rand(shadows, 1, 28, 28, generator=generator, device=device)
    targets = Data(x=x, y=torch.zeros(shadows, dtype=torch.int64, device=device), num_classes=10)
    return ShadowBank(weights=weights, targets=targets, model=model, initial=initial)


def seconds(attack: RecoNN, bank: ShadowBank, epochs: int) -> float:
    start = perf_counter()
    replace(attack, fitting=replace(attack.fitting, epochs=epochs)).fit(bank, seed=0)
    if bank.weights.is_cuda:
        torch.cuda.synchronize()
    return perf_counter() - start


def stages(scale: str, device: str) -> None:
    """The recipe's calls of a tenth of a second and more, with one epoch of fitting and two steps for each shadow."""
    experiments = [
        replace(
            each.with_victims(training=Training(epochs=2, tf32=scale == "full")),
            attack=replace(each.attack, fitting=replace(each.attack.fitting, epochs=1)),
            claims=(),
        )
        for each in on_mnist.mnist(scale)  # type: ignore[arg-type]
    ]
    profile, start = cProfile.Profile(), perf_counter()
    try:
        with TemporaryDirectory() as folder:
            job = Job(recipe="benchmark", scale=scale, seed=0, device=device, folder=Path(folder) / "run", command="")
            profile.enable()
            for _, result in run_job(experiments, job):
                print(f"{result.label:<30}{perf_counter() - start:8.2f} s so far", flush=True)
    finally:  # also when it is interrupted
        profile.disable()
        _print_calls(profile)


def _print_calls(profile: cProfile.Profile) -> None:
    found = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    ours = [(row[3], row[0], key) for key, row in found.items() if "remanence" in key[0] and row[3] > 0.1]
    for cumulative, calls, (file, line, name) in sorted(ours, reverse=True)[:60]:
        print(f"{cumulative:8.2f} s {calls:6d} calls  {'/'.join(Path(file).parts[-2:])}:{line} {name}")


if __name__ == "__main__":
    main()
