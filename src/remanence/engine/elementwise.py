"""Passes over a stack of matrices (restarts, rows, columns) in float32 on a CUDA device, each one Triton kernel in
place of several: memory traffic is what they cost. Each returns whether it applies, and then has done its work."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

FUSED = False  # benchmarks/kkt.py --fused
_BLOCK = 1024


def applies(*stacks: Tensor) -> bool:
    first = stacks[0]
    return (
        FUSED
        and first.is_cuda
        and find_spec("triton") is not None
        and all(s.dtype == torch.float32 and s.is_contiguous() and s.shape == first.shape for s in stacks)
    )


def relu_and_sigmoid(values: Tensor, alpha: Tensor) -> Tensor:
    """sigmoid(alpha values), and ReLU of the values in place; `alpha` is (restarts, 1, 1)."""
    gates = torch.empty_like(values)
    _kernels().relu_and_sigmoid[_grid(values)](values, gates, alpha, values[0].numel(), BLOCK=_BLOCK)
    return gates


def through_surrogate(total: Tensor, grad_deltas: Tensor, deltas: Tensor, gates: Tensor, alpha: Tensor) -> Tensor:
    """gates * total + (1 - gates) * alpha * grad_deltas * deltas, in the place of `total`."""
    size = total[0].numel()
    _kernels().through_surrogate[_grid(total)](total, grad_deltas, deltas, gates, alpha, size, BLOCK=_BLOCK)
    return total


def add_outside(x: Tensor, grad: Tensor, width: float) -> Tensor:
    """(restarts,): sums of squares of x outside of plus or minus `width`, whose gradient is added to `grad`."""
    grid = _grid(x)
    sums = x.new_empty(grid[1], grid[0])
    _kernels().add_outside[grid](x, grad, sums, width, x[0].numel(), BLOCK=_BLOCK)
    return sums.sum(1)


def momentum_step(x: Tensor, momentum_buffer: Tensor, grad: Tensor, lr: Tensor, momentum: float) -> None:
    """A step of SGD in place, with the learning rate of each restart."""
    size = x[0].numel()
    _kernels().momentum_step[_grid(x)](x, momentum_buffer, grad, lr, momentum, size, BLOCK=_BLOCK)


def _kernels() -> Any:
    from remanence.engine import _elementwise

    return _elementwise


def _grid(stack: Tensor) -> tuple[int, int]:
    return -(-stack[0].numel() // _BLOCK), len(stack)
