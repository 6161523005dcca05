"""The training of an MLP with its first layer written in the records, which is most of its weights.

Every gradient of the first weight is a sum of records, so after any steps of SGD it is  W = c W_0 + D' X:  c shrinks by
weight decay alone, and row i of D is what record i has pulled. What the layer puts out is  c X W_0' + X X' D,  so that
X X' and X W_0' are made once, and a step costs what the layers above it cost. The way of the weights is never formed:
its square and its product with the victim's follow from the same products. Exact, for mini-batches and momentum too.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks._simulation import Read
from remanence.attacks.gradient_matching import ByProducts, Distance
from remanence.training import SGD, Training, plain_mlp
from remanence.training.plain_mlp import PlainMlp
from remanence.types import Params

_SHRUNK = "shrunk"  # c: a weight without a gradient, which decay acts on as on others


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Spanned:
    net: PlainMlp
    initial: Params
    moved: Params  # how far the victim's weights are from the start
    y: Tensor
    distance: ByProducts

    @classmethod
    def of(
        cls, model: nn.Module, training: Training, initial: Params, final: Params, y: Tensor, distance: Distance
    ) -> "Spanned | None":
        """None where the net is no MLP with ReLU, the optimiser not SGD, or the records as many as their features."""
        net = None if training.privacy else plain_mlp.of(model, training.loss)
        if net is None or not isinstance(training.optimizer, SGD) or not isinstance(distance, ByProducts):
            return None
        if len(y) >= initial[f"{net.names[0]}.weight"].shape[1]:
            return None
        moved = {name: final[name] - initial[name] for name, _ in model.named_parameters()}
        return cls(net=net, initial=initial, moved=moved, y=y, distance=distance)

    @property
    def first(self) -> str:
        return f"{self.net.names[0]}.weight"

    def start(self, records: Tensor) -> Params:
        weight = self.initial[self.first]
        begun = {name: self.initial[name] for name in self.moved}
        return begun | {self.first: weight.new_zeros(len(records), len(weight)), _SHRUNK: weight.new_ones(())}

    def read(self, x: Tensor) -> Read:
        """X W_0', X X' and, to compare at the end, X times the victim's way."""
        flat = self.net.read(self.initial, x)
        return flat @ self.initial[self.first].T, flat @ flat.T, flat @ self.moved[self.first].T

    def gradient(self, weights: Params, read: Read, batch: Tensor | None) -> Params:
        out, gram, _ = read
        y = self.y
        if batch is not None:
            out, gram, y = out[batch], gram[batch], y[batch]
        out = weights[_SHRUNK] * out + gram @ weights[self.first]
        if self.net.biased[0]:
            out = out + weights[f"{self.net.names[0]}.bias"]
        delta, grads = self.net.above(weights, out, y)
        pulled = weights[self.first]
        own = delta if batch is None else torch.zeros_like(pulled).index_copy(0, batch, delta)
        return grads | {self.first: own, _SHRUNK: torch.zeros_like(weights[_SHRUNK])}

    def apart(self, weights: Params, read: Read) -> Tensor:
        out, gram, along = read
        pulled, lost, start = weights[self.first], weights[_SHRUNK] - 1, self.initial[self.first]
        product = (pulled * along).sum() + lost * (start * self.moved[self.first]).sum()
        square = ((pulled @ pulled.T) * gram).sum() + lost * (2 * (pulled * out).sum() + lost * start.square().sum())
        for name, moved in self.moved.items():
            if name != self.first:
                way = weights[name] - self.initial[name]
                product, square = product + (way * moved).sum(), square + way.square().sum()
        whole = torch.stack([moved.square().sum() for moved in self.moved.values()]).sum()
        return self.distance.by_products(whole, product, square)

    def told(self) -> str:
        return ""
