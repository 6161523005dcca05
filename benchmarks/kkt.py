"""Iterations per second of the KKT attack: ours, one run and several stacked, against the authors' procedure.

    python benchmarks/kkt.py                                 # 1,000 candidates, 3072-1000-1000-10
    python benchmarks/kkt.py --candidates 100 --pixels 768 --width 300 --count 5

The authors' procedure: one run in float64, autograd through the gradient, a host sync at each step. Ours: gradients in
closed form, in place; on a CUDA device one captured graph, in float64 and with TF32. A stack's rate is the sum over its
runs. Before timing, the gradients of a single run are compared: to nine digits, with TF32 to two.

With m candidates, D pixels and width H an iteration takes 2m (5 D H + 7 H²) = 44.7 GFLOP. Gram matrices (21.3 units of
m in place of 22.4) or candidates in the row space of the first layer (24.0 GFLOP, and 12.3 for the box on pixels)
save little, so TF32 and memory traffic decide.

Measured on one H200, iterations/s: the authors' procedure 209, ours in float64 761 (3.6 times), with TF32 2,031 (9.7
times), eight runs stacked with TF32 3,528 in total (16.9 times). Of the 309 µs that the kernels of an iteration of the
eight took with torch's element-wise operations (3,187 in total), 196 were matrix products and 84 element-wise; fused,
the latter take 55 (profiled with weights stored transposed, which changes nothing else).

Does TF32 find what float64 and float32 find? Its rounding imitated on a CPU, 50 CIFAR-10 images of 16x16: Stationarity
found 28 with TF32, 28 and 27; KKT 8, 9 and 11.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from remanence.attacks import KKT, KKTRun, with_search
from remanence.attacks.weights.kkt import ExplainedWeights
from remanence.attacks.weights.residual_autograd import SurrogateReLU
from remanence.engine.cuda import precision
from remanence.models import centred_mlp, replace_relu, torch_params
from remanence.releases import WeightsOnly
from remanence.search.solver import Stack

CLASSES = 10
RUN = KKTRun(init_std=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--pixels", type=int, default=3072)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--stack", type=int, default=8, help="runs at once")
    parser.add_argument("--count", type=int, help="iterations timed of each way: 500 on a CUDA device, 3 elsewhere")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    count = given.count or (500 if device == "cuda" else 3)
    model = centred_mlp((given.pixels,), CLASSES, hidden=(given.width, given.width))
    params = {name: p.to(device, torch.float64) for name, p in torch_params(model, seed=0).items()}
    release = WeightsOnly(model=model, final=params, shape=(given.pixels,), num_classes=CLASSES)

    def stack(runs: int, *, tf32: bool, closed_form: bool = True) -> Stack:
        attack = with_search(KKT(candidates=given.candidates, runs=(RUN,) * runs), tf32=tf32)
        objective = ExplainedWeights.from_release(attack, release, seed=0)
        if not closed_form:
            objective = replace(
                objective, layers=None, surrogates={RUN.alpha: replace_relu(model, SurrogateReLU(RUN.alpha))}
            )
        return Stack(objective, objective.init(), attack.search)

    theirs = stack(1, tf32=False, closed_form=False)

    def by_autograd() -> None:
        theirs.step()
        assert theirs.value.isfinite().item()  # the sync of the authors' check for NaN

    print(f"{device}, {torch.get_num_threads()} threads, {given.candidates} candidates, iterations/s")
    reference, expected = timed(by_autograd, theirs, count)
    print(f"autograd, float64, a sync each step  {reference:9.2f}")
    reached = 0.0
    for runs, tf32 in ((1, False), (1, True), (given.stack, True)):
        with precision(tf32=tf32):
            ours = stack(runs, tf32=tf32)
            rate, gradient = timed(ours.replayed(), ours, count)
        error = float((gradient - expected).norm() / expected.norm())
        assert runs > 1 or error < (0.01 if tf32 else 1e-9)
        reached = runs * rate
        how = f"{runs} at once, " + ("TF32" if tf32 else "float64")
        print(f"closed form, {how:<22}  {reached:9.2f}  ratio {reached / reference:.1f}")
    print(f"ratio {reached / reference:.1f}")


def timed(step: Callable[[], None], stack: Stack, count: int) -> tuple[float, Tensor]:
    """Iterations a second, and the first gradient by the candidates of the first run, which its momentum holds."""
    step()
    first = stack.optimizer.state[stack.leaves["x", 0]]["momentum_buffer"][0].clone().double()
    start = time.perf_counter()
    for _ in range(count):
        step()
    stack.value.sum().item()
    return count / (time.perf_counter() - start), first


if __name__ == "__main__":
    main()
