"""The Triton kernels of elementwise.py. A program computes a block of one matrix of a stack: (blocks, matrices)."""

import triton
import triton.language as tl


@triton.jit
def relu_and_sigmoid(values, gates, alpha, size, BLOCK: tl.constexpr):
    at, live = _block(size, BLOCK)
    x = tl.load(values + at, mask=live, other=0.0)
    tl.store(gates + at, tl.sigmoid(tl.load(alpha + tl.program_id(1)) * x), mask=live)
    tl.store(values + at, tl.maximum(x, 0.0), mask=live)


@triton.jit
def through_surrogate(total, grad_deltas, deltas, gates, alpha, size, BLOCK: tl.constexpr):
    at, live = _block(size, BLOCK)
    second = tl.load(grad_deltas + at, mask=live, other=0.0) * tl.load(deltas + at, mask=live, other=0.0)
    second *= tl.load(alpha + tl.program_id(1))
    gate = tl.load(gates + at, mask=live, other=0.0)
    tl.store(total + at, second + gate * (tl.load(total + at, mask=live, other=0.0) - second), mask=live)


@triton.jit
def add_outside(x, grad, sums, width, size, BLOCK: tl.constexpr):
    at, live = _block(size, BLOCK)
    value = tl.load(x + at, mask=live, other=0.0)
    outside = value - tl.minimum(tl.maximum(value, -width), width)
    tl.store(grad + at, tl.load(grad + at, mask=live, other=0.0) + 2 * outside, mask=live)
    tl.store(sums + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), tl.sum(outside * outside))


@triton.jit
def momentum_step(x, momentum_buffer, grad, lr, momentum, size, BLOCK: tl.constexpr):
    at, live = _block(size, BLOCK)
    update = tl.load(momentum_buffer + at, mask=live, other=0.0) * momentum + tl.load(grad + at, mask=live, other=0.0)
    tl.store(momentum_buffer + at, update, mask=live)
    value = tl.load(x + at, mask=live, other=0.0) - tl.load(lr + tl.program_id(1)) * update
    tl.store(x + at, value, mask=live)


@triton.jit
def _block(size, BLOCK: tl.constexpr):
    within = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    return tl.program_id(1).to(tl.int64) * size + within, within < size
