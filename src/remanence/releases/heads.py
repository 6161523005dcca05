"""A released network split at its first fully connected layer: convolutions that are known, and a head on features.

The layers after the convolutions are an MLP on the features of the records. Weight decay balances the gradient of the
loss in each layer, so that what holds of the weights of an MLP and its records holds of the head and these features.
"""

from dataclasses import dataclass
from math import inf
from typing import final

from torch import nn

from remanence.bounds import Bounds
from remanence.errors import BadInput
from remanence.models import Backbone, Unsupported, first_linear, split_at_first_linear
from remanence.models.operations import Activation, Flatten, GlobalMean, MaxPool
from remanence.releases.protocols import KnowsFinal, KnowsUpdate
from remanence.releases.releases import Gradient, WeightsOnly
from remanence.types import Params

_RANGES: dict[type[nn.Module], Bounds] = {
    nn.ReLU: (0.0, inf),
    nn.ReLU6: (0.0, 6.0),
    nn.Sigmoid: (0.0, 1.0),
    nn.Tanh: (-1.0, 1.0),
    nn.Softplus: (0.0, inf),
}


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SplitRelease:
    """The layers before the first fully connected one, with their released weights, and a release of the others, whose
    records are features."""

    backbone: Backbone
    head: WeightsOnly


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SplitGradient:
    """`SplitRelease` of a gradient: that of the fully connected layers is one of features."""

    backbone: Backbone
    head: Gradient


def split_release(release: KnowsFinal) -> SplitRelease:
    """Split the network of `release` at its first fully connected layer; weights keep their names."""
    backbone, model, names = _parts(release.model, release.final, release.shape)
    head = WeightsOnly(
        model=model,
        final={name: p for name, p in release.final.items() if name in names},
        shape=(backbone.width,),
        bounds=_bounds(release.model, release.shape),
        num_classes=release.num_classes,
    )
    return SplitRelease(backbone=backbone, head=head)


def split_gradient(release: KnowsUpdate) -> SplitGradient:
    """Split the network of `release` at its first fully connected layer that was sent: a client may train the last
    layers alone. The update of several steps is taken for one gradient."""
    backbone, model, names = _parts(release.model, release.at, release.shape, trained=release.sent)
    first = first_linear(release.model, release.shape)
    is_first = not isinstance(first, Unsupported) and first.layer.weight in names
    head = Gradient(
        model=model,
        at={name: p for name, p in release.at.items() if name in names},
        gradient={name: g for name, g in release.sent.items() if name in names},
        labels=release.labels,
        batch_size=release.batch_size,
        shape=(backbone.width,),
        bounds=_bounds(release.model, release.shape) if is_first else (-inf, inf),
        loss=release.loss,
        batch_norm=release.batch_norm,
    )
    return SplitGradient(backbone=backbone, head=head)


def _parts(
    model: nn.Module, params: Params, shape: tuple[int, ...], *, trained: Params | None = None
) -> tuple[Backbone, nn.Module, set[str]]:
    """What is before the first fully connected layer, or the first `trained` one, the network from it on, and the names
    of its weights."""
    if len(shape) != 3:
        message = f"`release` must be of images (channels, height, width) to split its model, got {shape}"
        raise BadInput(message, code="shape-mismatch", argument="release")
    parts = split_at_first_linear(model, shape, trained=trained)
    if isinstance(parts, Unsupported):
        message = f"the `model` cannot be split at its first fully connected layer: {parts.reason}"
        raise BadInput(message, code="unsupported-model", argument="release")
    before, after = parts
    names = [set(part.state_dict(keep_vars=True)) for part in parts]
    if shared := sorted(names[0] & names[1]):
        message = f"the `model` cannot be split at its first fully connected layer: both parts use `{shared[0]}`"
        raise BadInput(message, code="unsupported-model", argument="release")
    backbone = Backbone(
        name=f"first layers of {type(model).__name__}",
        model=before,
        params={name: p for name, p in params.items() if name in names[0]},
        shape=tuple(shape),
    )
    return backbone, after, names[1]


def _bounds(model: nn.Module, shape: tuple[int, ...]) -> Bounds:
    """The box of features: what the last activation puts out, which pooling leaves as it is; without one all numbers,
    as where what is before the layer is not recognised."""
    first = first_linear(model, shape)
    for operation in reversed(() if isinstance(first, Unsupported) else first.before):
        if isinstance(operation, Activation):
            return _RANGES.get(type(operation.module), (-inf, inf))
        if not isinstance(operation, Flatten | MaxPool | GlobalMean):
            break
    return (-inf, inf)
