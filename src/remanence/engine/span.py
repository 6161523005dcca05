"""Long full-batch gradient descent of MLPs with fewer records than features, in the span of the records.

Each step adds to the first layer a combination of records, so that after t steps, with inputs x (records, features),

    W_1 = s^t W_1(0) + A' x,    b_1 = s^t b_1(0) + A' 1,    s = 1 - lr * weight decay,

and the pre-activations are  s^t Z(0) + (x x' + 1) A.  To keep A (records, width) in place of W_1 (width, features)
gives the same weights up to rounding: 500 records of CIFAR-10 take 3.5 GFLOP an epoch at width 1000 in place of 9.2,
and far less memory traffic. Several models are trained as a stack; on a CUDA device many epochs are one captured graph.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from remanence.engine.cuda import replayed
from remanence.engine.mlp import MLPEngine, mlp_engine
from remanence.errors import BadInput
from remanence.training import SGD, Training
from remanence.types import Data, Params

_EPOCHS_PER_GRAPH = 20
_COEFFICIENTS, _START = "coefficients", "start"


@final
class SpanTraining:
    """MLPs of one architecture, each trained on its own records; `advance` trains on, from `done` epochs.

    `state` holds all that changes: the coefficients A, the later layers, and what is left of the initial
    pre-activations. Copied to disk and back with `load` it resumes a training that was stopped.
    """

    def __init__(self, training: Training, model: nn.Module, initial: Sequence[Params], data: Sequence[Data]) -> None:
        self.engine, self.training, self.initial = _engine(training, model, data), training, list(initial)
        first, *later = self.engine.structure.layers
        self.first, self.later = first, [layer.weight for layer in later]
        inputs = [self.engine.inputs(params, each.x) for params, each in zip(initial, data, strict=True)]
        self.inputs, self.labels = _stacked(inputs), _stacked([each.y for each in data])
        self.gram = self.inputs @ self.inputs.mT + float(first.has_bias)
        start = [
            x @ p[first.weight].T + (p[first.bias] if first.has_bias else 0)
            for x, p in zip(inputs, initial, strict=True)
        ]
        self.state: Params = {_START: _stacked(start), _COEFFICIENTS: torch.zeros_like(_stacked(start))}
        self.state |= {name: _stacked([p[name] for p in initial]) for name in self.later}
        self.done = 0
        self._replay = replayed(self._epochs, lambda: list(self.state.values()))

    def load(self, state: Params, done: int) -> None:
        """Continue from a `state` that was saved after `done` epochs."""
        for name, value in self.state.items():
            value.copy_(state[name])
        self.done = done

    def advance(self, epochs: int) -> None:
        """Train for so many epochs more."""
        for _ in range(epochs // _EPOCHS_PER_GRAPH):
            self._replay()
        for _ in range(epochs % _EPOCHS_PER_GRAPH):
            self._epoch()
        self.done += epochs

    def weights(self) -> list[Params]:
        """The weights of each model as they are now."""
        shrunk = (1 - self.training.optimizer.lr * self.training.weight_decay) ** self.done
        coefficients, found = self.state[_COEFFICIENTS], []
        for index, params in enumerate(self.initial):
            one, inputs = _one(coefficients, index), _one(self.inputs, index)
            now = dict(params) | {name: _one(self.state[name], index).clone() for name in self.later}
            now[self.first.weight] = shrunk * params[self.first.weight] + one.T @ inputs
            if self.first.has_bias:
                now[self.first.bias] = shrunk * params[self.first.bias] + one.sum(0)
            found.append(now)
        return found

    def _epochs(self) -> None:
        for _ in range(_EPOCHS_PER_GRAPH):
            self._epoch()

    @torch.no_grad()
    def _epoch(self) -> None:
        """One step of gradient descent, in place."""
        state, lr = self.state, self.training.optimizer.lr
        keep = 1 - lr * self.training.weight_decay
        values = [_add(state[_START], self.gram, state[_COEFFICIENTS]).relu_()]
        for name in self.later:
            values.append(values[-1] @ state[name].mT)
            if name != self.later[-1]:
                values[-1].relu_()
        delta = self.engine.loss.grad_logits(values.pop(), self.labels).div_(self.labels.shape[-1])
        for name, value in zip(reversed(self.later), reversed(values), strict=True):
            weight, before = state[name], delta
            delta = torch.ops.aten.threshold_backward(delta @ weight, value, 0)
            _add(weight, before.mT, value, beta=keep, alpha=-lr, out=weight)
        if keep != 1:
            state[_START].mul_(keep)
            state[_COEFFICIENTS].mul_(keep)
        state[_COEFFICIENTS].add_(delta, alpha=-lr)


def _engine(training: Training, model: nn.Module, data: Sequence[Data]) -> MLPEngine:
    engine = mlp_engine(model, training.loss, data[0].shape)
    plain = isinstance(training.optimizer, SGD) and not training.optimizer.momentum and training.lr_schedule == ()
    plain = plain and (training.decay_biases or not training.weight_decay)
    full_batch = training.batch_size is None and training.clip is None and training.privacy is None
    if engine is None or any(layer.has_bias for layer in engine.structure.layers[1:]) or not (plain and full_batch):
        raise BadInput(
            "SpanTraining is for MLPs with ReLU and no bias but the first layer's, trained on full batches by SGD "
            "without momentum, schedule, clipping and DP-GD, with decay of biases too, on a loss of ours: use train() "
            "for others",
            code="unsupported-training",
            argument="training",
        )
    return engine


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """A stack of several; a single one stays as it is, as single matrix products are faster than stacks of one."""
    return tensors[0].clone() if len(tensors) == 1 else torch.stack(list(tensors))


def _one(tensor: Tensor, index: int) -> Tensor:
    return tensor if tensor.ndim == 2 else tensor[index]


def _add(
    total: Tensor, one: Tensor, other: Tensor, *, beta: float = 1.0, alpha: float = 1.0, out: Tensor | None = None
) -> Tensor:
    """beta total + alpha one @ other, of matrices or stacks of them."""
    add = torch.addmm if total.ndim == 2 else torch.baddbmm
    return add(total, one, other, beta=beta, alpha=alpha, out=out)
