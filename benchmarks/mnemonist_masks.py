"""The mask stage of Mnemonist: partial products of the reconstructor's first layer, against every mask in full.

    python benchmarks/mnemonist_masks.py --quick            one CPU core, about a minute
    python benchmarks/mnemonist_masks.py --device cuda

Both evaluate models of 3072-10-10-10-10 (31,060 parameters) under all 1,024 masks with the paper's reconstructor, a
linear layer of 4,096 and two transposed convolutions; the full evaluation takes fewer models, and ratios are per model.
After the linear layer both do the same work, so that partial products gain at most a factor of 24 (254 to 11 MFLOP).
Fewer, balanced masks gain more and give nearly the same coefficients (`Mnemonist.masks`).
"""

import argparse
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor, nn

from remanence.attacks.one_unknown.masks import MaskedReconstructor, Superparameters, sample_masks
from remanence.attacks.one_unknown.mnemonist import Importance
from remanence.attacks.one_unknown.network import Reconstructor, materialise
from remanence.engine.cuda import precision
from remanence.models import deconv, initial_params, mlp
from remanence.shadow.features import Scaler
from remanence.shadow.rows import first_layer, stack_weights

SHAPE, ROWS, BALANCED = (3, 32, 32), 10, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few models, for a CPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tf32", action="store_true", help="on a CUDA device, in both ways")
    given = parser.parse_args()
    with precision(tf32=given.tf32):
        compare(given.device, models=16 if given.quick else 256, in_full=1 if given.quick else 16)


def compare(device: str, *, models: int, in_full: int) -> None:
    model = mlp(SHAPE, 10, hidden=(ROWS, 10, 10), activation=nn.ReLU)
    initial = stack_weights({name: p[None] for name, p in initial_params(model, seed=0).items()})[0].to(device)
    generator = torch.Generator().manual_seed(1)
    weights = initial + 1e-2 * torch.randn(models, len(initial), generator=generator).to(device)
    targets = torch.rand(models, *SHAPE, generator=generator).to(device)
    scaler, masks = Scaler.fit(weights, clip=2.0), sample_masks(ROWS, 1024, seed=0).to(device)
    layer = first_layer(model, SHAPE)
    assert layer is not None
    groups = Superparameters.from_layer(layer, initial.device)
    net = Reconstructor(deconv(len(initial), SHAPE), SHAPE)
    materialise(net, initial_params(net, seed=2), initial)
    masked = MaskedReconstructor(net=net, scaler=scaler, groups=groups)

    print(f"{device}, {torch.get_num_threads()} threads, {len(masks):,} masks; milliseconds per model")
    few = weights[:in_full], initial, targets[:in_full], masks
    slow, expected = _timed("every mask in full", lambda: _in_full(masked, *few))
    fast, found = _timed("partial products", lambda: masked.errors(weights, initial, targets, masks))
    print(f"largest difference of the errors {float((found[:in_full] - expected).abs().max()):.1e}")
    print(f"ratio {slow / fast:.1f}, all masks")
    some = sample_masks(ROWS, BALANCED, seed=0).to(device)
    few_masks, of_few = _timed(f"{BALANCED} balanced masks", lambda: masked.errors(weights, initial, targets, some))
    every, fewer = (Importance.from_errors(m, e).coefficient for m, e in ((masks, found), (some, of_few)))
    print(f"coefficients of the rows, all masks against balanced: correlation {correlation(every, fewer):.3f}")
    print(f"ratio {slow / few_masks:.1f}")


def correlation(some: Tensor, others: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([some, others]))[0, 1])


@torch.no_grad()
def _in_full(masked: MaskedReconstructor, weights: Tensor, initial: Tensor, targets: Tensor, masks: Tensor) -> Tensor:
    """Each masked model is made, standardised and read whole, all masks of one model in a batch."""
    found = []
    for row, target in zip(weights, targets, strict=True):
        batch = row.repeat(len(masks), 1)
        for s, group in enumerate(masked.groups.coordinates):
            batch[:, group] = torch.where(masks[:, s, None] == 1, row[group], initial[group])
        difference = (masked.net(masked.scaler(batch)) - target).flatten(1)
        found.append(difference.square().mean(1) + difference.abs().mean(1))
    return torch.stack(found)


def _timed(name: str, work: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """Seconds per model, the best of three after a warm-up."""
    made, best = work(), float("inf")
    for _ in range(3):
        start = perf_counter()
        made = work()
        if made.is_cuda:
            torch.cuda.synchronize()
        best = min(best, perf_counter() - start)
    print(f"{name:<28}{1e3 * best / len(made):12.2f}", flush=True)
    return best / len(made), made


if __name__ == "__main__":
    main()
