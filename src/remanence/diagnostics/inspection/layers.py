"""The layers of a state dict, found by the names and shapes of its tensors: no network has to be recognised."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import final

from torch import Tensor, nn

from remanence.errors import BadInput
from remanence.types import Params

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)  # tables of vectors, of which no row is a neuron


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """A linear layer or a convolution, in float64."""

    name: str  # of the module, such as `features.0`
    weight: Tensor  # (outputs, inputs, *kernel)
    bias: Tensor | None  # (outputs,)
    is_first: bool  # whether records enter it: by the shape of a record, or the first one of the state dict
    is_last: bool

    @property
    def rows(self) -> Tensor:
        """(outputs, inputs times kernel): the weights of each neuron or kernel."""
        return self.weight.flatten(1)

    @property
    def columns(self) -> Tensor:
        """(inputs, outputs times kernel): what each input is multiplied by."""
        return self.weight.transpose(0, 1).flatten(1)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Scale:
    """The factors of a normalisation, one for each channel, in float64."""

    name: str
    weight: Tensor  # (channels,)


def layers_of(model: nn.Module | None, weights: Params, shape: Sequence[int] | None) -> list[Layer]:
    """Every tensor of two or more dimensions that is called weight, with its bias, in the order of the state dict.

    Embeddings are left out: by their type where there is a `model`, otherwise by their name.
    """
    names = [name for name, w in weights.items() if name.endswith("weight") and w.ndim > 1 and w.is_floating_point()]
    names = [name for name in names if weights[name].numel() and not _is_embedding(model, name)]
    if names and shape is not None:
        _check_shape(names, weights, shape)
    features = prod(shape) if shape is not None else None
    entered = [name for name in names if features is not None and prod(weights[name].shape[1:]) == features]
    entered = entered or names[:1]
    return [
        Layer(
            name=name.removesuffix("weight").rstrip("._") or name,
            weight=weights[name].detach().double(),
            bias=_bias(weights, name),
            is_first=name in entered,
            is_last=len(names) > 1 and name == names[-1],
        )
        for name in names
    ]


def _check_shape(names: Sequence[str], weights: Params, shape: Sequence[int]) -> None:
    """Refuse the shape of a record that no layer takes: a linear one all of its values, or of a sequence those of a
    step, a convolution its channels."""
    if any(_takes(weights[name], shape) for name in names):
        return
    first = weights[names[0]]
    what = "channels" if first.ndim > 2 else "values"
    message = (
        f"`shape` must be that of one record, got {','.join(map(str, shape))}, {prod(shape):,} values: no layer takes "
        f"them, `{names[0]}` has {first.shape[1]:,} {what}; give the right one, or leave it out"
    )
    raise BadInput(message, code="shape-mismatch", argument="shape")


def _takes(weight: Tensor, shape: Sequence[int]) -> bool:
    if weight.ndim > 2:
        return shape[0] % weight.shape[1] == 0  # of grouped channels a part
    return weight.shape[1] in (prod(shape), *(shape[-1:] if len(shape) == 2 else ()))


def scales_of(weights: Params) -> list[Scale]:
    """Every vector that is called weight: the factors of batch, layer and group normalisation."""
    return [
        Scale(name=name.removesuffix("weight").rstrip("._") or name, weight=w.detach().double())
        for name, w in weights.items()
        if name.endswith("weight") and w.ndim == 1 and w.is_floating_point() and w.numel()
    ]


def _is_embedding(model: nn.Module | None, name: str) -> bool:
    if model is None:
        return "embed" in name.lower()
    modules = dict(model.named_modules())
    return isinstance(modules.get(name.rpartition(".")[0]), _EMBEDDINGS)


def _bias(weights: Params, name: str) -> Tensor | None:
    bias = weights.get(f"{name.removesuffix('weight')}bias")
    return bias.detach().double() if bias is not None and bias.shape == weights[name].shape[:1] else None
