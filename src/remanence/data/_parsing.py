"""What the parsers of files have in common: paths, limits, one error for a damaged file, arrays as float records."""

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

from remanence.errors import BadInput, printable

Part: TypeAlias = Literal["train", "test", "all"]
Array: TypeAlias = NDArray[Any]

# everything that decoders are known to raise on a damaged file
_BROKEN = (
    *(OSError, ValueError, EOFError, SyntaxError, RuntimeError, MemoryError, LookupError, TypeError, ArithmeticError),
    *(AttributeError, AssertionError, zlib.error, zipfile.BadZipFile, struct.error, csv.Error),
)
_MAX_RATIO = 50  # of unpacked to packed bytes: beyond, a file of more than ...
_MAX_UNPACKED = 2**28  # ... so many unpacked bytes is a decompression bomb
MAX_PROBLEMS = 5  # named in one message


def user_path(given: Path | str, *, argument: str = "path") -> Path:
    """The path with `~` and `~user` in place of home directories, which must be known."""
    try:
        return Path(given).expanduser()
    except RuntimeError:
        raise BadInput(
            f"`{given}` begins in a home directory that is not known here: give the path without `~`",
            code="missing-file",
            argument=argument,
        ) from None


def check_unpacked(path: Path, unpacked: int, packed: int) -> None:
    """Refuse, before anything is unpacked, what would become far larger than the file is."""
    if unpacked > max(_MAX_UNPACKED, _MAX_RATIO * packed):
        raise BadInput(
            f"{path} would unpack its {packed:,} bytes to {unpacked:,}, as a decompression bomb does: save it again "
            "without compression, or as smaller numbers",
            code="too-large",
            argument="path",
        )


def first_of(problems: Sequence[str], what: str) -> str:
    """The first problems in words, and how many more there are of `what`."""
    more = len(problems) - MAX_PROBLEMS
    return "; ".join(problems[:MAX_PROBLEMS]) + (f"; and {more} more {what}" if more > 0 else "")


def check_one_size(names: Sequence[str], sizes: Sequence[tuple[int, ...]]) -> None:
    """Refuse records of different sizes."""
    for name, size in zip(names, sizes, strict=True):
        if size != sizes[0]:
            message = f"records must have one size, got {sizes[0]} for {names[0]} and {size} for {name}: resize"
            raise BadInput(message, code="shape-mismatch")


def count_classes(labels: Sequence[int], name: str) -> int:
    """The number of classes, one more than the largest label; labels that look like ids are refused."""
    smallest, largest = min(labels, default=0), max(labels, default=0)
    if smallest < 0:
        message = f"the labels of {name} must be 0 or more, got {smallest}: number the classes from 0"
        raise BadInput(message, code="out-of-range", argument="y")
    if largest >= max(1000, len(labels)):
        raise BadInput(
            f"the labels of {name} go up to {largest}, but it holds {len(labels)} records: number the classes from 0",
            code="out-of-range",
            argument="y",
        )
    return largest + 1


def as_tensor(array: Array) -> Tensor:
    """The array as a contiguous tensor in native byte order, floats as float32."""
    native = np.float32 if array.dtype.kind == "f" else array.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):  # an infinity is refused by `Data`, in its own words
        return torch.from_numpy(np.require(array, native, ["C", "W"]))


def as_floats(x: Tensor) -> Tensor:
    """Booleans and 8-bit pixels as floats in [0, 1]; other integers, of unknown range, stay for `Data` to refuse."""
    if x.dtype == torch.uint8:
        return x.float().div_(255)
    return x.float() if x.is_floating_point() or x.dtype == torch.bool else x


@contextmanager
def parsing(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a missing or damaged file raises into a `BadInput` that names it."""
    try:
        yield
    except BadInput:
        raise
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist: check the path", code="missing-file", argument="path") from None
    except NotADirectoryError:
        raise BadInput(f"{path} does not exist: check the path", code="missing-file", argument="path") from None
    except _BROKEN as error:
        said = printable(str(error) or type(error).__name__, 300)
        message = f"{path} cannot be read as {kind} ({said}): check or replace the file"
        raise BadInput(message, code="damaged-file", argument="path") from error
