"""The middle stage of an ensemble of MLPs on a CUDA device: autograd, torch.compile of the closed form, and Triton.

    PYTHONPATH=src python3 benchmarks/middle_stage.py               less than a minute
    PYTHONPATH=src python3 benchmarks/middle_stage.py --autotune    with max-autotune too, several minutes

The middle stage lies between the two large products of a training step (engine/ensembles/mlp.py): activation, output
layer, softmax, backward pass and clipping, for 2,048 models of width 10 with 10 classes and 10,000 fixed records, as in
benchmarks/shadow_bank.py. Each row is the median time of one call in milliseconds, the ratio of that time to the Triton
kernel's, and the largest absolute difference from autograd in the gradient by the products and in all others. The
kernel stays only while the ratio of every compiled form is at least 2 (docs/decisions/0015). One H200, torch 2.11, not
clipped:

                                plain      centred
    autograd, eager            9.23 ms
    compiled, bmm              6.25 ms                   5.75 with max-autotune
    compiled, elementwise      6.14 ms     5.38 ms       5.27 with max-autotune; centred: max-autotune
    Triton kernel              1.15 ms     1.91 ms
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import elu

from remanence.engine.ensembles import fused
from remanence.engine.ensembles import mlp as ensemble
from remanence.models import initial_stack, mlp
from remanence.types import Params

BIAS, WEIGHT, LAST_BIAS = "1.bias", "3.weight", "3.bias"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=2048)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--autotune", action="store_true", help="compile with max-autotune too")
    given = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(given.records, 784, generator=generator).to(given.device)
    y = torch.randint(10, (given.records,), generator=generator).to(given.device)
    model = mlp((784,), 10)
    params = {name: p.to(given.device) for name, p in initial_stack(model, given.models, seed=0).items()}
    layers = ensemble.layers_of(model, (784,))
    assert layers is not None
    records = ensemble.Records(x=x, labels=y[None], squares=x.square().sum(1)[None])
    products, scale = (params["1.weight"].flatten(0, 1) @ x.T).view(given.models, -1, len(x)), 1 / (len(x) + 1)
    torch._dynamo.config.cache_size_limit = 64
    print(f"torch {torch.__version__}, {_name(given.device)}: {given.models} models, {given.records} records, float32")
    for clip in (None, 1.0):
        autograd = partial(ensemble.autograd_middle, layers, params, records=records, clip=clip, scale=scale)
        expected = autograd(products)
        centre = ensemble.Centre(
            products=products.mean(0), deltas=expected[0].mean(0), gradient=products.new_zeros(products.shape[1], 784)
        )
        for centred in (None, centre):
            print(f"\n{'centred' if centred else 'plain'}, {'not clipped' if clip is None else f'clip {clip}'}")
            _compare(layers, params, products, records, clip, scale, centred, expected, given.autotune)


def _compare(
    layers: ensemble.Layers,
    params: Params,
    products: Tensor,
    records: ensemble.Records,
    clip: float | None,
    scale: float,
    centre: ensemble.Centre | None,
    expected: tuple[Tensor, Params],
    autotune: bool,
) -> None:
    given = products if centre is None else products - centre.products
    reference = expected[0] if centre is None else expected[0] - centre.deltas
    around = (None, None) if centre is None else (centre.products, centre.deltas)
    weights = params[BIAS], params[WEIGHT], params[LAST_BIAS], records.labels, records.squares, *around

    def eager() -> tuple[Tensor, Params]:
        if centre is None:
            return ensemble.autograd_middle(layers, params, given, records, clip, scale)
        deltas, grads = ensemble.autograd_middle(layers, params, given + centre.products, records, clip, scale)
        return deltas - centre.deltas, grads

    def compiled(batched: bool, mode: str) -> Callable[[], tuple[Tensor, Params]]:
        form = torch.compile(partial(closed_form, clip=clip, scale=scale, batched=batched), mode=mode, dynamic=False)
        return lambda: _named(form(given, *weights))

    candidates: dict[str, Callable[[], tuple[Tensor, Params]]] = {
        "autograd, eager": eager,
        "closed form, eager": lambda: _named(closed_form(given, *weights, clip=clip, scale=scale, batched=True)),
        "compiled, bmm": compiled(True, "default"),
        "compiled, elementwise": compiled(False, "default"),
    }
    if autotune:
        candidates["compiled, bmm, max-autotune"] = compiled(True, "max-autotune-no-cudagraphs")
        candidates["compiled, elementwise, max-autotune"] = compiled(False, "max-autotune-no-cudagraphs")
    times, differences = {}, {}
    for name, work in candidates.items():
        deltas, grads = work()
        differences[name] = _max(deltas - reference), max(_max(grads[n] - g) for n, g in expected[1].items())
        del deltas, grads
        times[name] = _milliseconds(work)
    kernel = "Triton kernel"
    if fused.can_fuse(layers.activations, given, params[WEIGHT]) and given.device.type == "cuda":
        scratch = torch.empty_like(given)

        def triton() -> tuple[Tensor, Params]:  # it overwrites its products
            return fused.middle(layers.names, layers.activations[0], params, scratch, records, clip, scale, centre)

        scratch.copy_(given)
        deltas, grads = triton()
        differences[kernel] = _max(deltas - reference), max(_max(grads[n] - g) for n, g in expected[1].items())
        times[kernel] = _milliseconds(triton, before=lambda: scratch.copy_(given))
    for name, time in times.items():
        ratio = f"{time / times[kernel]:8.2f}x" if kernel in times else f"{'-':>9}"
        by_products, others = differences[name]
        print(f"{name:<38}{time:10.3f} ms{ratio}   difference {by_products:.1e} {others:.1e}", flush=True)


def closed_form(
    products: Tensor,
    bias: Tensor,
    weight: Tensor,
    last_bias: Tensor,
    labels: Tensor,
    squares: Tensor,
    centre: Tensor | None,
    centre_deltas: Tensor | None,
    *,
    clip: float | None,
    scale: float,
    batched: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The middle stage of one hidden layer with ELU as plain tensor code, without autograd.

    `products` is (models, width, records). Small products are batched matrix products, or, where a compiler may fuse
    them with their neighbours, elementwise products and sums.
    """
    z = products + bias[:, :, None]
    if centre is not None:
        z = z + centre
    hidden = elu(z)
    derivative = torch.where(z > 0, 1.0, z.clamp_max(0).exp())
    logits = _product(weight, hidden, batched) + last_bias[:, :, None]
    classes = torch.arange(logits.shape[1], device=logits.device)[None, :, None]
    delta = logits.softmax(1) - (labels[:, None, :] == classes).to(logits.dtype)
    back = _product(weight.mT, delta, batched) * derivative
    factor: Tensor | float = scale
    if clip is not None:
        norms = delta.square().sum(1) * (1 + hidden.square().sum(1)) + back.square().sum(1) * (1 + squares)
        factor = (scale * (clip / norms.clamp_min(1e-30).sqrt()).clamp_max(1.0))[:, None, :]
    delta, back = delta * factor, back * factor
    grads = back.sum(2), delta @ hidden.mT, delta.sum(2)
    return back if centre_deltas is None else back - centre_deltas, *grads


def _product(weight: Tensor, values: Tensor, batched: bool) -> Tensor:
    """(models, m, n) times (models, n, records)."""
    if batched:
        return weight @ values
    total = weight[:, :, :1] * values[:, None, 0]
    for i in range(1, values.shape[1]):  # written as a sum of terms, which a compiler fuses where a reduction is not
        total = total + weight[:, :, i : i + 1] * values[:, None, i]
    return total


def _named(found: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Params]:
    return found[0], dict(zip((BIAS, WEIGHT, LAST_BIAS), found[1:], strict=True))


def _milliseconds(work: Callable[[], object], before: Callable[[], object] = lambda: None, calls: int = 20) -> float:
    """Median over calls by CUDA events, without what is done before each."""
    for _ in range(3):
        before()
        work()
    if not torch.cuda.is_available():
        return float("nan")
    times = []
    for _ in range(calls):
        before()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return median(times)


def _max(difference: Tensor) -> float:
    return float(difference.abs().max())


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


if __name__ == "__main__":
    main()
