"""The gradient of a convolutional net with ReLU, written out, and how it changes along a direction.

All trained weights are one vector, so that a step of the optimiser is one kernel. A frozen BatchNorm is a factor and a
shift of each channel, and is folded into the convolution in front of it: the factor acts on its kernel, not on images.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import final

import torch
from torch import Tensor, nn

from remanence.nets import Standardise
from remanence.training._one_vector import Norms, Order
from remanence.training._passes import Convolution, Layer, Tape, Weights, back, back_along, forward, forward_along
from remanence.training._read_cnn import Named, folded, inside, layers_of, parts
from remanence.training.losses import CrossEntropy, KnownLoss, Logistic, Loss, SquaredError
from remanence.types import Params


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class PlainCnn:
    layers: tuple[Layer, ...]
    order: Order
    norms: Norms
    standard: str | None  # the layer that standardises the images
    loss: KnownLoss

    def read(self, params: Params, x: Tensor) -> Tensor:
        """What the first convolution gets."""
        if self.standard is not None:
            x = (x - params[f"{self.standard}.mean"]) / params[f"{self.standard}.spread"]
        return x.contiguous(memory_format=self.order.form)

    def tape(self, weights: Tensor, x: Tensor, y: Tensor, *, records: int, pulls: bool) -> Tape:
        """Forward and back, for the mean loss of `records` of which these are some; with what pulls at the weights."""
        tape = Tape(at=self._folded(weights))
        logits = forward(self.layers, tape, x.contiguous(memory_format=self.order.form))
        tape.inputs[_LOGITS] = logits
        back(self.layers, tape, self.loss.slopes(logits, y) / records, pulls=pulls)
        return tape

    def gradient(self, weights: Tensor, tape: Tape) -> Tensor:
        """From a tape with pulls, which are taken off it."""
        found = torch.empty_like(weights)
        named, at = self.order.named(found), self.order.named(weights)
        scales = self.norms.scales(weights)
        products = []
        for name in self.order.layers:
            pull = tape.pulls.pop(name)
            if name in scales:
                torch.mul(pull, scales[name], out=named[f"{name}.weight"])
                products.append((pull * at[f"{name}.weight"]).sum((1, 2, 3)))
            else:
                named[f"{name}.weight"].copy_(pull)
        self._shift(found, named, tape, products)
        return found

    def along(self, weights: Tensor, way: Tensor, tape: Tape, y: Tensor, *, records: int) -> tuple[Tensor, Tensor]:
        """How the gradient by weights and by images changes along `way`, from a tape at `weights`."""
        along = Tape(at=self._folded_along(weights, way))
        moved, logits = forward_along(self.layers, tape, along, None), tape.inputs[_LOGITS]
        by_images = back_along(self.layers, tape, along, self.loss.slopes_along(logits, y, moved) / records)
        found = torch.empty_like(weights)
        named, at, ways = (self.order.named(each) for each in (found, weights, way))
        scales, changes, products = self.norms.scales(weights), self.norms.scales(way), []
        for name in self.order.layers:
            pulls, weight = along.pulls.pop(name), f"{name}.weight"
            count = len(at[weight])
            if name in scales:
                torch.mul(pulls[:count], scales[name], out=named[weight]).addcmul_(pulls[count:], changes[name])
                products.append((pulls[:count] * at[weight]).addcmul_(pulls[count:], ways[weight]).sum((1, 2, 3)))
            else:
                named[weight].copy_(pulls[:count])
        self._shift(found, named, along, products)
        return found, by_images

    def held(self, shape: Sequence[int], records: int) -> int:
        """Numbers that a tape of so many records of this shape holds, without pulls."""
        norms = replace(self.norms, mean=self.norms.mean.to("meta"), rate=self.norms.rate.to("meta"))
        net, like = replace(self, norms=norms), norms.mean
        weights = like.new_empty(sum(prod(shape) for shape in self.order.shapes.values()))
        labels = torch.zeros(records, dtype=torch.int64, device="meta")
        return net.tape(weights, like.new_empty(records, *shape), labels, records=records, pulls=False).held()

    def _folded(self, weights: Tensor) -> Weights:
        named, scales = self.order.named(weights), self.norms.scales(weights)
        kernels = {name: named[f"{name}.weight"] for name in self.order.layers}
        kernels |= {name: kernels[name] * scale for name, scale in scales.items()}
        return Weights(kernels=kernels, shifts=self._shifts(weights, named))

    def _folded_along(self, weights: Tensor, way: Tensor) -> Weights:
        at, named = self.order.named(weights), self.order.named(way)
        scales, changes = self.norms.scales(weights), self.norms.scales(way)
        kernels = {name: named[f"{name}.weight"] for name in self.order.layers}
        for name, scale in scales.items():
            kernels[name] = (kernels[name] * scale).addcmul_(at[f"{name}.weight"], changes[name])
        return Weights(kernels=kernels, shifts=self._shifts(way, named))

    def _shifts(self, weights: Tensor, named: Params) -> Params:
        """Linear in the weights, so that a direction has them too."""
        own = {name: named[f"{name}.bias"] for name in self.order.layers if f"{name}.bias" in named}
        return own | self.norms.shifts(weights)

    def _shift(self, found: Tensor, named: Params, tape: Tape, products: list[Tensor]) -> None:
        """What pulls at biases, and at the factors and shifts of norms, of which `products` tell the first part."""
        for name in self.order.layers:
            if f"{name}.bias" in named:
                named[f"{name}.bias"].copy_(tape.shifted[name])
        if products:
            self.norms.pull(found, torch.cat(products), torch.cat([tape.shifted[name] for name in self.norms.after]))


_LOGITS = "logits"


def of(
    model: nn.Module, params: Params, loss: Loss, *, form: torch.memory_format = torch.contiguous_format
) -> PlainCnn | None:
    """None where the model is something else, or the loss not one of ours."""
    named = list(parts("", model))
    standard = named.pop(0)[0] if named and isinstance(named[0][1], Standardise) else None
    layers, order, norms = layers_of(named), _order(model, named, form), folded(named)
    if not layers or not isinstance(layers[0], Convolution) or order is None:
        return None
    if not isinstance(loss, CrossEntropy | Logistic | SquaredError):
        return None
    return PlainCnn(layers=layers, order=order, norms=_norms(model, norms, order, params), standard=standard, loss=loss)


def _order(model: nn.Module, named: Sequence[Named], form: torch.memory_format) -> Order | None:
    """None where a layer is used twice, or holds other weights."""
    shapes, norms = {name: tuple(p.shape) for name, p in model.named_parameters()}, folded(named).values()
    layers = [path for path, module in inside(named) if isinstance(module, nn.Conv2d | nn.Linear)]
    names = [f"{path}.weight" for path in (*layers, *norms)] + [f"{path}.bias" for path in norms]
    names += [f"{path}.bias" for path in layers if f"{path}.bias" in shapes]
    if sorted(names) != sorted(shapes):
        return None
    return Order(shapes={name: shapes[name] for name in names}, layers=tuple(layers), form=form)


def _norms(model: nn.Module, norms: dict[str, str], order: Order, params: Params) -> Norms:
    modules, like = dict(model.named_modules()), params[f"{order.layers[0]}.weight"]
    means, rates = [like.new_empty(0)], [like.new_empty(0)]
    for norm in norms.values():
        means.append(params[f"{norm}.running_mean"])
        rates.append((params[f"{norm}.running_var"] + modules[norm].eps).rsqrt())
    return Norms(
        after={conv: len(mean) for conv, mean in zip(norms, means[1:], strict=True)},
        first=sum(prod(order.shapes[f"{name}.weight"]) for name in order.layers),
        mean=torch.cat(means),
        rate=torch.cat(rates),
    )
