"""What federated clients dump with numpy: the lists of Flower's `NumPyClient`, the dicts of NVFlare's `DXO`.

    np.savez("before.npz", *parameters)                                    # Flower: in the order of the state dict
    np.savez("after.npz", data_kind=dxo.data_kind, **dxo.data)             # NVFlare: by name; weights or differences

Neither framework is needed, and nothing is unpickled.
"""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from remanence.data.npz import opened_npz
from remanence.errors import BadModelFile, printable
from remanence.releases.loading import check_same_tensors, descriptions
from remanence.types import Params

_KIND = "data_kind"
_DIFFERENCE = "WEIGHT_DIFF"
_COUNTERS = "num_batches_tracked"  # of BatchNorm, which some clients leave out


def load_dump(path: Path, expected: Mapping[str, Tensor], notes: list[str], *, before: Params | None = None) -> Params:
    """The weights in the .npz `path` by the names of `expected`, the state dict of the model; differences are added to
    the weights `before`. `notes` gets a sentence on what was done."""
    with opened_npz(path) as file:
        keys = list(file.keys)
        arrays = file.load(keys)
    kind = str(arrays.pop(_KIND)) if _KIND in arrays else "WEIGHTS"
    if kind not in ("WEIGHTS", _DIFFERENCE):
        message = f"`{_KIND}` of {str(path)!r} must be WEIGHTS or {_DIFFERENCE}, got `{printable(kind, 60)}`"
        raise BadModelFile(message, code="unsupported-format", argument="path")
    if odd := [name for name, array in arrays.items() if not _is_number(array.dtype)]:
        message = f"{str(path)!r} must hold arrays of numbers, `{printable(odd[0], 60)}` is not one: dump the weights"
        raise BadModelFile(message, code="wrong-type", argument="path")
    tensors = {name: _tensor(array) for name, array in arrays.items()}
    named = _named(path, tensors, expected, notes, partial=before is not None)
    for name, tensor in named.items():
        if not bool(tensor.isfinite().all()):
            message = f"{str(path)!r} has NaN or infinite values in `{name}`: the training diverged"
            raise BadModelFile(message, code="not-finite", argument="path")
    if kind != _DIFFERENCE:
        return named
    if before is None:
        message = (
            f"{str(path)!r} holds differences ({_DIFFERENCE}): give it as `--after`, with the weights as `--before`"
        )
        raise BadModelFile(message, code="conflict", argument="path")
    if unknown := [name for name in named if name not in before]:
        message = (
            f"{str(path)!r} holds differences, from weights of which `{unknown[0]}` is not known: give the weights"
        )
        raise BadModelFile(message, code="conflict", argument="path")
    notes.append("The file holds differences, which were added to the weights before.")
    missing = {name: torch.zeros_like(w) for name, w in before.items() if name not in named}
    return {name: before[name] + difference.to(before[name]) for name, difference in (missing | named).items()}


def sent_of(held: Mapping[str, Tensor], sent: Container[str]) -> Mapping[str, Tensor]:
    """Those tensors of a model that a client sent; all where it sent none."""
    return {name: tensor for name, tensor in held.items() if name in sent} or held


def _named(path: Path, arrays: Params, expected: Mapping[str, Tensor], notes: list[str], *, partial: bool) -> Params:
    """The arrays by the names of the model: their own names, or those of the state dict in its order."""
    held = {name: w for name, w in expected.items() if not name.endswith(_COUNTERS)}
    if arrays and set(arrays) == {f"arr_{i}" for i in range(len(arrays))}:
        ordered = [arrays[f"arr_{i}"] for i in range(len(arrays))]
        options = [list(expected), list(held)]
        names = next((option for option in options if len(option) == len(ordered)), None)
        if names is None:
            message = (
                f"{str(path)!r} must hold the {len(expected)} tensors of the state dict in its order, from "
                f"`{options[0][0]}` to `{options[0][-1]}`, got {len(ordered)}: dump them all"
            )
            raise BadModelFile(message, code="shape-mismatch", argument="path")
        notes.append("The arrays have no names: they were taken in the order of the state dict.")
        arrays = dict(zip(names, ordered, strict=True))
    arrays = {name: array for name, array in arrays.items() if not name.endswith(_COUNTERS)}
    arrays = {name: _shaped(array, held.get(name)) for name, array in arrays.items()}
    try:
        check_same_tensors(descriptions(arrays), sent_of(held, arrays) if partial else held)
    except BadModelFile as error:
        raise BadModelFile(f"cannot use {str(path)!r}: {error}", code=error.code, argument="path") from None
    return arrays


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fiub" and dtype.itemsize <= 8  # torch has no longer floats


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(np.array(array, array.dtype.newbyteorder("=")))


def _shaped(array: Tensor, wanted: Tensor | None) -> Tensor:
    """A number as the scalar that it was: frameworks send those as arrays of one value."""
    return array.reshape(()) if wanted is not None and not wanted.ndim and array.numel() == 1 else array
