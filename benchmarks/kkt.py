"""Iterations of the KKT attack: slopes in closed form, alone and stacked, beside autograd with a host sync each step.

    python benchmarks/kkt.py                                 # 1,000 candidates, 3072-1000-1000-10, float64
    python benchmarks/kkt.py --candidates 100 --pixels 768 --width 300 --count 5

The slopes of both ways are compared before anything is printed. A stack's rate is the sum over its runs.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from remanence.attacks import _stationarity
from remanence.attacks._by_autograd import slopes, with_surrogate
from remanence.nets import centred_mlp, torch_params

ALPHA, CLASSES = 40.0, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--pixels", type=int, default=3072)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--stack", type=int, default=4, help="runs at once")
    parser.add_argument("--count", type=int, default=3, help="iterations timed of each way")
    parser.add_argument("--float32", action="store_true")
    args = parser.parse_args()
    dtype, device = torch.float32 if args.float32 else torch.float64, "cuda" if torch.cuda.is_available() else "cpu"
    model = centred_mlp((args.pixels,), CLASSES, hidden=(args.width, args.width))
    params = {name: p.to(device, dtype) for name, p in torch_params(model, seed=0).items()}
    layers = _stationarity.layers_of(model, params)
    assert layers is not None
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(args.stack, args.candidates, args.pixels, generator=generator).to(device, dtype)
    top = torch.randn(args.stack, args.candidates, CLASSES, generator=generator).to(device, dtype)
    alpha, surrogate = x.new_tensor(ALPHA), with_surrogate(model, ALPHA)

    def written_out(x: Tensor, top: Tensor) -> Tensor:
        seen = _stationarity.forward(layers, x, alpha)
        rest = _stationarity.left(layers, seen, top)
        return _stationarity.by_inputs(layers, seen, rest, _stationarity.by_deltas(layers, seen, rest), None)

    def by_autograd() -> Tensor:
        value, of_x, _ = slopes(surrogate, params, x[0], top[0])
        assert value.item() > 0  # the sync of the authors' check for NaN
        return of_x

    torch.testing.assert_close(written_out(x[0], top[0]), by_autograd(), rtol=1e-4, atol=1e-6)
    reference = rate(by_autograd, args.count)
    alone = rate(lambda: written_out(x[0], top[0]), args.count)
    stacked = args.stack * rate(lambda: written_out(x, top), args.count)
    print(f"autograd, a sync each step    {reference:8.2f} iterations/s")
    print(f"closed form                   {alone:8.2f} iterations/s, ratio {alone / reference:.1f}")
    print(
        f"closed form, {args.stack} runs stacked    {stacked:8.2f} iterations/s in sum, ratio {stacked / reference:.1f}"
    )
    print(f"ratio {max(alone, stacked) / reference:.1f}")


def rate(step: Callable[[], Tensor], count: int) -> float:
    step()
    start = time.perf_counter()
    for _ in range(count):
        out = step()
    out.sum().item()
    return count / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
