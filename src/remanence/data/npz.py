"""The parser of .npz files, which anybody may have made: what is in one is checked before it is unpacked.

A member must be an array of numbers or texts, as large as its own header says; nothing is ever unpickled, and a small
file does not become a large one.
"""

import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from remanence.bounds import UNIT, Bounds
from remanence.columns import Column, Columns
from remanence.data._parsing import (
    Array,
    Part,
    as_floats,
    as_tensor,
    check_unpacked,
    count_classes,
    first_of,
    parsing,
    user_path,
)
from remanence.disk import open_regular
from remanence.errors import MAX_NAME, BadInput, listed, printable
from remanence.types import Data

_KEYS = (("x", "y"), ("images", "labels"))
_MAX_HEADER = 10_000  # bytes that numpy takes at most, and some for what stands before them
_MAX_DIRECTORY = 2**21  # bytes of the list of members, which has 50 and more for each
_PACKED_BY = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as numpy does


def from_npz(path: Path | str, *, part: Part = "all") -> Data:
    """Load arrays `x`, `y` or `images`, `labels` of a .npz file; `x_test`, `y_test`, if present, are the test part.

    Tables may name their features in an array `columns` and their classes in `classes`; `groups` says which records are
    of one person or scene, by numbers or texts; `bounds` holds two numbers, the smallest and the largest value that a
    record can have, such as -inf and inf for embeddings and standardised columns. Without it they are 0 and 1.
    """
    path = user_path(path)
    with opened_npz(path) as file:
        pairs = _npz_pairs(path, file.keys, part)
        names: list[str] = [name for name in ("columns", "classes", "groups", "bounds") if name in file.keys]
        found = file.load([y for _, y in pairs["all"]] + [x for x, _ in pairs[part]] + names)
        images = _joined([_channels_first(path, found[x]) for x, _ in pairs[part]])
        every, y = (_joined([found[y] for _, y in pairs[name]]) for name in ("all", part))
    if every.ndim != 1:
        message = (
            f"the labels of {path} must be one number for each record, got the shape {every.shape}: of one-hot rows "
            "give `y.argmax(1)`; records of several labels at once are not supported"
        )
        raise BadInput(message, code="shape-mismatch", argument="y")
    if every.dtype.kind not in "iu":
        message = (
            f"the labels of {path} must be integers, got {every.dtype}: number the classes from 0; a regression is "
            "audited from Python, of scikit-learn by `from_sklearn`, of torch with the loss `SquaredError(values=...)` "
            "and labels that number its targets"
        )
        raise BadInput(message, code="wrong-type", argument="y")
    num_classes = count_classes(every.tolist(), str(path))
    bounds = _bounds(path, found["bounds"]) if "bounds" in names else None
    # where the box is given, whole numbers are what they say; otherwise bytes are pixels
    x = as_floats(as_tensor(images)) if bounds is None else as_tensor(images).float()
    columns = _columns(path, {name: found[name] for name in names}, images)
    return Data(
        x=x,
        y=as_tensor(y).long(),
        num_classes=num_classes,
        name=printable(path.stem, MAX_NAME),
        columns=columns,
        groups=_groups(path, found["groups"], len(x)) if "groups" in names else None,
        bounds=bounds or UNIT,
    )


def _bounds(path: Path, given: Array) -> Bounds:
    if given.shape != (2,) or given.dtype.kind not in "fiu":
        message = f"`bounds` of {path} must hold two numbers, got {given.dtype} of the shape {given.shape}"
        raise BadInput(message, code="shape-mismatch", argument="bounds")
    return float(given[0]), float(given[1])


def _groups(path: Path, given: Array, records: int) -> Tensor:
    """(records,): the subject of each record; a text becomes the same number in every file."""
    if given.shape != (records,) or given.dtype.kind not in "iuUS":
        message = (
            f"`groups` of {path} must hold a number or a text for each of its {records} records, got {given.dtype} of "
            f"the shape {given.shape}"
        )
        raise BadInput(message, code="shape-mismatch", argument="groups")
    if given.dtype.kind in "iu":
        return as_tensor(given).long()
    digests = (blake2b(str(each).encode("utf-8", "replace"), digest_size=7).digest() for each in given.tolist())
    return torch.tensor([int.from_bytes(digest, "big") for digest in digests])


def _columns(path: Path, names: dict[str, Array], records: Array) -> Columns | None:
    """The names of the features and classes of a table, where the file has arrays `columns` and `classes`."""
    if "columns" not in names or records.ndim != 2:
        return None
    if names["columns"].shape != records.shape[1:]:
        got = names["columns"].shape
        message = f"`columns` of {path} must name each of the {records.shape[1]} features, got the shape {got}"
        raise BadInput(message, code="shape-mismatch", argument="columns")
    columns = tuple(Column(name=_name(name), start=index) for index, name in enumerate(names["columns"]))
    return Columns(columns=columns, classes=tuple(map(_name, names.get("classes", np.empty(0)).flat)))


def _name(given: object) -> str:
    return printable(str(given), MAX_NAME)


def _npz_pairs(path: Path, keys: list[str], part: Part) -> dict[Part, list[tuple[str, str]]]:
    train = [pair for pair in _KEYS if set(pair) <= set(keys)][:1]
    test = [(f"{x}_test", f"{y}_test") for x, y in train if {f"{x}_test", f"{y}_test"} <= set(keys)]
    if not train or (part == "test" and not test):
        wanted = " or ".join(f"`{x}` and `{y}`" for x, y in _KEYS)
        suffix = ", and for a test part the same with `_test`" if part == "test" else ""
        message = f"{path} must hold arrays {wanted}{suffix}, got {listed(keys) or 'none'}: rename the arrays"
        raise BadInput(message, code="unknown-name", argument="part" if train else "path")
    return {"train": train, "test": test, "all": train + test}


def _channels_first(path: Path, array: Array) -> Array:
    if array.dtype.kind not in "fiub":
        message = f"the images of {path} must be numbers, got {array.dtype}: save bytes or floats in [0, 1]"
        raise BadInput(message, code="wrong-type", argument="x")
    if array.ndim == 3:
        return array[:, None]
    if array.ndim != 4 or array.shape[1] in (1, 3):
        return array
    if array.shape[-1] not in (1, 3):
        raise BadInput(
            f"the images of {path} must have 1 or 3 channels on their second or last axis, got {array.shape}: "
            "drop the other channels, or build `Data` from a tensor",
            code="shape-mismatch",
            argument="x",
        )
    return array.transpose(0, 3, 1, 2)


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 and arrays[0].ndim else np.concatenate(arrays)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Npz:
    """An open .npz file: the names of its arrays, which are loaded when they are asked for."""

    path: Path
    size: int
    archive: zipfile.ZipFile

    @property
    def keys(self) -> list[str]:
        return [name.removesuffix(".npy") for name in self.archive.namelist()]

    def load(self, names: Sequence[str]) -> dict[str, Array]:
        """The arrays of these names; where some are none, all of them are named in one refusal."""
        members = dict(zip(self.keys, self.archive.infolist(), strict=True))
        check_unpacked(self.path, sum(members[name].file_size for name in set(names)), self.size)
        faults = [fault for name in dict.fromkeys(names) if (fault := self._fault(name, members[name]))]
        if faults:
            raise BadInput(
                f"{self.path} must hold arrays of numbers, got {first_of([text for text, _ in faults], 'such')}: "
                "save them with numpy.savez(path, x=x, y=y)",
                code="wrong-type" if all(wrong_type for _, wrong_type in faults) else "damaged-file",
                argument="path",
            )
        return {name: self._array(members[name]) for name in dict.fromkeys(names)}

    def _array(self, member: zipfile.ZipInfo) -> Array:
        with self.archive.open(member) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote
            array: Array = npy.read_array(file, allow_pickle=False)
            if file.read(1):
                raise ValueError(f"`{member.filename}` is longer than its array")
        return array

    def _fault(self, name: str, member: zipfile.ZipInfo) -> tuple[str, bool] | None:
        """What keeps a member from being an array of numbers or texts, and whether that is its type alone."""
        if member.compress_type not in _PACKED_BY or member.flag_bits & 1:
            return f"`{name}`, which is encrypted or packed in another way than numpy does", False
        with self.archive.open(member) as file:
            start = file.read(_MAX_HEADER + 12)
        if not start.startswith(npy.MAGIC_PREFIX):
            return f"`{name}`, which is no array", False
        try:
            shape, dtype, length = _header(start)
        except Exception as error:  # numpy evaluates the header, and whatever stands there may raise anything
            return f"`{name}`, whose header is damaged ({printable(str(error), 100)})", False
        if dtype.hasobject:
            return f"`{name}` of Python objects, a pickle, which is not opened", False
        if dtype.kind not in "fiubUS":
            return f"`{name}` of {printable(str(dtype), 60)}", True
        expected = length + prod(shape) * dtype.itemsize
        if expected != member.file_size or min(shape, default=0) < 0:
            return (
                f"`{name}`, which has {member.file_size} bytes and by its header {printable(str(expected), 40)}",
                False,
            )
        return None


def _header(start: bytes) -> tuple[tuple[int, ...], "np.dtype[Any]", int]:
    """The shape and dtype that the first bytes of a .npy file say, and the length of its header."""
    file = BytesIO(start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if npy.read_magic(file) == (1, 0):
            shape, _, dtype = npy.read_array_header_1_0(file, max_header_size=_MAX_HEADER)
        else:
            shape, _, dtype = npy.read_array_header_2_0(file, max_header_size=_MAX_HEADER)
    return shape, dtype, file.tell()


@contextmanager
def opened_npz(path: Path) -> Iterator[Npz]:
    """The .npz file at `path`; what is damaged in it is refused where it is met."""
    with parsing(path, "a .npz file"), open_regular(path) as file:
        start = file.peek(6)[:6]  # type: ignore[attr-defined]
        if start == npy.MAGIC_PREFIX:
            message = f"{path} must be a .npz file, got a single array: write it with numpy.savez(path, x=x, y=y)"
            raise BadInput(message, code="wrong-type", argument="path")
        if not start.startswith(b"P"):
            raise ValueError("it is no zip file of arrays")
        size = os.fstat(file.fileno()).st_size
        if _directory_size(file, size) > _MAX_DIRECTORY:
            raise ValueError("it has too many members")
        with zipfile.ZipFile(file) as archive:
            yield Npz(path=path, size=size, archive=archive)


def read_npy(path: Path) -> Array:
    """The single array of a .npy file, as large as its header says; nothing is unpickled."""
    with parsing(path, "a .npy file"), open_regular(path) as file:
        start = file.read(_MAX_HEADER + 12)
        if not start.startswith(npy.MAGIC_PREFIX):
            raise ValueError("it is no array")
        shape, dtype, length = _header(start)
        if dtype.hasobject or length + prod(shape) * dtype.itemsize != os.fstat(file.fileno()).st_size:
            raise ValueError("it holds Python objects, or is not as long as its header says")
        file.seek(0)
        array: Array = npy.read_array(file, allow_pickle=False)
    return array


def _directory_size(file: BinaryIO, size: int) -> int:
    """The bytes of a zip file's list of members, which are parsed on opening, as its end says, in the old or the new
    form; of several ends the largest."""
    file.seek(max(0, size - 2**16 - 200))
    tail, sizes = file.read(), [0]
    file.seek(0)
    for found in re.finditer(rb"PK\x05\x06", tail):
        at = found.start()
        sizes.append(int.from_bytes(tail[at + 12 : at + 16], "little"))
        if tail[max(0, at - 20) : at].startswith(b"PK\x06\x07"):
            sizes[-1] = int.from_bytes(tail[at - 36 : at - 28], "little")
    return max(sizes)
