"""How far weights are from being a sum of gradients at candidates, and the slope of that, without autograd.

For an MLP  a_k = h_(k-1) W_k' + b_k,  h_k = relu(a_k)  with logits a_L, records i and multipliers `top` (i, class), the
weights that candidates explain are  W_k = D_k' h_(k-1)  with  D_L = top,  D_(k-1) = (D_k W_k) * s_(k-1). Of the
surrogate activation s = sigmoid(alpha a), of plain ReLU s = 1[a > 0]. The objective is the sum of squares of what is
left, each layer in a unit of its own (Buzaglo et al. 2023); its slope is written out below. A leading dimension stacks
runs: the weights are shared, and products with them are one product.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from remanence.nets import Centre
from remanence.training import CrossEntropy, plain_mlp
from remanence.types import Params

_LEAST = 1e-6  # factor of the multipliers: at zero every slope would be zero


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """`target` is what the candidates should explain: the weight, or the weight in other units."""

    weight: Tensor
    bias: Tensor | None
    target: Tensor
    unit: float = 1.0  # the squares of what is left are divided by it


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Forward:
    """`inputs` of each layer; the slope of each activation, and the slope's own (None: plain ReLU has none)."""

    inputs: list[Tensor]
    slopes: list[Tensor]
    bends: list[Tensor | None]
    logits: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Left:
    """`deltas` D_k, `carried` D_(k+1) W_(k+1), and what of each target and bias is not explained."""

    deltas: list[Tensor]
    carried: list[Tensor]
    weights: list[Tensor]
    biases: list[Tensor | None]
    objective: Tensor  # one number for each run


def layers_of(model: nn.Module, final: Params) -> tuple[Layer, ...] | None:
    """None where the model is no plain MLP with ReLU that reads records as they are, or less a mean."""
    plain = plain_mlp.of(model, CrossEntropy())
    if plain is None or plain.standard is not None:
        return None
    weights = [final[f"{name}.weight"] for name in plain.names]
    biases = [final.get(f"{name}.bias") for name in plain.names]
    return tuple(Layer(weight=w, bias=b, target=w) for w, b in zip(weights, biases, strict=True))


def mean_of(model: nn.Module, final: Params) -> Tensor | None:
    """What the model takes off its records."""
    names = [f"{path}.mean" for path, layer in model.named_modules() if isinstance(layer, Centre)]
    return final[names[0]] if names else None


def margin_signs(logits: Tensor, labels: Tensor, *, signed: bool) -> Tensor:
    """How each record's margin is made of its logits: 1 at the label and -1 at the closest competitor; of one output
    its label's sign, or 1 where multipliers are `signed`."""
    if logits.shape[-1] == 1:
        return torch.ones_like(logits) if signed else (2 * labels.to(logits) - 1)[:, None].expand_as(logits)
    own = labels[:, None] == torch.arange(logits.shape[-1], device=logits.device)
    rival = logits.masked_fill(own, -torch.inf).argmax(-1, keepdim=True)
    return own.to(logits).expand_as(logits).scatter(-1, rival, -1.0)


def forward(
    layers: Sequence[Layer], x: Tensor, alpha: Tensor | None, shifts: Sequence[Tensor] | None = None
) -> Forward:
    """`shifts` are added to alpha a inside the surrogate: at a kink every slope from 0 to 1 is as good as another."""
    inputs, slopes = [x], []
    bends: list[Tensor | None] = []
    for place, layer in enumerate(layers):
        out = linear(inputs[-1], layer.weight, layer.bias)
        if place == len(layers) - 1:
            break
        if alpha is None:
            slope, bend = (out > 0).to(out), None
        else:
            slope = torch.sigmoid(alpha * out if shifts is None else alpha * out + shifts[place])
            bend = alpha * slope * (1 - slope)
        slopes.append(slope)
        bends.append(bend)
        inputs.append(out.relu())
    return Forward(inputs=inputs, slopes=slopes, bends=bends, logits=out)


def backward(layers: Sequence[Layer], seen: Forward, top: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """D_k of every layer, and D_(k+1) W_(k+1) of all but the last."""
    deltas, carried = [top], []
    for layer, slope in zip(reversed(layers[1:]), reversed(seen.slopes), strict=True):
        carried.append(deltas[-1] @ layer.weight)
        deltas.append(carried[-1] * slope)
    return deltas[::-1], carried[::-1]


def gram(layers: Sequence[Layer], seen: Forward, deltas: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Of the records' gradients, none of which is ever formed: their inner products with each other (i, i), and with
    the targets (i)."""
    count, zeros = deltas[0].shape[-2], torch.zeros_like(deltas[0][..., 0])
    products, along = zeros[..., None].expand(*zeros.shape, count), zeros
    for layer, delta, below in zip(layers, deltas, seen.inputs, strict=True):
        overlap = below @ below.mT
        own = ((delta @ layer.target) * below).sum(-1)
        if layer.bias is not None:
            overlap, own = overlap + 1, own + delta @ layer.bias
        products = products + (delta @ delta.mT) * overlap / layer.unit
        along = along + own / layer.unit
    return products, along


def left(layers: Sequence[Layer], seen: Forward, top: Tensor) -> Left:
    deltas, carried = backward(layers, seen, top)
    objective = top.new_zeros(top.shape[:-2])
    weights: list[Tensor] = []
    biases: list[Tensor | None] = []
    for layer, delta, below in zip(layers, deltas, seen.inputs, strict=True):
        missing = _added(layer.target, delta.mT, below, -1.0)
        lacking = None if layer.bias is None else layer.bias - delta.sum(-2)
        weights.append(missing)
        biases.append(lacking)
        squares = missing.square().sum((-2, -1))
        objective = objective + (squares if lacking is None else squares + lacking.square().sum(-1)) / layer.unit
    return Left(deltas=deltas, carried=carried, weights=weights, biases=biases, objective=objective)


def fitted(layers: Sequence[Layer], rest: Left) -> tuple[Left, Tensor]:
    """What is left when all multipliers are scaled by the number that leaves the least, and that number."""
    along, length = torch.zeros_like(rest.objective), torch.zeros_like(rest.objective)
    whole = torch.zeros_like(rest.objective)
    for layer, missing, lacking in zip(layers, rest.weights, rest.biases, strict=True):
        explained = layer.target - missing
        along = along + (layer.target * explained).sum((-2, -1)) / layer.unit
        length = length + explained.square().sum((-2, -1)) / layer.unit
        whole = whole + layer.target.square().sum() / layer.unit
        if layer.bias is not None and lacking is not None:
            explained = layer.bias - lacking
            along = along + (layer.bias * explained).sum(-1) / layer.unit
            length = length + explained.square().sum(-1) / layer.unit
            whole = whole + layer.bias.square().sum() / layer.unit
    factor = (along / length.clamp_min(torch.finfo(length.dtype).tiny)).clamp_min(_LEAST)
    every, row = factor[..., None, None], factor[..., None]
    left_over = Left(
        deltas=[every * delta for delta in rest.deltas],
        carried=[every * q for q in rest.carried],
        weights=[torch.lerp(layer.target, w, every) for layer, w in zip(layers, rest.weights, strict=True)],
        biases=[
            None if layer.bias is None or b is None else torch.lerp(layer.bias, b, row)
            for layer, b in zip(layers, rest.biases, strict=True)
        ],
        objective=whole - 2 * factor * along + factor.square() * length,
    )
    return left_over, factor


def by_deltas(layers: Sequence[Layer], seen: Forward, rest: Left) -> list[Tensor]:
    """The slope of the objective by each D_k; the last is that by `top`."""
    slopes: list[Tensor] = []
    for place, layer in enumerate(layers):
        factor = -2 / layer.unit
        own = (slopes[-1] * seen.slopes[place - 1]) @ layer.weight.T if place else torch.zeros_like(rest.deltas[0])
        if (lacking := rest.biases[place]) is not None:
            own = own.add_(lacking[..., None, :], alpha=factor)
        slopes.append(_added(own, seen.inputs[place], rest.weights[place].mT, factor))
    return slopes


def by_inputs(
    layers: Sequence[Layer], seen: Forward, rest: Left, of_deltas: Sequence[Tensor], of_logits: Tensor | None
) -> Tensor:
    """The slope by the candidates; `of_logits` is what comes through a `top` that depends on them."""
    of_out = of_logits
    for place in reversed(range(len(layers))):
        layer, delta, missing = layers[place], rest.deltas[place], rest.weights[place]
        of_input = torch.zeros_like(seen.inputs[place]) if of_out is None else of_out @ layer.weight
        of_input = _added(of_input, delta, missing, -2 / layer.unit)
        if place == 0:
            return of_input
        of_out = of_input * seen.slopes[place - 1]
        if (bend := seen.bends[place - 1]) is not None:
            of_out = of_out.addcmul_(of_deltas[place - 1] * rest.carried[place - 1], bend)
    raise AssertionError


def _added(start: Tensor, one: Tensor, other: Tensor, factor: float) -> Tensor:
    """start + factor one @ other, of matrices or of stacks of them, as one product."""
    return (torch.baddbmm if one.ndim == 3 else torch.addmm)(start, one, other, alpha=factor)
