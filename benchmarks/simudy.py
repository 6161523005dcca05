"""Steps of SimuDy's search: ours, captured on a CUDA device, beside unrolled eager autograd with a host sync.

    python benchmarks/simudy.py                                          # ResNet-18, 20 images, 8 epochs
    python benchmarks/simudy.py --records 120 --batch 20 --epochs 20     # the largest of the paper, and its memory
    python benchmarks/simudy.py --mlp 1000 --records 100 --epochs 20
    python benchmarks/simudy.py --mlp 300 --side 16 --epochs 5 --count 2

The slopes of all ways are compared before anything is printed: in float64, as training amplifies rounding, and over
half the epochs, which then take the memory of all of them in float32. With `--tf32` ours rounds the factors of
products; the reference keeps torch's defaults, which round those of convolutions.

On an H200, `--mlp 1000 --records 100 --epochs 20 --tf32`, in steps a second:

    unrolled eager autograd      13.8
    one graph                   137
    replayed step by step       101.8
    segments of 4               102.8
    written in the records      174.4    12.6 times the first
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from remanence import SGD, Cosine, Training, centred_mlp, initial_params, resnet18
from remanence.attacks._simulation import Coordinates, Simulation, Whole
from remanence.attacks._spanned import Spanned
from remanence.nets import apply
from remanence.training import Adam
from remanence.training.in_place import changed_by, replayed, torch_optimizer, update
from remanence.training.precision import precision
from remanence.types import Params

RATE = 0.01
Way = Callable[[Tensor], Tensor]  # from records to how far their training ends from the victim's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mlp", type=int, help="width of an MLP in place of ResNet-18")
    parser.add_argument("--records", type=int, default=20)
    parser.add_argument("--batch", type=int, help="records to a batch; all by default")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--count", type=int, default=20, help="steps timed of each way")
    parser.add_argument("--tf32", action="store_true")
    args = parser.parse_args()
    device, shape = torch.device("cuda" if torch.cuda.is_available() else "cpu"), (3, args.side, args.side)
    model: nn.Module = centred_mlp(shape, 10, hidden=(args.mlp, args.mlp)) if args.mlp else resnet18(shape, 10)
    training = Training(optimizer=SGD(lr=RATE), epochs=args.epochs, batch_size=args.batch, shuffled=False)
    truth, x = torch.rand(2, args.records, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    compare(model, replace(training, epochs=ceil(args.epochs / 2)), truth.double(), x.double())
    eager, ours = ways(model, training, truth)
    reference = measured("unrolled eager autograd", eager, x, args.count, sync=True)
    with precision(tf32=args.tf32):
        rates = [measured(name, way, x, args.count, reference=reference) for name, way in ours.items()]
    print(f"ratio {max(rates) / reference:.1f}")


def compare(model: nn.Module, training: Training, truth: Tensor, x: Tensor) -> None:
    eager, ours = ways(model, training, truth)
    expected = slope(eager, x)
    for name, way in ours.items():
        off = float((slope(way, x) - expected).norm() / expected.norm())
        assert off < 1e-6, f"{name}: its slope is off by {off:.1e}"


def ways(model: nn.Module, training: Training, truth: Tensor) -> tuple[Way, dict[str, Way]]:
    """The authors' and ours, for a victim that was trained on `truth`."""
    y = (torch.arange(len(truth)) % 10).to(truth.device)
    initial = {name: p.to(truth) for name, p in initial_params(model, seed=0).items()}
    batches = [b if b is None else b.to(truth.device) for b in training.batches(len(truth), 0)]
    final = training.run(model, initial, truth, y, batches, noise_seed=0)
    whole = Whole(model=model, training=training, initial=initial, final=final, y=y, distance=Cosine())
    spanned = Spanned.of(model, training, initial, final, y, Cosine())

    def ours(coordinates: Coordinates, segment: int) -> Way:
        return Simulation(training=training, coordinates=coordinates, batches=tuple(batches), segment=segment)

    steps, few = len(batches), round(len(batches) ** 0.5)
    found = {"one graph": ours(whole, steps), "replayed step by step": ours(whole, 1)}
    found |= {f"segments of {few}": ours(whole, few)}
    found |= {"written in the records": ours(spanned, steps)} if spanned else {}
    return by_autograd(model, initial, final, y, batches), found


def by_autograd(model: nn.Module, initial: Params, final: Params, y: Tensor, batches: list[Tensor | None]) -> Way:
    """The authors' way: a graph of every step, and the flat gradients added up."""
    names = [name for name, _ in model.named_parameters()]
    target = torch.cat([(initial[name] - final[name]).flatten() for name in names])

    def way(x: Tensor) -> Tensor:
        weights, total = {name: initial[name].detach().requires_grad_() for name in names}, torch.zeros_like(target)
        for batch in batches:
            records = (x, y) if batch is None else (x[batch], y[batch])
            loss = cross_entropy(apply(model, initial | weights, records[0]), records[1])
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            total = total + torch.cat([g.flatten() for g in grads])
            weights = {name: w - RATE * g for (name, w), g in zip(weights.items(), grads, strict=True)}
        return 1 - cosine_similarity(total, target, dim=0)

    return way


def slope(way: Way, at: Tensor) -> Tensor:
    x = at.clone().requires_grad_()
    return torch.autograd.grad(way(x), x)[0]


def measured(
    name: str, way: Way, at: Tensor, count: int, *, sync: bool = False, reference: float | None = None
) -> float:
    """Steps in a second, printed with the memory at the peak."""
    cuda, x = at.is_cuda, nn.Parameter(at.clone())
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    stepper = torch_optimizer(Adam(lr=1e-4), [x])

    def step() -> None:
        value = way(x)
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
    print(f"{name:<26}{rate:8.2f} steps/s{ratio}{peak}")
    return rate


if __name__ == "__main__":
    main()
