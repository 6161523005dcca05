"""Element-wise passes over a stack (restarts, ...) in float32 on a CUDA device, each as one Triton kernel in place of
several: what they cost is memory traffic. Where `applies` is false, callers use torch's operations."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_BLOCK = 1024  # values to a program


def applies(*stacks: Tensor, numbers: Tensor | None = None) -> bool:
    """Whether the kernels take these stacks, of one shape and not recorded by autograd, with these `numbers`."""
    alike = all(s.shape == stacks[0].shape and s.dtype == torch.float32 and s.is_contiguous() for s in stacks)
    taken = alike and (numbers is None or one_for_each_restart(stacks[0], numbers))
    return taken and stacks[0].is_cuda and _has_triton() and not any(s.requires_grad for s in stacks)


def one_for_each_restart(stack: Tensor, numbers: Tensor) -> bool:
    """Whether `numbers` holds one number, or one for each restart of `stack`, and not one for each record."""
    return numbers.numel() == 1 or numbers.numel() == len(numbers) == len(stack)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def relu_and_sigmoid(values: Tensor, alpha: Tensor) -> Tensor:
    """sigmoid(alpha values), and ReLU of the values in place; `alpha` holds one number, or one for each restart."""
    gates = torch.empty_like(values)
    _launch("relu_and_sigmoid", values, gates, _for_each(values, alpha))
    return gates


def through_surrogate(total: Tensor, grad_deltas: Tensor, deltas: Tensor, gates: Tensor, alpha: Tensor) -> Tensor:
    """gates * total + (1 - gates) * alpha * grad_deltas * deltas, in the place of `total`."""
    _launch("through_surrogate", total, grad_deltas, deltas, gates, _for_each(total, alpha))
    return total


def add_outside(x: Tensor, grad: Tensor, width: float) -> Tensor:
    """(restarts,): sums of squares of x outside of plus or minus `width`, whose gradient is added to `grad`."""
    blocks, restarts = _grid(x)
    sums = x.new_empty(restarts, blocks)
    _launch("add_outside", x, grad, sums, width)
    return sums.sum(1)


def momentum_step(x: Tensor, momentum_buffer: Tensor, grad: Tensor, lr: Tensor, momentum: float) -> None:
    """A step of SGD with momentum, in place; `lr` holds one number, or one for each restart."""
    _launch("momentum_step", x, momentum_buffer, grad, _for_each(x, lr), momentum)


def _launch(name: str, first: Tensor, *others: Any) -> None:
    from remanence.engine import _elementwise

    with torch.cuda.device_of(first):
        getattr(_elementwise, name)[_grid(first)](first, *others, first[0].numel(), BLOCK=_BLOCK)


def _grid(stack: Tensor) -> tuple[int, int]:
    return -(-stack[0].numel() // _BLOCK), len(stack)


def _for_each(stack: Tensor, numbers: Tensor) -> Tensor:
    """(restarts,): the kernels read one number for each restart."""
    return numbers.to(stack.dtype).flatten().expand(len(stack)).contiguous()
