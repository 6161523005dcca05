"""A variant of the Triton kernel of fused.py: several blocks of records to an iteration, and products in float16.

A weight of the output layer that was loaded serves all blocks of an iteration, and what is needed late is loaded late,
so that no register spills. Products in float16 are multiplied by `given` when loaded, and their gradients by `stored`
when stored: float16 and TF32 round to the same eleven bits, and these factors keep values in the range of float16.
"""

import triton
import triton.language as tl

from remanence.engine.ensembles._kernel import _activation


@triton.jit
def _back(weight, delta, zero, WIDTH: tl.constexpr, CLASSES: tl.constexpr, BLOCKS: tl.constexpr):
    """The gradient by one hidden value, of each block."""
    d = ()
    for _ in tl.static_range(BLOCKS):
        d = d + (zero,)
    for k in tl.static_range(CLASSES):
        w = tl.load(weight + k * WIDTH)
        more = ()
        for u in tl.static_range(BLOCKS):
            more = more + (d[u] + w * delta[k * BLOCKS + u],)
        d = more
    return d


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
    given,
    count,
    label_model,
    label_record,
    square_model,
    square_record,
    clip,
    scale,
    parameter,
    stored,
    WIDTH: tl.constexpr,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    KIND: tl.constexpr,
    CLIPPED: tl.constexpr,
    CENTRED: tl.constexpr,
    HALF: tl.constexpr,
):
    model = tl.program_id(0).to(tl.int64)
    products += model * WIDTH * count
    weight += model * CLASSES * WIDTH
    bias += model * WIDTH
    last_bias += model * CLASSES
    labels += model * label_model
    squares += model * square_model
    zero = tl.zeros([BLOCK], tl.float32)
    factor_given = 1.0
    if HALF:
        factor_given = tl.load(given)
    sum_b, sum_c, sum_w = (), (), ()
    for _ in tl.static_range(WIDTH):
        sum_b = sum_b + (zero,)
    for _ in tl.static_range(CLASSES):
        sum_c = sum_c + (zero,)
    for _ in tl.static_range(WIDTH * CLASSES):
        sum_w = sum_w + (zero,)
    for start in range(0, count, BLOCK * BLOCKS):
        records, lives, owns = (), (), ()  # of each block
        for u in tl.static_range(BLOCKS):
            record = start + u * BLOCK + tl.arange(0, BLOCK)
            live = record < count
            records, lives = records + (record,), lives + (live,)
            owns = owns + (tl.load(labels + record * label_record, mask=live, other=0).to(tl.int32),)
        hidden, derivative, logits, delta, back = (), (), (), (), ()  # of block u at [. * BLOCKS + u]
        for i in tl.static_range(WIDTH):
            b = tl.load(bias + i)
            for u in tl.static_range(BLOCKS):
                x = tl.load(products + i * count + records[u], mask=lives[u], other=0.0)
                if HALF:
                    x = x.to(tl.float32) * factor_given
                x += b
                if CENTRED:
                    x += tl.load(
                        centre + i * count + records[u], mask=lives[u], other=0.0, eviction_policy="evict_last"
                    )
                value, gate = _activation(x, parameter, KIND)
                hidden, derivative = hidden + (value,), derivative + (gate,)
        for k in tl.static_range(CLASSES):
            logit = ()
            for _ in tl.static_range(BLOCKS):
                logit = logit + (zero + tl.load(last_bias + k),)
            for i in tl.static_range(WIDTH):
                w = tl.load(weight + k * WIDTH + i)
                more = ()
                for u in tl.static_range(BLOCKS):
                    more = more + (logit[u] + w * hidden[i * BLOCKS + u],)
                logit = more
            logits = logits + logit
        exps, factors = (), ()
        highest, inverse = (), ()
        for u in tl.static_range(BLOCKS):
            maximum = logits[u]
            for k in tl.static_range(1, CLASSES):
                maximum = tl.maximum(maximum, logits[k * BLOCKS + u])
            highest, inverse = highest + (maximum,), inverse + (zero,)
        for k in tl.static_range(CLASSES):
            more = ()
            for u in tl.static_range(BLOCKS):
                e = tl.exp(logits[k * BLOCKS + u] - highest[u])
                exps, more = exps + (e,), more + (inverse[u] + e,)
            inverse = more
        more = ()
        for u in tl.static_range(BLOCKS):
            more = more + (1.0 / inverse[u],)
        inverse = more
        for k in tl.static_range(CLASSES):
            for u in tl.static_range(BLOCKS):
                error = exps[k * BLOCKS + u] * inverse[u] - tl.where(owns[u] == k, 1.0, 0.0)
                delta = delta + (tl.where(lives[u], error, 0.0),)
        if CLIPPED:
            for i in tl.static_range(WIDTH):
                d = _back(weight + i, delta, zero, WIDTH, CLASSES, BLOCKS)
                for u in tl.static_range(BLOCKS):
                    back = back + (d[u] * derivative[i * BLOCKS + u],)
            for u in tl.static_range(BLOCKS):
                square = tl.load(squares + records[u] * square_record, mask=lives[u], other=0.0)
                of_delta, of_hidden, of_back = zero, zero, zero
                for k in tl.static_range(CLASSES):
                    of_delta += delta[k * BLOCKS + u] * delta[k * BLOCKS + u]
                for i in tl.static_range(WIDTH):
                    of_hidden += hidden[i * BLOCKS + u] * hidden[i * BLOCKS + u]
                    of_back += back[i * BLOCKS + u] * back[i * BLOCKS + u]
                norm = tl.sqrt(of_delta * (1 + of_hidden) + of_back * (1 + square))
                factors = factors + (tl.minimum(clip / tl.maximum(norm, 1e-30), 1.0),)
        if CLIPPED:
            scaled = ()
            for k in tl.static_range(CLASSES):
                for u in tl.static_range(BLOCKS):
                    scaled = scaled + (delta[k * BLOCKS + u] * factors[u],)
            delta = scaled
        new_b, new_c, new_w = (), (), ()
        for i in tl.static_range(WIDTH):
            total = sum_b[i]
            d = _back(weight + i, delta, zero, WIDTH, CLASSES, BLOCKS)
            for u in tl.static_range(BLOCKS):
                grad = d[u] * derivative[i * BLOCKS + u]
                total += grad
                grad = grad * scale
                if CENTRED:
                    grad -= tl.load(
                        centre_deltas + i * count + records[u], mask=lives[u], other=0.0, eviction_policy="evict_last"
                    )
                if HALF:
                    grad = tl.minimum(tl.maximum(grad * stored, -65504.0), 65504.0).to(tl.float16)
                tl.store(products + i * count + records[u], grad, mask=lives[u])
            new_b = new_b + (total,)
        for k in tl.static_range(CLASSES):
            total = sum_c[k]
            for u in tl.static_range(BLOCKS):
                total += delta[k * BLOCKS + u]
            new_c = new_c + (total,)
            for i in tl.static_range(WIDTH):
                total = sum_w[k * WIDTH + i]
                for u in tl.static_range(BLOCKS):
                    total += delta[k * BLOCKS + u] * hidden[i * BLOCKS + u]
                new_w = new_w + (total,)
        sum_b, sum_c, sum_w = new_b, new_c, new_w
    for i in tl.static_range(WIDTH):
        tl.store(grad_bias + model * WIDTH + i, scale * tl.sum(sum_b[i]))
    for k in tl.static_range(CLASSES):
        tl.store(grad_last_bias + model * CLASSES + k, scale * tl.sum(sum_c[k]))
    for i in tl.static_range(WIDTH * CLASSES):
        tl.store(grad_weight + model * CLASSES * WIDTH + i, scale * tl.sum(sum_w[i]))
