"""The time of CUDA kernels by kind, for the benchmarks."""

from collections import Counter
from collections.abc import Callable

import torch

KINDS = {  # by what the names of kernels hold; the first that fits counts
    "transposes": ("nchwToNhwc", "nhwcToNchw", "transpose", "tensorTransform"),
    "convolutions, products": (
        "conv", "xmma", "cutlass", "gemm", "gemv", "wgrad", "dgrad", "fprop", "cudnn", "addmm", "mm", "nvjet", "splitK",
    ),
    "joins": ("cat", "Cat"),
    "optimizer": ("adam", "Adam", "multi_tensor"),
    "reductions": ("reduce", "sum", "mean", "softmax", "SoftMax", "norm"),
    "copies": ("copy", "Memcpy", "Memset", "fill", "zero", "index", "gather"),
    "element by element": ("elementwise", "mul", "add", "sub", "threshold", "relu", "where", "div", "triton"),
}  # fmt: skip


def print_kinds(work: Callable[[], object], count: int = 1, *, top: int = 0) -> None:
    """The microseconds of kernels by kind in `work`, which repeats something `count` times; then of the longest."""
    if not torch.cuda.is_available():
        return
    own = torch.profiler.ProfilerActivity
    work()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[own.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    spent, counts, kernels = Counter[str](), Counter[str](), Counter[str]()
    calls = Counter[str]()
    for event in profile.key_averages():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        kind = next((kind for kind, parts in KINDS.items() if any(part in event.key for part in parts)), "other")
        spent[kind] += event.self_device_time_total / count
        counts[kind] += event.count
        kernels[event.key] += event.self_device_time_total / count
        calls[event.key] += event.count
    print(f"    kernels {sum(spent.values()):.0f} us in {sum(counts.values()) / count:.1f}", flush=True)
    for kind, taken in spent.most_common():
        print(f"      {kind:<24}{counts[kind] / count:>8.1f}{taken:>10.1f} us")
    for name, taken in kernels.most_common(top):
        print(f"        {taken:>9.1f} us {calls[name] / count:>6.1f}  {name[:110]}")
