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
    unit: Tensor  # the squares of what is left are divided by it


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
    """`deltas` D_k, `carried` D_(k+1) W_(k+1), and what of each target and bias is not explained, over its unit."""

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
    one = final[f"{plain.names[0]}.weight"].new_ones(())
    weights = [final[f"{name}.weight"] for name in plain.names]
    biases = [final.get(f"{name}.bias") for name in plain.names]
    return tuple(Layer(weight=w, bias=b, target=w, unit=one) for w, b in zip(weights, biases, strict=True))


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
        out = inputs[-1] @ layer.weight.T
        out = out if layer.bias is None else out + layer.bias
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


def left(layers: Sequence[Layer], seen: Forward, top: Tensor) -> Left:
    deltas, carried = [top], []
    for layer, slope in zip(reversed(layers[1:]), reversed(seen.slopes), strict=True):
        carried.append(deltas[-1] @ layer.weight)
        deltas.append(carried[-1] * slope)
    deltas, carried = deltas[::-1], carried[::-1]
    objective = top.new_zeros(top.shape[:-2])
    weights: list[Tensor] = []
    biases: list[Tensor | None] = []
    for layer, delta, below in zip(layers, deltas, seen.inputs, strict=True):
        missing = layer.target - delta.mT @ below
        weights.append(missing / layer.unit)
        objective = objective + (missing * weights[-1]).sum((-2, -1))
        if layer.bias is None:
            biases.append(None)
        else:
            lacking = layer.bias - delta.sum(-2)
            biases.append(lacking / layer.unit)
            objective = objective + (lacking * lacking / layer.unit).sum(-1)
    return Left(deltas=deltas, carried=carried, weights=weights, biases=biases, objective=objective)


def fitted(layers: Sequence[Layer], rest: Left) -> tuple[Left, Tensor]:
    """What is left when all multipliers are scaled by the number that leaves the least, and that number."""
    along, length = torch.zeros_like(rest.objective), torch.zeros_like(rest.objective)
    for layer, missing, lacking in zip(layers, rest.weights, rest.biases, strict=True):
        explained = layer.target - layer.unit * missing
        along = along + (layer.target * explained).sum((-2, -1)) / layer.unit
        length = length + explained.square().sum((-2, -1)) / layer.unit
        if layer.bias is not None and lacking is not None:
            explained = layer.bias - layer.unit * lacking
            along = along + (layer.bias * explained).sum(-1) / layer.unit
            length = length + explained.square().sum(-1) / layer.unit
    tiny = torch.finfo(length.dtype).tiny
    factor = (along / length.clamp_min(tiny)).clamp_min(_LEAST)
    every, row = factor[..., None, None], factor[..., None]

    def scaled(wanted: Tensor, missing: Tensor, unit: Tensor, factor: Tensor) -> Tensor:
        return factor * missing + (1 - factor) * wanted / unit

    whole = sum(
        ((layer.target.square().sum() + _square(layer.bias)) / layer.unit for layer in layers), start=length * 0
    )
    left_over = Left(
        deltas=[every * delta for delta in rest.deltas],
        carried=[every * q for q in rest.carried],
        weights=[scaled(layer.target, w, layer.unit, every) for layer, w in zip(layers, rest.weights, strict=True)],
        biases=[
            None if layer.bias is None or b is None else scaled(layer.bias, b, layer.unit, row)
            for layer, b in zip(layers, rest.biases, strict=True)
        ],
        objective=whole - 2 * factor * along + factor.square() * length,
    )
    return left_over, factor


def _square(bias: Tensor | None) -> Tensor | float:
    return 0.0 if bias is None else bias.square().sum()


def by_deltas(layers: Sequence[Layer], seen: Forward, rest: Left) -> list[Tensor]:
    """The slope of the objective by each D_k; the last is that by `top`."""
    slopes: list[Tensor] = []
    for place, layer in enumerate(layers):
        own = seen.inputs[place] @ rest.weights[place].mT
        if (lacking := rest.biases[place]) is not None:
            own = own + lacking[..., None, :]
        own = -2 * own
        if place:
            own = own + (slopes[-1] * seen.slopes[place - 1]) @ layer.weight.T
        slopes.append(own)
    return slopes


def by_inputs(
    layers: Sequence[Layer], seen: Forward, rest: Left, of_deltas: Sequence[Tensor], of_logits: Tensor | None
) -> Tensor:
    """The slope by the candidates; `of_logits` is what comes through a `top` that depends on them."""
    of_out = of_logits
    for place in reversed(range(len(layers))):
        of_input = -2 * rest.deltas[place] @ rest.weights[place]
        if of_out is not None:
            of_input = of_input + of_out @ layers[place].weight
        if place == 0:
            return of_input
        of_out = of_input * seen.slopes[place - 1]
        if (bend := seen.bends[place - 1]) is not None:
            of_out = of_out + of_deltas[place - 1] * rest.carried[place - 1] * bend
    raise AssertionError
