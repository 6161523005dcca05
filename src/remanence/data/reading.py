"""What the readers of files share: one sentence for a damaged file, and arrays as float records."""

import csv
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remanence.errors import BadInput

Part: TypeAlias = Literal["train", "test", "all"]
Array: TypeAlias = NDArray[Any]

# everything the decoders are known to raise on a damaged file
_BROKEN = (
    *(OSError, ValueError, EOFError, SyntaxError, RuntimeError, MemoryError),
    *(zlib.error, zipfile.BadZipFile, struct.error, csv.Error),
)


def check_one_size(names: Sequence[str], sizes: Sequence[tuple[int, ...]]) -> None:
    for name, size in zip(names, sizes, strict=True):
        if size != sizes[0]:
            raise BadInput(f"records must have one size, got {sizes[0]} for {names[0]} and {size} for {name}: resize")


def count_classes(labels: Sequence[int], name: str) -> int:
    """One more than the largest label. Labels that are ids would ask for a net of as many outputs."""
    smallest, largest = min(labels, default=0), max(labels, default=0)
    if smallest < 0:
        raise BadInput(f"the labels of {name} must be 0 or more, got {smallest}: number the classes from 0")
    if largest >= max(1000, len(labels)):
        raise BadInput(
            f"the labels of {name} go up to {largest}, but it holds {len(labels)} records: number the classes from 0"
        )
    return largest + 1


def as_tensor(array: Array) -> Tensor:
    native = np.float32 if array.dtype.kind == "f" else array.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):  # an infinity is refused by `Data`, in its own words
        return torch.from_numpy(np.require(array, native, ["C", "W"]))


def as_floats(x: Tensor) -> Tensor:
    """Only bits and 8-bit pixels have a known range; other integers stay as they are, for `Data` to refuse."""
    if x.dtype == torch.uint8:
        return x.float().div_(255)
    return x.float() if x.is_floating_point() or x.dtype == torch.bool else x


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Whatever a missing or damaged file raises becomes one sentence that names it."""
    try:
        yield
    except BadInput:
        raise
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist: check the path") from None
    except _BROKEN as error:
        raise BadInput(f"{path} cannot be read as {kind} ({error}): check or replace the file") from error
