"""The training of an MLP with its first layer written in the records, which is most of its weights.

Every gradient of the first weight is a sum of records, so after any steps of SGD it is  W = c W_0 + D' X:  c shrinks by
weight decay alone, and row i of D is what record i has pulled. What the layer puts out is  c X W_0' + X X' D,  so that
X X' and X W_0' are made once, and a step costs what the layers above it cost. The way of the weights is never formed:
its square and its product with the victim's follow from the same products. Exact, for mini-batches and momentum too.

Of fewer records than neurons  W - c W_0  also tells the span: there records are as many numbers as there are records,
and the way is small enough to be formed, so that layers can be compared whitened.
"""

from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks._gates import Gates
from remanence.attacks._simulation import Read
from remanence.engine import mlp as plain_mlp
from remanence.engine.mlp import PlainMlp
from remanence.search.distances import ByProducts, Distance
from remanence.search.whitening import Whitening
from remanence.training import SGD, Training
from remanence.types import Params

_SHRUNK = "shrunk"  # c: a weight without a gradient, which decay acts on as on others


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Spanned:
    net: PlainMlp
    initial: Params
    moved: Params  # how far the victim's weights are from the start, or from what decay left of it
    y: Tensor
    distance: ByProducts
    gates: Gates | None = None  # None: the step that ReLU's slope is
    basis: Tensor | None = None  # whose rows span the records, and in which the first layer then is written
    whitenings: dict[str, Whitening] = field(default_factory=dict)  # with any, layers are compared one by one

    @classmethod
    def of(
        cls, model: nn.Module, training: Training, initial: Params, final: Params, y: Tensor, distance: Distance
    ) -> "Spanned | None":
        """None where the net is no MLP with ReLU, the optimiser not SGD, or the records as many as their features."""
        net = None if training.privacy or training.clip is not None else plain_mlp.of(model, training.loss)
        if net is None or not isinstance(training.optimizer, SGD) or not isinstance(distance, ByProducts):
            return None
        if len(y) >= initial[f"{net.names[0]}.weight"].shape[1]:
            return None
        moved = {name: final[name] - initial[name] for name, _ in model.named_parameters()}
        return cls(net=net, initial=initial, moved=moved, y=y, distance=distance)

    def whitened(self, power: float, *, shrunk: float) -> "Spanned | None":
        """Within the span of the records, `shrunk` being the victim's c; None where the neurons are too few to tell it.
        The last layer has the rank of the classes, and is compared as it is."""
        start, count = self.initial[self.first], len(self.y)
        if count >= len(start) or len(self.net.names) < 2:
            return None
        pulls = {name: moved + (1 - shrunk) * self.initial[name] for name, moved in self.moved.items()}
        basis = torch.linalg.svd(pulls[self.first].double(), full_matrices=False)[2][:count]
        pulls[self.first], start = (_along(basis, weight) for weight in (pulls[self.first], start))
        hidden = [f"{name}.weight" for name in self.net.names[:-1]]
        return replace(
            self,
            initial=self.initial | {self.first: start},
            moved=pulls,
            basis=basis.to(start),
            whitenings={name: Whitening.of(pulls[name], power=power, first=count) for name in hidden},
        )

    @property
    def first(self) -> str:
        return f"{self.net.names[0]}.weight"

    def prepare(self, done: float) -> None:
        if self.gates is not None:
            self.gates.sharpen(done)

    def start(self, records: Tensor) -> Params:
        weight = self.initial[self.first]
        begun = {name: self.initial[name] for name in self.moved}
        return begun | {self.first: weight.new_zeros(len(records), len(weight)), _SHRUNK: weight.new_ones(())}

    def read(self, x: Tensor) -> Read:
        """X W_0', X X' and, to compare at the end, X."""
        flat = self.net.read(self.initial, x)
        flat = flat if self.basis is None else flat @ self.basis.T
        return flat @ self.initial[self.first].T, flat @ flat.T, flat

    def within(self, x: Tensor) -> Tensor:
        if self.basis is None:
            return x
        flat = self.net.read(self.initial, x)
        outside = (flat - flat @ self.basis.T @ self.basis).view_as(x)
        return x - (outside if self.net.standard is None else outside * self.initial[f"{self.net.standard}.spread"])

    def gradient(self, weights: Params, read: Read, y: Tensor, batch: Tensor | None) -> Params:
        out, gram, _ = read
        if batch is not None:
            out, gram, y = out[batch], gram[batch], y[batch]
        out = weights[_SHRUNK] * out + gram @ weights[self.first]
        if self.net.biased[0]:
            out = out + weights[f"{self.net.names[0]}.bias"]
        delta, grads = self.net.above(weights, out, y, self.gates)
        pulled = weights[self.first]
        own = delta if batch is None else torch.zeros_like(pulled).index_copy(0, batch, delta)
        return grads | {self.first: own, _SHRUNK: torch.zeros_like(weights[_SHRUNK])}

    def apart(self, weights: Params, read: Read) -> Tensor:
        return self._layer_by_layer(weights, read) if self.whitenings else self._by_products(weights, read)

    def _layer_by_layer(self, weights: Params, read: Read) -> Tensor:
        """The sum of what the distance says of every layer and bias."""
        apart, (_, _, flat) = [], read
        for name, sent in self.moved.items():
            if name == self.first:
                way = weights[name].T @ flat
            else:
                way = weights[name] - weights[_SHRUNK] * self.initial[name]
            if name in self.whitenings:
                sent, way = self.whitenings[name].target, self.whitenings[name](way)
            apart.append(self.distance(sent.flatten(), way.flatten()))
        return torch.stack(apart).sum()

    def _by_products(self, weights: Params, read: Read) -> Tensor:
        out, gram, flat = read
        pulled, lost, start = weights[self.first], weights[_SHRUNK] - 1, self.initial[self.first]
        product = (pulled * (flat @ self.moved[self.first].T)).sum() + lost * (start * self.moved[self.first]).sum()
        square = ((pulled @ pulled.T) * gram).sum() + lost * (2 * (pulled * out).sum() + lost * start.square().sum())
        for name, moved in self.moved.items():
            if name != self.first:
                way = weights[name] - self.initial[name]
                product, square = product + (way * moved).sum(), square + way.square().sum()
        whole = torch.stack([moved.square().sum() for moved in self.moved.values()]).sum()
        return self.distance.by_products(whole, product, square)

    def told(self) -> str:
        return ""


def _along(basis: Tensor, weight: Tensor) -> Tensor:
    return (weight.double() @ basis.T).to(weight)
