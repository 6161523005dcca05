"""TFLOP/s of the matrix products of ensembles and of KKT on a CUDA device, by precision and by which dimension of each
factor is contiguous: instructions of TF32 take both factors with the summed one contiguous ("kk").

    python benchmarks/layouts.py
"""

import torch
from torch import Tensor

from remanence.engine.cuda import precision

SHAPES = {  # batch, m, n, k
    "ensemble, products": (1, 20480, 10000, 784),
    "ensemble, gradient": (1, 20480, 784, 10000),
    "KKT, x W'": (1, 8000, 1000, 3072),
    "KKT, g W": (1, 8000, 3072, 1000),
    "KKT, h W": (1, 8000, 1000, 1000),
    "KKT, D' x": (8, 1000, 3072, 1000),
    "KKT, D R": (8, 1000, 3072, 1000),
}


def main() -> None:
    for name, shape in SHAPES.items():
        rates = []
        for dtype in (torch.float32, torch.float16):
            for layout in ("kk", "kn", "mk", "mn"):
                with precision(tf32=True):
                    rate = tflops(*shape, layout, dtype)
                rates.append(f"{'half' if dtype == torch.float16 else 'TF32'} {layout} {rate:4.0f}")
        print(f"{name:<20}", " ".join(rates), flush=True)


def tflops(batch: int, m: int, n: int, k: int, layout: str, dtype: torch.dtype) -> float:
    def factor(rows: int, columns: int, last: bool) -> Tensor:
        shape = (batch, rows, columns) if last else (batch, columns, rows)
        made = torch.randn(shape, device="cuda").to(dtype)
        return made if last else made.mT

    one, other = factor(m, k, layout[0] == "k"), factor(k, n, layout[1] == "n")
    out = torch.empty(batch, m, n, device="cuda", dtype=dtype)
    one, other, out = (t[0] if batch == 1 else t for t in (one, other, out))
    for _ in range(2):
        torch.matmul(one, other, out=out)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(8):
        torch.matmul(one, other, out=out)
    end.record()
    torch.cuda.synchronize()
    return 8 * 2 * batch * m * n * k / start.elapsed_time(end) / 1e9


if __name__ == "__main__":
    main()
