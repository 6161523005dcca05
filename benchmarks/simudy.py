"""Steps per second of SimuDy's search: ours, captured on a CUDA device, against unrolled eager autograd.

    python benchmarks/simudy.py                                          # ResNet-18, 20 images, 8 epochs
    python benchmarks/simudy.py --records 120 --epochs 20 --eager 2      # the largest of the paper, and its memory
    python benchmarks/simudy.py --records 120 --batch 20 --epochs 20 --eager 0
    python benchmarks/simudy.py --profile                                # where one step spends its time
    python benchmarks/simudy.py --mlp 1000 --records 100 --epochs 20
    python benchmarks/simudy.py --mlp 300 --side 16 --epochs 5 --count 2

The gradients of all implementations are compared first, in float64, because training amplifies rounding, and over half
the epochs, which then take the memory of all of them in float32; with `--eager 0` nothing is compared. With `--tf32`
our products are in TF32; the reference has torch's defaults, which use it for convolutions. `--tune` lets cuDNN select
its fastest algorithms.

On an H200, `--mlp 1000 --records 100 --epochs 20 --tf32`, in steps a second:

    unrolled eager autograd      13.8
    one graph                   137
    one step to a graph         101.8
    segments of 4               102.8
    in the span of the records  174.4    12.6 times the first

and of ResNet-18 with `--tf32`, 20 images and 8 epochs, and with `--records 120 --epochs 20 --eager 1 --count 3` beside
other runs, which costs rates but no memory:

    unrolled eager autograd       4.03     2.4 GiB           1.12    23.6 GiB
    one graph                    10.34     2.6               1.30    23.9
    closed form                  22.26     2.0    5.5 times  3.56    13.2
    recomputed                   18.97     1.4               3.05     2.8
    in segments of 3, 4          14.73     1.3               2.39     2.4

These are without side streams. With four, the closed form of the first column takes 27.98 steps a second and 2.3 GiB,
6.9 times the autograd above; without, in the same run, 22.23 and 1.8. `--tune` gains nothing (22.22).
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from remanence import SGD, Training
from remanence.attacks import Cosine
from remanence.engine import engine_for, on_batches
from remanence.engine.cuda import changed_by, precision, replayed, torch_optimizer, update
from remanence.engine.unroll import Dynamics, GenericDynamics, Unrolled, graph_bytes, updated_names
from remanence.engine.unroll_cnn import CNNDynamics
from remanence.engine.unroll_mlp import SpanDynamics
from remanence.models import apply, centred_mlp, initial_params, resnet18
from remanence.search.distances import between
from remanence.training import Adam
from remanence.types import Params

RATE = 0.01
Objective = Callable[[Tensor], Tensor]  # from records to how far their training ends from the victim's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mlp", type=int, help="width of an MLP in place of ResNet-18")
    parser.add_argument("--records", type=int, default=20)
    parser.add_argument("--batch", type=int, help="records to a batch; all by default")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--count", type=int, default=20, help="steps timed of each way")
    parser.add_argument("--eager", type=int, help="steps timed of eager autograd; as many as of ours by default")
    for name in ("tf32", "tune", "profile"):
        parser.add_argument(f"--{name}", action="store_true")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = args.tune
    device, shape = torch.device("cuda" if torch.cuda.is_available() else "cpu"), (3, args.side, args.side)
    model: nn.Module = centred_mlp(shape, 10, hidden=(args.mlp, args.mlp)) if args.mlp else resnet18(shape, 10)
    training = Training(optimizer=SGD(lr=RATE), epochs=args.epochs, batch_size=args.batch, shuffled=False)
    truth, x = torch.rand(2, args.records, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    if args.eager != 0:
        compare(model, replace(training, epochs=ceil(args.epochs / 2)), truth.double(), x.double())
    eager, ours = objectives(model, training, truth)
    if args.profile:
        print_profile("unrolled eager autograd", eager, x)
    reference = None
    if args.eager != 0:
        reference = measured("unrolled eager autograd", eager, x, args.eager or args.count, sync=True)
    else:
        steps, batch = len(list(training.batches(args.records, 0))), min(args.batch or args.records, args.records)
        graph = steps * graph_bytes(model, shape, batch=batch, like=x)
        print(f"{'unrolled eager autograd':<28}not timed, {graph / 2**30:.1f} GiB by estimate")
    with precision(tf32=args.tf32):
        if args.profile:
            for name, objective in ours.items():
                print_profile(name, objective, x)
        rates = [measured(name, objective, x, args.count, reference=reference) for name, objective in ours.items()]
    if reference:
        print(f"ratio {max(rates) / reference:.1f}")


def compare(model: nn.Module, training: Training, truth: Tensor, x: Tensor) -> None:
    eager, ours = objectives(model, training, truth)
    expected = gradient_at(eager, x)
    for name, objective in ours.items():
        off = float((gradient_at(objective, x) - expected).norm() / expected.norm())
        assert off < 1e-6, f"{name}: its gradient is off by {off:.1e}"


def objectives(model: nn.Module, training: Training, truth: Tensor) -> tuple[Objective, dict[str, Objective]]:
    """The authors' and ours, for a victim that was trained on `truth`."""
    y = (torch.arange(len(truth)) % 10).to(truth.device)
    initial = {name: p.to(truth) for name, p in initial_params(model, seed=0).items()}
    batches = [b if b is None else b.to(truth.device) for b in training.batches(len(truth), 0)]
    gradient = on_batches(engine_for(model, training, truth.shape[1:]).gradient, truth, y)
    final = training.descend(gradient, initial, batches, records=len(truth), noise_seed=0)
    trained = updated_names(model, initial, final)
    generic = GenericDynamics(model=model, training=training, initial=initial, final=final, trained=trained)
    span = SpanDynamics.from_release(model, training, initial, final, records=len(y), shape=truth.shape[1:])
    cnn = CNNDynamics.from_release(model, training, initial, final, records=len(y), shape=truth.shape[1:])

    def ours(dynamics: Dynamics, segment: int) -> Objective:
        unrolled = Unrolled(training=training, dynamics=dynamics, batches=tuple(batches), segment=segment)
        return lambda x: between(Cosine(), dynamics.compare(*unrolled(x, y)))

    steps, few = len(batches), round(len(batches) ** 0.5)
    found = {"one graph": ours(generic, steps), "one step to a graph": ours(generic, 1)}
    found |= {f"segments of {few}": ours(generic, few)}
    found |= {"in the span of the records": ours(span, steps)} if span else {}
    if cnn:
        recomputed = replace(cnn, store_tapes=False)
        found = {"one graph": found["one graph"], "closed form": ours(cnn, steps)}
        found |= {"recomputed": ours(recomputed, steps), f"in segments of {few}": ours(recomputed, few)}
    return by_autograd(model, initial, final, y, batches), found


def by_autograd(model: nn.Module, initial: Params, final: Params, y: Tensor, batches: list[Tensor | None]) -> Objective:
    """The authors' way: a graph of every step, and the flat gradients added up."""
    names = [name for name, _ in model.named_parameters()]
    target = torch.cat([(initial[name] - final[name]).flatten() for name in names])

    def objective(x: Tensor) -> Tensor:
        weights, total = {name: initial[name].detach().requires_grad_() for name in names}, torch.zeros_like(target)
        for batch in batches:
            records = (x, y) if batch is None else (x[batch], y[batch])
            loss = cross_entropy(apply(model, initial | weights, records[0]), records[1])
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            total = total + torch.cat([g.flatten() for g in grads])
            weights = {name: w - RATE * g for (name, w), g in zip(weights.items(), grads, strict=True)}
        return 1 - cosine_similarity(total, target, dim=0)

    return objective


def gradient_at(objective: Objective, at: Tensor) -> Tensor:
    x = at.clone().requires_grad_()
    return torch.autograd.grad(objective(x), x)[0]


KINDS = {  # by what the names of kernels hold; the first that fits counts
    "transposes": ("nchwToNhwc", "nhwcToNchw", "transpose", "tensorTransform"),
    "convolutions, products": ("conv", "xmma", "cutlass", "gemm", "wgrad", "dgrad", "fprop", "cudnn", "addmm", "mm"),
    "joins": ("cat", "Cat"),
    "reductions": ("reduce", "sum", "mean", "softmax", "SoftMax"),
    "copies": ("copy", "Memcpy", "Memset", "fill", "zero"),
    "element by element": ("elementwise", "mul", "add", "sub", "threshold", "relu", "where", "div", "triton"),
}


def print_profile(name: str, objective: Objective, at: Tensor) -> None:
    """The time of one step by kind of kernel; without a CUDA device, of operation."""
    cuda, own = at.is_cuda, torch.profiler.ProfilerActivity
    gradient_at(objective, at)
    with torch.profiler.profile(activities=[own.CPU, own.CUDA] if cuda else [own.CPU]) as profile:
        gradient_at(objective, at)
        if cuda:
            torch.cuda.synchronize()
    spent, counts = Counter[str](), Counter[str]()
    for event in profile.key_averages():
        on_device = event.device_type == torch.autograd.DeviceType.CUDA
        taken = event.self_device_time_total if cuda else event.self_cpu_time_total
        if on_device == cuda:
            kind = next((kind for kind, parts in KINDS.items() if any(part in event.key for part in parts)), "other")
            spent[kind] += taken / 1000
            counts[kind] += event.count
    print(f"{name}: {sum(spent.values()):.2f} ms in {sum(counts.values())} {'kernels' if cuda else 'operations'}")
    for kind, taken in spent.most_common():
        print(f"    {kind:<24}{counts[kind]:>7}{taken:>10.2f} ms")


def measured(
    name: str, objective: Objective, at: Tensor, count: int, *, sync: bool = False, reference: float | None = None
) -> float:
    """Steps in a second, printed with the memory at the peak."""
    cuda, x = at.is_cuda, nn.Parameter(at.clone())
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    stepper = torch_optimizer(Adam(lr=1e-4), [x])

    def step() -> None:
        value = objective(x)
        update(stepper, value)
        assert not sync or value.item() >= 0

    once = step if sync else replayed(step, lambda: changed_by([stepper]))
    once()
    start = time.perf_counter()
    for _ in range(count):
        once()
    x.detach().sum().item()
    rate = count / (time.perf_counter() - start)
    peak = f", {torch.cuda.max_memory_reserved() / 2**30:.2f} GiB" if cuda else ""
    ratio = f", ratio {rate / reference:.1f}" if reference else ""
    print(f"{name:<28}{rate:8.2f} steps/s{ratio}{peak}")
    return rate


if __name__ == "__main__":
    main()
