"""Input normalisation by buffers, which are released with the weights and never trained."""

from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

from remanence.errors import BadInput
from remanence.types import Params

Constants: TypeAlias = float | Sequence[float] | Tensor
_NORMALIZE, _MODEL = "normalize", "model"  # the two parts of a wrapped model


@final
class Centre(nn.Module):
    """Subtracts a mean from flat records."""

    mean: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.mean


@final
class Standardise(nn.Module):
    """Subtracts the mean of each channel of images and divides by its standard deviation."""

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


@final
class Normalize(nn.Module):
    """(x - mean) / std with known numbers: one for all values, one for each channel of images, or one for each feature.

    As the transform of the same name in torchvision, with the numbers as buffers.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Constants, std: Constants) -> None:
        super().__init__()
        centre, scale = _constants("mean", mean), _constants("std", std)
        if not bool((scale > 0).all()):
            message = f"`std` of Normalize must be above 0, got {scale.min():g}: leave out constant features"
            raise BadInput(message, code="out-of-range", argument="std")
        if 1 not in (centre.numel(), scale.numel()) and centre.shape != scale.shape:
            message = f"`mean` and `std` of Normalize must be alike, got {tuple(centre.shape)} and {tuple(scale.shape)}"
            raise BadInput(message, code="shape-mismatch", argument="std")
        self.register_buffer("mean", centre)
        self.register_buffer("std", scale)

    def forward(self, x: Tensor) -> Tensor:
        mean, std = (each.reshape(broadcast_shape(each.shape, x.shape[1:])) for each in (self.mean, self.std))
        return (x - mean) / std

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={_said(each)}" for name, each in (("mean", self.mean), ("std", self.std)))


def broadcast_shape(constants: Sequence[int], record: Sequence[int]) -> tuple[int, ...]:
    """The shape in which numbers of a shape are broadcast with records: by channel, or by feature."""
    constants, record = tuple(constants), tuple(record)
    count = prod(constants)
    if count == 1:
        return ()
    if count == record[0]:
        return (count, *[1] * (len(record) - 1))
    if count == prod(record):
        return record
    message = (
        f"Normalize must have one number, one for each of the {record[0]} channels or one for each of the "
        f"{prod(record)} values of a record, got {count}"
    )
    raise BadInput(message, code="shape-mismatch", argument="mean")


def normalized(model: nn.Module, mean: Constants, std: Constants) -> nn.Sequential:
    """`model` after `Normalize(mean, std)`: a network of records in [0, 1], as they are before the normalisation.

    The parameters of `model` have their names after the prefix ``model.``: see `normalized_params`. Of a network that
    this function made, the two normalisations become one.
    """
    first, second, inner = Normalize(mean, std), normalisation_of(model), model
    if second is not None and _alike(first, second):
        first = Normalize(first.mean + first.std * second.mean, first.std * second.std)
        inner = model.get_submodule(_MODEL)
    return nn.Sequential(OrderedDict([(_NORMALIZE, first), (_MODEL, inner)])).train(model.training)


def normalisation_of(model: nn.Module) -> Normalize | None:
    """The normalisation that `normalized` put before a network; None where it made none."""
    if not isinstance(model, nn.Sequential) or [name for name, _ in model.named_children()] != [_NORMALIZE, _MODEL]:
        return None
    first = model.get_submodule(_NORMALIZE)
    return first if isinstance(first, Normalize) else None


def _alike(one: Normalize, other: Normalize) -> bool:
    """Whether numbers are for the same values: for all of them, or for as many."""
    sizes = {each.numel() for each in (one.mean, one.std, other.mean, other.std)} - {1}
    return len(sizes) < 2


def normalized_params(wrapped: nn.Sequential, params: Params) -> Params:
    """The weights of a `normalized` network from those of the model inside, its buffers among them."""
    first = wrapped.get_submodule(_NORMALIZE)
    like = next((p for p in params.values() if p.is_floating_point()), torch.zeros(()))
    held = {f"{_NORMALIZE}.{name}": buffer.to(like) for name, buffer in first.named_buffers()}
    return held | {f"{_MODEL}.{name}": p for name, p in params.items()}


def _constants(name: str, given: Constants) -> Tensor:
    try:
        found = torch.as_tensor(given, dtype=torch.get_default_dtype(), device="cpu").detach().clone()
    except (TypeError, ValueError, RuntimeError):
        message = f"`{name}` of Normalize must be a number or a sequence of numbers, got {type(given).__name__}"
        raise BadInput(message, code="wrong-type", argument=name) from None
    if not found.numel() or not bool(found.isfinite().all()):
        message = f"`{name}` of Normalize must hold finite numbers, got {_said(found)}"
        raise BadInput(message, code="not-finite" if found.numel() else "empty", argument=name)
    return found


def _said(constants: Tensor) -> str:
    flat = [f"{value:.4g}" for value in constants.flatten()[:4].tolist()]
    return f"({', '.join(flat)}{', ...' if constants.numel() > len(flat) else ''})"
