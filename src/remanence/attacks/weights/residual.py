"""How far weights are from being a sum of gradients at candidates, and the slope of that, without autograd.

For an MLP  a_k = h_(k-1) W_k' + b_k,  h_k = relu(a_k)  with logits a_L, records i and multipliers `top` (i, class), the
weights that candidates explain are  W_k = D_k' h_(k-1)  with  D_L = top,  D_(k-1) = (D_k W_k) * s_(k-1). Of the
surrogate activation s = sigmoid(alpha a), of plain ReLU s = 1[a > 0]. The objective is the sum of squares of what is
left, each layer in a unit of its own (Buzaglo et al. 2023); its slope is written out below. A leading dimension stacks
runs: the weights are shared, and products with them are one product.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from remanence.engine import mlp as plain_mlp
from remanence.errors import BadInput
from remanence.models.operations import Constant, Flatten, Normalisation
from remanence.models.structure import MLP, Unsupported, first_linear, parse
from remanence.releases import KnowsFinal
from remanence.types import Params

_LEAST = 1e-6  # factor of the multipliers: at zero every slope would be zero


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """Targets are what the candidates should explain: weight and bias, or these as other coordinates have them."""

    weight: Tensor
    bias: Tensor | None
    target: Tensor
    bias_target: Tensor | None
    unit: float = 1.0  # the squares of what is left are divided by it
    bias_unit: float = 1.0
    around: tuple[Tensor, Tensor] | None = None  # L and R: what is left of the weight, and its target, are  L . R

    def below(self, inputs: Tensor) -> Tensor:
        return inputs if self.around is None else inputs @ self.around[1]

    def above(self, deltas: Tensor) -> Tensor:
        return deltas if self.around is None else deltas @ self.around[0].T


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Forward:
    """`inputs` of each layer, and the slope of each activation: a sigmoid of `alpha` times what enters it, or, with
    None, the step of plain ReLU."""

    inputs: list[Tensor]
    slopes: list[Tensor]
    alpha: Tensor | None
    logits: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Left:
    """`deltas` D_k, and what of each target and bias is not explained."""

    deltas: list[Tensor]
    weights: list[Tensor]
    biases: list[Tensor | None]
    objective: Tensor  # one number for each run


def layers_of(model: nn.Module, final: Params, shape: Sequence[int]) -> tuple[Layer, ...] | None:
    """The layers of an MLP with ReLU that takes records as they are, or less a mean; None for another network."""
    structure = parse(model, shape)
    if plain_mlp.refusal(structure) or not isinstance(structure, MLP) or structure.record_norm is not None:
        return None
    if structure.flat_norm is not None and structure.flat_norm.std is not None:
        return None
    weights = [final[layer.weight] for layer in structure.layers]
    biases = [final[layer.bias] if layer.has_bias else None for layer in structure.layers]
    return tuple(Layer(weight=w, bias=b, target=w, bias_target=b) for w, b in zip(weights, biases, strict=True))


def scaled(model: nn.Module, final: Params, shape: Sequence[int], norm: float | None) -> Params:
    """All weights times one number, so that the layers' norms have this geometric mean. Without weight decay only the
    direction of the weights converges, and any length of them meets the same conditions. None: as they are."""
    if norm is None:
        return final
    layers = layers_of(model, final, shape)
    if layers is None or any(layer.bias is not None for layer in layers[1:]):
        raise BadInput("`norm` scales MLPs with ReLU and no bias but the first layer's, got another net: leave it None")
    factor = norm / torch.stack([layer.weight.norm() for layer in layers]).log().mean().exp()
    trained = {name for name, _ in model.named_parameters()}
    return {name: factor * p if name in trained else p for name, p in final.items()}


def mean_of(model: nn.Module, final: Params, shape: Sequence[int]) -> Tensor | None:
    """The mean that the model subtracts from flat records, and nothing more, before its first layer; None without."""
    first = first_linear(model, shape)
    before = [] if isinstance(first, Unsupported) else [op for op in first.before if not isinstance(op, Flatten)]
    match before:
        case [Normalisation(mean=Constant() as mean, std=None)] if mean.shape == (prod(shape),):
            return mean.value(final)
    return None


def images(release: KnowsFinal, x: Tensor, mean: float | None) -> Tensor:
    """Records (n, *shape) whose pixels less the mean are `x` (n, pixels): less `mean`, or with None what the model
    subtracts."""
    taken_off = mean_of(release.model, release.final, release.shape) if mean is None else x.new_full((), mean)
    return (x if taken_off is None else x + taken_off.to(x)).view(len(x), *release.shape)


def margin_signs(logits: Tensor, labels: Tensor, *, signed: bool) -> Tensor:
    """How each record's margin is made of its logits: 1 at the label and -1 at the closest competitor; of one output
    its label's sign, or 1 where multipliers are `signed`."""
    if logits.shape[-1] == 1:
        return torch.ones_like(logits) if signed else (2 * labels.to(logits) - 1)[:, None].expand_as(logits)
    own = labels[:, None].expand(*logits.shape[:-1], 1)
    rival = logits.scatter(-1, own, -torch.inf).argmax(-1, keepdim=True)
    return torch.zeros_like(logits).scatter_(-1, own, 1.0).scatter_(-1, rival, -1.0)


def forward(
    layers: Sequence[Layer], x: Tensor, alpha: Tensor | None, shifts: Sequence[Tensor] | None = None
) -> Forward:
    """`shifts` are added to alpha a inside the surrogate: at a kink every slope from 0 to 1 is as good as another."""
    inputs, slopes = [x], []
    for place, layer in enumerate(layers):
        out = linear(inputs[-1], layer.weight, layer.bias)
        if place == len(layers) - 1:
            break
        if alpha is None:
            slopes.append((out > 0).to(out))
        else:
            within = alpha * out if shifts is None else torch.addcmul(shifts[place], alpha, out)
            slopes.append(within.sigmoid_())
        inputs.append(out.relu_())
    return Forward(inputs=inputs, slopes=slopes, alpha=alpha, logits=out)


def backward(layers: Sequence[Layer], seen: Forward, top: Tensor) -> list[Tensor]:
    """D_k of every layer."""
    deltas = [top]
    for layer, slope in zip(reversed(layers[1:]), reversed(seen.slopes), strict=True):
        deltas.append((deltas[-1] @ layer.weight).mul_(slope))
    return deltas[::-1]


def gram(layers: Sequence[Layer], seen: Forward, deltas: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Of the records' gradients, none of which is ever formed: their inner products with each other (i, i), and with
    the targets (i)."""
    count, zeros = deltas[0].shape[-2], torch.zeros_like(deltas[0][..., 0])
    products, along = zeros[..., None].expand(*zeros.shape, count), zeros
    for layer, delta, below in zip(layers, deltas, seen.inputs, strict=True):
        overlap = below @ below.mT
        own = ((delta @ layer.target) * below).sum(-1)
        if layer.bias_target is not None:
            share = layer.unit / layer.bias_unit
            overlap, own = overlap + share, own + share * (delta @ layer.bias_target)
        products = products + (delta @ delta.mT) * overlap / layer.unit
        along = along + own / layer.unit
    return products, along


def left(layers: Sequence[Layer], seen: Forward, top: Tensor) -> Left:
    deltas, objective = backward(layers, seen, top), top.new_zeros(top.shape[:-2])
    weights: list[Tensor] = []
    biases: list[Tensor | None] = []
    for layer, delta, below in zip(layers, deltas, seen.inputs, strict=True):
        one, other = layer.above(delta).mT, layer.below(below)
        weights.append((torch.addmm if delta.ndim == 2 else torch.baddbmm)(layer.target, one, other, alpha=-1))
        biases.append(None if layer.bias_target is None else layer.bias_target - delta.sum(-2))
        with_squares(objective, weights[-1], 1 / layer.unit)
        if (lacking := biases[-1]) is not None:
            with_squares(objective, lacking[..., None], 1 / layer.bias_unit)
    return Left(deltas=deltas, weights=weights, biases=biases, objective=objective)


def with_squares(total: Tensor, of: Tensor, factor: float = 1.0) -> Tensor:
    """Adds, in place, the squares of each matrix of a stack: none of them is written down."""
    norm = torch.linalg.vector_norm(of, dim=(-2, -1))
    return total.addcmul_(norm, norm, value=factor)


def fitted(layers: Sequence[Layer], rest: Left) -> tuple[Left, Tensor]:
    """What is left when all multipliers are scaled by the number that leaves the least, and that number."""
    along, length = torch.zeros_like(rest.objective), torch.zeros_like(rest.objective)
    whole = torch.zeros_like(rest.objective)
    for layer, missing, lacking in zip(layers, rest.weights, rest.biases, strict=True):
        explained = layer.target - missing
        along = along + (layer.target * explained).sum((-2, -1)) / layer.unit
        length = length + explained.square().sum((-2, -1)) / layer.unit
        whole = whole + layer.target.square().sum() / layer.unit
        if layer.bias_target is not None and lacking is not None:
            explained = layer.bias_target - lacking
            along = along + (layer.bias_target * explained).sum(-1) / layer.bias_unit
            length = length + explained.square().sum(-1) / layer.bias_unit
            whole = whole + layer.bias_target.square().sum() / layer.bias_unit
    factor = (along / length.clamp_min(torch.finfo(length.dtype).tiny)).clamp_min(_LEAST)
    every, row = factor[..., None, None], factor[..., None]
    left_over = Left(
        deltas=[every * delta for delta in rest.deltas],
        weights=[torch.lerp(layer.target, w, every) for layer, w in zip(layers, rest.weights, strict=True)],
        biases=[
            None if layer.bias_target is None or b is None else torch.lerp(layer.bias_target, b, row)
            for layer, b in zip(layers, rest.biases, strict=True)
        ],
        objective=whole - 2 * factor * along + factor.square() * length,
    )
    return left_over, factor


def by_deltas(layers: Sequence[Layer], seen: Forward, rest: Left) -> list[Tensor]:
    """The slope of the objective by each D_k; the last is that by `top`."""
    slopes: list[Tensor] = []
    for place, layer in enumerate(layers):
        factor, own = -2 / layer.unit, None
        if place:
            own = _onto(None, slopes[-1] * seen.slopes[place - 1], layer.weight.T)
        missing, last = rest.weights[place].mT, layer.around and layer.around[0]
        own = _onto(own, layer.below(seen.inputs[place]), missing, factor, last=last)
        if (lacking := rest.biases[place]) is not None:
            own.add_(lacking[..., None, :], alpha=-2 / layer.bias_unit)
        slopes.append(own)
    return slopes


def by_inputs(
    layers: Sequence[Layer],
    seen: Forward,
    rest: Left,
    of_deltas: Sequence[Tensor],
    *,
    of_logits: Tensor | None = None,
    onto: Tensor | None = None,
    times: float = 1.0,
) -> Tensor:
    """The slope by the candidates, added in place to `times` what is given as `onto`; `of_logits` is what comes through
    a `top` that depends on them."""
    of_out = of_logits
    for place in reversed(range(len(layers))):
        layer, (start, share) = layers[place], (None, 1.0) if place else (onto, times)
        if of_out is not None:
            start, share = _onto(start, of_out, layer.weight, times=share), 1.0
        above, last = layer.above(rest.deltas[place]), layer.around and layer.around[1].T
        start = _onto(start, above, rest.weights[place], -2 / layer.unit, times=share, last=last)
        if place == 0:
            return start
        slope = seen.slopes[place - 1]
        if seen.alpha is None:
            of_out = start.mul_(slope)
        else:  # D is a multiple of the slope s, whose own slope is alpha s (1 - s)
            of_out = (of_deltas[place - 1] * rest.deltas[place - 1]).mul_(seen.alpha).lerp_(start, slope)
    raise AssertionError


def _onto(
    start: Tensor | None,
    one: Tensor,
    other: Tensor,
    factor: float = 1.0,
    *,
    times: float = 1.0,
    last: Tensor | None = None,
) -> Tensor:
    """times start + factor one @ other (@ last), in place, added by the product itself; `other` and `last` may be
    shared by the matrices of a stack."""
    if last is not None:
        one, other = one @ other, last
    if start is None:
        start, times = one.new_empty(*one.shape[:-1], other.shape[-1]), 0.0
    if other.ndim == 3:
        return start.baddbmm_(one, other, beta=times, alpha=factor)
    start.view(-1, start.shape[-1]).addmm_(one.reshape(-1, one.shape[-1]), other, beta=times, alpha=factor)
    return start
