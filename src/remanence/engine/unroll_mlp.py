"""The training of an MLP with its first layer expressed in the records, which is most of its weights.

Every gradient of the first weight is a sum of records, so after any steps of SGD it is  W = c W_0 + D' X:  c shrinks by
weight decay alone, and row i of D is the sum of record i's backpropagated errors. The layer's output is  c X W_0' +
X X' D,  so that X X' and X W_0' are computed once, and a step costs what the layers above cost. The update of the
weights is never formed: its norm and its inner product with the victim's follow from the same products. Exact, for
mini-batches and momentum too.

With fewer records than neurons  W - c W_0  also gives the span of the records: there each is as many coordinates as
there are records, and the update is small enough to be formed, so that layers can be compared one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from remanence.engine.chooser import engine_for
from remanence.engine.mlp import MLPEngine
from remanence.engine.surrogate import SurrogateState
from remanence.engine.unroll import Inputs, Products
from remanence.training import SGD, Training
from remanence.types import Params

_DECAY = "decay"  # c: a weight without a gradient, which weight decay acts on as on others


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SpanDynamics:
    """`Dynamics` of an MLP with ReLU that is trained by SGD, in the span of its records."""

    net: MLPEngine
    initial: Params
    update: Params  # the victim's weights less the initial ones, or less what decay left of them
    surrogate: SurrogateState | None = None  # None: ReLU's own derivative
    basis: Tensor | None = None  # (records, features) spans the records; the first layer is then in these coordinates

    @classmethod
    def from_release(
        cls, model: nn.Module, training: Training, initial: Params, final: Params, *, records: int, shape: Sequence[int]
    ) -> "SpanDynamics | None":
        """None where the net is no MLP with ReLU, the optimizer not SGD, the records as many as their features, or
        weights decayed but not biases."""
        net = engine_for(model, training, shape)
        if training.weight_decay and not training.decay_biases:
            return None
        if training.clip is not None or not isinstance(training.optimizer, SGD) or not isinstance(net, MLPEngine):
            return None
        if records >= initial[f"{net.names[0]}.weight"].shape[1]:
            return None
        update = {name: final[name] - initial[name] for name, _ in model.named_parameters()}
        return cls(net=net, initial=initial, update=update)

    def in_basis(self, records: int, *, decay: float) -> "SpanDynamics | None":
        """In the span of the records that the victim's first layer gives, where `decay` is its c; None where there are
        too few neurons for it."""
        start = self.initial[self.first]
        if records >= len(start) or len(self.net.names) < 2:
            return None
        update = {name: delta + (1 - decay) * self.initial[name] for name, delta in self.update.items()}
        basis = torch.linalg.svd(update[self.first].double(), full_matrices=False)[2][:records]
        update[self.first], start = ((w.double() @ basis.T).to(w) for w in (update[self.first], start))
        return replace(self, initial=self.initial | {self.first: start}, update=update, basis=basis.to(start))

    @property
    def first(self) -> str:
        return f"{self.net.names[0]}.weight"

    @property
    def hidden(self) -> list[str]:
        """The weights of all layers but the last."""
        return [f"{name}.weight" for name in self.net.names[:-1]]

    def set_progress(self, progress: float) -> None:
        if self.surrogate is not None:
            self.surrogate.set_progress(progress)

    def initial_weights(self, records: Tensor) -> Params:
        weight = self.initial[self.first]
        weights = {name: self.initial[name] for name in self.update}
        return weights | {self.first: weight.new_zeros(len(records), len(weight)), _DECAY: weight.new_ones(())}

    def inputs(self, x: Tensor) -> Inputs:
        """X W_0', X X' and, to compare updates, X."""
        flat = self.net.inputs(self.initial, x)
        flat = flat if self.basis is None else flat @ self.basis.T
        return flat @ self.initial[self.first].T, flat @ flat.T, flat

    def project(self, x: Tensor) -> Tensor:
        """Records without what lies outside the basis."""
        if self.basis is None:
            return x
        flat = self.net.inputs(self.initial, x)
        return x - self.net.structure.to_records(self.initial, flat - flat @ self.basis.T @ self.basis)

    def gradient(self, weights: Params, inputs: Inputs, y: Tensor, batch: Tensor | None) -> Params:
        out, gram, _ = inputs
        if batch is not None:
            out, gram, y = out[batch], gram[batch], y[batch]
        out = weights[_DECAY] * out + gram @ weights[self.first]
        if self.net.biased[0]:
            out = out + weights[f"{self.net.names[0]}.bias"]
        delta, grads = self.net.backward(weights, out, y, self.surrogate and self.surrogate.derivative)
        if batch is not None:
            delta = torch.zeros_like(weights[self.first]).index_copy(0, batch, delta)
        return grads | {self.first: delta, _DECAY: torch.zeros_like(weights[_DECAY])}

    def compare(self, weights: Params, inputs: Inputs) -> Products:
        out, gram, flat = inputs
        deltas, shrunk, start = weights[self.first], weights[_DECAY] - 1, self.initial[self.first]
        target = self.update[self.first]
        product = (deltas * (flat @ target.T)).sum() + shrunk * (start * target).sum()
        square = ((deltas @ deltas.T) * gram).sum() + shrunk * (
            2 * (deltas * out).sum() + shrunk * start.square().sum()
        )
        for name, target in self.update.items():
            if name != self.first:
                update = weights[name] - self.initial[name]
                product, square = product + (update * target).sum(), square + update.square().sum()
        total = torch.stack([target.square().sum() for target in self.update.values()]).sum()
        return Products(target=total, product=product, update=square)

    def layers(self, weights: Params, inputs: Inputs) -> Params:
        """The simulated update of each weight and bias, less what decay left of the initial ones; in the basis."""
        return {
            name: weights[name].T @ inputs[2]
            if name == self.first
            else weights[name] - weights[_DECAY] * self.initial[name]
            for name in self.update
        }

    def describe(self) -> str:
        return ""
