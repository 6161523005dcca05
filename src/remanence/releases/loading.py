"""Loading of untrusted model files: safetensors, and state dicts in torch's zip format, also inside a checkpoint.
Nothing in them is executed.

Both formats are loaded the same way: an index describes tensors (`View`), the description is checked against the file's
true size and against the model that is expected, and only then are bytes read and made into tensors. Neither
`torch.load` nor any unpickler is called (`_pickle_scan` says why). The first bytes decide the format, once; there is no
second try with another parser, for a file that two parsers understand differently is how checks are bypassed.
"""

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors.torch import save
from torch import Tensor, nn

from remanence.errors import BadModelFile
from remanence.releases._model_index import Choose, File, Index, index_checkpoint, index_safetensors, index_zip
from remanence.releases._other_formats import other_format
from remanence.releases._refusals import listed, shown, unsafe
from remanence.releases._views import View

Descriptions: TypeAlias = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
_MAX_COPIES = 16  # tied weights appear under several names; many more than that is a bomb
_QUANTISED = (".zero_point", "._packed_params.dtype", "._packed_params._packed_params")  # names in state dicts of torch


def load_weights(
    path: str | os.PathLike[str], *, expected: Mapping[str, Tensor] | nn.Module | None = None
) -> dict[str, Tensor]:
    """Load the weights in `path` as plain, dense, contiguous, finite tensors on the CPU, or raise `BadModelFile`.

    With `expected`, a model or its state dict, the names and shapes must be the same, and floats must be floats.
    """
    wanted = expected.state_dict() if isinstance(expected, nn.Module) else expected
    return _load(path, index_zip, lambda found: found[""], wanted)


def load_checkpoint(path: str | os.PathLike[str], *, choose: Choose) -> dict[str, Tensor]:
    """Load those tensors of a checkpoint that `choose` takes from the dicts in it, under the names that it gives them.

    What stands beside them, such as the state of an optimizer, is neither read nor made. Else as `load_weights`.
    """
    return _load(path, partial(index_checkpoint, choose=choose), choose)


def _load(
    path: str | os.PathLike[str],
    index_of_zip: Callable[[File], Index],
    choose: Choose,
    expected: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    try:
        with _open(path) as file:
            views, read = _index(file, index_of_zip, choose)
            _check_total(views, file.size)
            if expected is not None:
                check_same_tensors(descriptions(views), expected)
            return _materialise(views, read)
    except BadModelFile as error:
        raise BadModelFile(f"cannot use {str(path)!r}: {error}", code=error.code, argument="path") from None
    except (OSError, MemoryError) as error:  # the disk fails, a special file cannot be read, a sparse file is vast
        reason = str(error) or "it does not fit into memory"
        raise BadModelFile(f"cannot use {str(path)!r}: {reason}", code="damaged-file", argument="path") from None


def save_weights(path: str | os.PathLike[str], weights: Mapping[str, Tensor]) -> None:
    """Write `weights` as safetensors, under a temporary name first, so that nobody loads an incomplete file."""
    content = save({name: w.detach().cpu().clone(memory_format=torch.contiguous_format) for name, w in weights.items()})
    partial = Path(f"{os.fspath(path)}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _open(path: str | os.PathLike[str]) -> File:
    def without_waiting(name: str, flags: int) -> int:  # a pipe would block until somebody writes to it
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    try:
        file = File(os.fspath(path), opener=without_waiting)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise BadModelFile(
            f"{reason}; give the path of a safetensors file or of a torch zip", code="missing-file"
        ) from None
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise BadModelFile("it is a pipe or a device, expected an ordinary file: copy it first", code="wrong-type")
    file.size = status.st_size  # taken once: what is appended later is not looked at
    return file


def _index(file: File, index_of_zip: Callable[[File], Index], choose: Choose) -> Index:
    head = file.read(64)
    if not head:
        raise BadModelFile("it is empty, expected weights: save or fetch it again", code="empty")
    if head.startswith(b"PK\x03\x04"):
        return index_of_zip(file)
    if head[8:9] == b"{":  # after the eight bytes that give its length, a safetensors header begins with a brace
        views, read = index_safetensors(file, int.from_bytes(head[:8], "little"))
        return choose({"": views}), read
    raise other_format(head)


def _check_total(views: Mapping[str, View], held: int) -> None:
    total = sum(prod(view.shape) * view.storage.dtype.itemsize for view in views.values())
    if total > _MAX_COPIES * held:
        raise unsafe(f"it expands {held} bytes to {total} by naming a storage again and again")


def descriptions(tensors: Mapping[str, View] | Mapping[str, Tensor]) -> Descriptions:
    """The dtypes and shapes of tensors, or of their descriptions in a file."""
    return {
        name: (each.storage.dtype, each.shape) if isinstance(each, View) else (each.dtype, tuple(each.shape))
        for name, each in tensors.items()
    }


def check_same_tensors(tensors: Descriptions, expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors, of which dtypes and shapes are given, that are not those that are `expected`."""
    got = {name: (_kind(dtype), shape) for name, (dtype, shape) in tensors.items()}
    wanted = {name: (_kind(tensor.dtype), tuple(tensor.shape)) for name, tensor in expected.items()}
    differ = [name for name in wanted if got.get(name, wanted[name]) != wanted[name]]
    parts = {
        "missing": [shown(name) for name in wanted if name not in got],
        "unexpected": [shown(name) for name in got if name not in wanted],
        "different": [f"{shown(name)} (expected {_words(*wanted[name])}, got {_words(*got[name])})" for name in differ],
    }
    if faults := [f"{fault}: {listed(names)}" for fault, names in parts.items() if names]:
        advice = "give the file of this very model"
        if any(name.endswith(_QUANTISED) for name in got.keys() - wanted.keys()):
            advice = (
                "it is of a quantised model: give its weights as floats under the names of this model, as "
                "`layer.weight().dequantize()` has them"
            )
        raise BadModelFile(f"it is not of this model; {'; '.join(faults)}; {advice}", code="shape-mismatch")


def _kind(dtype: torch.dtype) -> str:
    return "float" if dtype.is_floating_point else "integer"


def _words(kind: str, shape: tuple[int, ...]) -> str:
    return f"{kind} {shown(shape)}"


def _materialise(views: Mapping[str, View], read: Callable[[str], bytearray]) -> dict[str, Tensor]:
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name, view in views.items():
        names[view.storage.key].append(name)
    tensors: dict[str, Tensor] = {}
    for key, users in names.items():  # each storage is read once, however many tensors view it
        buffer = read(key)
        tensors |= {name: _tensor(name, views[name], buffer) for name in users}
    return {name: tensors[name] for name in views}


def _tensor(name: str, view: View, buffer: bytearray) -> Tensor:
    dtype = view.storage.dtype
    if not prod(view.shape):
        return torch.empty(view.shape, dtype=dtype)
    flat = torch.frombuffer(buffer, dtype=dtype)
    tensor = flat.as_strided(view.shape, view.stride, view.offset)
    if dtype is torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
        raise unsafe(f"{shown(name)} has a boolean that is neither 0 nor 1")
    if not bool(torch.isfinite(tensor.float() if dtype.itemsize == 1 else tensor).all()):  # float8 knows few functions
        message = f"{shown(name)} has a NaN or infinite weight, expected finite ones: train or save it again"
        raise BadModelFile(message, code="not-finite")
    return tensor.clone(memory_format=torch.contiguous_format)
