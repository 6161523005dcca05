"""The owner's records as `Data` for a release."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from remanence.bounds import Bounds, described, hull
from remanence.errors import BadInput
from remanence.types import Data


def as_data(given: Any, release: Any, argument: str) -> Data:
    """`given` as `Data`, which may be a pair (x, y) of arrays or tensors, of the shape, the box and the classes of
    `release`."""
    data = given if isinstance(given, Data) else _from_pair(given, release, argument)
    shape = tuple(release.shape)
    if data.shape != shape:
        if data.x[0].numel() != torch.Size(shape).numel():
            message = f"`{argument}` must hold records of the release's shape {shape}, got {data.shape}"
            raise BadInput(message, code="shape-mismatch", argument=argument)
        data = replace(data, x=data.x.reshape(-1, *shape))
    data = _in_box(data, release.bounds, argument)
    classes = getattr(release, "num_classes", data.num_classes)
    if classes != data.num_classes and (not len(data) or int(data.y.max()) < classes):
        data = replace(data, num_classes=classes)
    if not len(data):
        raise BadInput(f"`{argument}` holds no record: give some", code="empty", argument=argument)
    return data.to(_like(release).device, _like(release).dtype)


def _in_box(data: Data, bounds: Bounds, argument: str) -> Data:
    """The records with the box of the release, in which attacks search; those that do not lie in it are refused."""
    if data.bounds == bounds:
        return data
    low, high = (float(each) for each in torch.aminmax(data.x)) if len(data) else bounds
    if hull([bounds, (low, high)]) != bounds:
        message = (
            f"`{argument}` has values from {low:g} to {high:g}, and the release says that records lie in "
            f"{described(bounds)}, where attacks would search: rescale the records, or make the release with "
            f"bounds={data.bounds}"
        )
        raise BadInput(message, code="out-of-range", argument=argument)
    return replace(data, bounds=bounds)


def _like(release: Any) -> Tensor:
    params = release.final if hasattr(release, "final") else release.at
    like: Tensor = next(p for p in params.values() if p.is_floating_point())
    return like


def _from_pair(given: Any, release: Any, argument: str) -> Data:
    if not isinstance(given, tuple | list) or len(given) != 2:
        message = f"`{argument}` must be Data or a pair (x, y) of arrays, got {type(given).__name__}"
        raise BadInput(message, code="wrong-type", argument=argument)
    if (encoder := getattr(release.model, "encoder", None)) is not None:
        encoded: Data = encoder.encode(given[0], given[1], argument)
        return encoded
    x, y = torch.as_tensor(given[0]), torch.as_tensor(given[1]).long()
    if not x.is_floating_point():
        x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    classes = getattr(release, "num_classes", None) or int(y.max()) + 1
    if len(y) and int(y.min()) == 1 and int(y.max()) == classes:
        message = f"labels of `{argument}` count from 1, up to {classes}, and must lie in 0..{classes - 1}: subtract 1"
        raise BadInput(message, code="out-of-range", argument=argument)
    return Data(x=x, y=y.flatten(), num_classes=classes, name=argument, bounds=release.bounds)
