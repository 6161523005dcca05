"""The Triton kernel of fused.py.

Each program computes one model on all records. It loads the products of the first layer once and overwrites them with
their gradient; sums are taken in a fixed order, so that the same ensemble always trains to the same bytes.
"""

import triton
import triton.language as tl

TESTED = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 6)  # with this version of Triton


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _activation(x, parameter, KIND: tl.constexpr):
    """The value of an activation and its derivative."""
    if KIND == "ReLU":
        value, derivative = tl.maximum(x, 0.0), tl.where(x > 0, 1.0, 0.0)
    elif KIND == "Threshold":
        value, derivative = tl.maximum(x, parameter), tl.where(x > parameter, 1.0, 0.0)
    elif KIND == "LeakyReLU":
        derivative = tl.where(x > 0, 1.0, parameter)
        value = x * derivative
    elif KIND == "ELU":
        below = parameter * (tl.exp(tl.minimum(x, 0.0)) - 1)
        value, derivative = tl.where(x > 0, x, below), tl.where(x > 0, 1.0, below + parameter)
    elif KIND == "CELU":
        growth = tl.exp(tl.minimum(x, 0.0) / parameter)
        value, derivative = tl.where(x > 0, x, parameter * (growth - 1)), tl.where(x > 0, 1.0, growth)
    elif KIND == "SELU":
        growth = 1.7580993408473766 * tl.exp(tl.minimum(x, 0.0))
        scale = 1.0507009873554805
        value, derivative = tl.where(x > 0, scale * x, growth - 1.7580993408473766), tl.where(x > 0, scale, growth)
    elif KIND == "Sigmoid":
        value = tl.sigmoid(x)
        derivative = value * (1 - value)
    elif KIND == "Tanh":
        value = _tanh(x)
        derivative = 1 - value * value
    elif KIND == "SiLU":
        gate = tl.sigmoid(x)
        value, derivative = x * gate, gate * (1 + x * (1 - gate))
    elif KIND == "Softplus":
        value = tl.where(x > parameter, x, tl.log(1 + tl.exp(tl.minimum(x, parameter))))
        derivative = tl.where(x > parameter, 1.0, tl.sigmoid(x))
    elif KIND == "GELU":
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        gate = 0.5 * (1 + _tanh(inner))
        value = x * gate
        derivative = gate + x * 2 * gate * (1 - gate) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x)
    else:
        value, derivative = x, tl.full(x.shape, 1.0, tl.float32)
    return value, derivative


@triton.jit
def _squares(values):
    total = values[0] * values[0]
    for i in tl.static_range(1, len(values)):
        total += values[i] * values[i]
    return total


@triton.jit(do_not_specialize=["count", "label_model", "label_record", "square_model", "square_record"])
def kernel(
    products,
    centre,
    centre_deltas,
    bias,
    weight,
    last_bias,
    labels,
    squares,
    grad_bias,
    grad_weight,
    grad_last_bias,
    count,
    label_model,
    label_record,
    square_model,
    square_record,
    clip,
    scale,
    parameter,
    WIDTH: tl.constexpr,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
    CLIPPED: tl.constexpr,
    CENTRED: tl.constexpr,
):
    model = tl.program_id(0).to(tl.int64)
    products += model * WIDTH * count
    weight += model * CLASSES * WIDTH
    b, c, sum_b, sum_c, sum_w = (), (), (), (), ()
    for i in tl.static_range(WIDTH):
        b = b + (tl.load(bias + model * WIDTH + i),)
        sum_b = sum_b + (tl.zeros([BLOCK], tl.float32),)
    for k in tl.static_range(CLASSES):
        c = c + (tl.load(last_bias + model * CLASSES + k),)
        sum_c = sum_c + (tl.zeros([BLOCK], tl.float32),)
    for _ in tl.static_range(WIDTH * CLASSES):
        sum_w = sum_w + (tl.zeros([BLOCK], tl.float32),)
    for start in range(0, count, BLOCK):
        record = start + tl.arange(0, BLOCK)
        live = record < count
        label = tl.load(labels + model * label_model + record * label_record, mask=live, other=0)
        centred_at, hidden, derivative, logits, delta, back = (), (), (), (), (), ()
        for i in tl.static_range(WIDTH):
            x = tl.load(products + i * count + record, mask=live, other=0.0) + b[i]
            if CENTRED:
                x += tl.load(centre + i * count + record, mask=live, other=0.0, eviction_policy="evict_last")
                at = tl.load(centre_deltas + i * count + record, mask=live, other=0.0, eviction_policy="evict_last")
                centred_at = centred_at + (at,)
            value, gate = _activation(x, parameter, KIND)
            hidden, derivative = hidden + (value,), derivative + (gate,)
        for k in tl.static_range(CLASSES):
            logit = tl.zeros([BLOCK], tl.float32) + c[k]
            for i in tl.static_range(WIDTH):
                logit += tl.load(weight + k * WIDTH + i) * hidden[i]
            logits = logits + (logit,)
        highest = logits[0]
        for k in tl.static_range(1, CLASSES):
            highest = tl.maximum(highest, logits[k])
        total = tl.zeros([BLOCK], tl.float32)
        for k in tl.static_range(CLASSES):
            total += tl.exp(logits[k] - highest)
        for k in tl.static_range(CLASSES):
            error = tl.exp(logits[k] - highest) / total - tl.where(label == k, 1.0, 0.0)
            delta = delta + (tl.where(live, error, 0.0),)
        for i in tl.static_range(WIDTH):
            d = tl.zeros([BLOCK], tl.float32)
            for k in tl.static_range(CLASSES):
                d += tl.load(weight + k * WIDTH + i) * delta[k]
            back = back + (d * derivative[i],)
        factor = scale
        if CLIPPED:
            square = tl.load(squares + model * square_model + record * square_record, mask=live, other=0.0)
            norm = tl.sqrt(_squares(delta) * (1 + _squares(hidden)) + _squares(back) * (1 + square))
            factor = scale * tl.minimum(clip / tl.maximum(norm, 1e-30), 1.0)
        new_b, new_c, new_w = (), (), ()
        for i in tl.static_range(WIDTH):
            d = back[i] * factor
            new_b = new_b + (sum_b[i] + d,)
            if CENTRED:
                d -= centred_at[i]
            tl.store(products + i * count + record, d, mask=live)
        for k in tl.static_range(CLASSES):
            d = delta[k] * factor
            new_c = new_c + (sum_c[k] + d,)
            for i in tl.static_range(WIDTH):
                new_w = new_w + (sum_w[k * WIDTH + i] + d * hidden[i],)
        sum_b, sum_c, sum_w = new_b, new_c, new_w
    for i in tl.static_range(WIDTH):
        tl.store(grad_bias + model * WIDTH + i, tl.sum(sum_b[i]))
    for k in tl.static_range(CLASSES):
        tl.store(grad_last_bias + model * CLASSES + k, tl.sum(sum_c[k]))
    for i in tl.static_range(WIDTH * CLASSES):
        tl.store(grad_weight + model * CLASSES * WIDTH + i, tl.sum(sum_w[i]))
