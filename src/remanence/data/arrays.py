"""Parsers of arrays of records: IDX and CIFAR files, .npz files, and any map-style `Dataset`."""

import gzip
import math
import operator
import struct
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from remanence.columns import Column, Columns
from remanence.data._parsing import Array, Part, as_floats, as_tensor, check_one_size, count_classes, parsing
from remanence.errors import BadInput
from remanence.types import Data

_NPZ_KEYS = (("x", "y"), ("images", "labels"))


def from_idx(images_path: Path | str, labels_path: Path | str, *, num_classes: int, name: str) -> Data:
    """Load grey images and their labels from a pair of IDX files, the format of MNIST, gzipped or plain."""
    images, labels = _idx(Path(images_path), ndim=3), _idx(Path(labels_path), ndim=1)
    if len(images) != len(labels):
        raise BadInput(
            f"{images_path} and {labels_path} must hold as many labels as images, got {len(images)} images and "
            f"{len(labels)} labels: take both files from one data set",
            code="shape-mismatch",
            argument="labels_path",
        )
    return Data(x=as_floats(as_tensor(images[:, None])), y=as_tensor(labels).long(), num_classes=num_classes, name=name)


def _idx(path: Path, ndim: int) -> Array:
    with parsing(path, "an IDX file"):
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    head, magic = 4 * (1 + ndim), 0x0800 + ndim
    if len(raw) < head or int.from_bytes(raw[:4], "big") != magic:
        raise BadInput(
            f"{path} must be an IDX file of bytes with {ndim} axes (magic {magic:#010x}), "
            f"got one that starts with 0x{raw[:4].hex()}: are images and labels swapped?",
            code="damaged-file",
            argument="path",
        )
    shape = struct.unpack(f">{ndim}I", raw[4:head])
    if len(raw) - head != math.prod(shape):
        raise BadInput(
            f"{path} must hold {math.prod(shape)} bytes for its shape {shape}, got {len(raw) - head}: "
            "the file is truncated or damaged, fetch it again",
            code="damaged-file",
            argument="path",
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def from_cifar(paths: Sequence[Path | str], *, label_bytes: Literal[1, 2], num_classes: int, name: str) -> Data:
    """Load 32x32 colour images from CIFAR's binary batches; of CIFAR-100's two labels the second, the fine one."""
    rows = np.concatenate([_cifar_rows(Path(path), label_bytes + 3 * 32 * 32) for path in paths])
    pixels = rows[:, label_bytes:].reshape(-1, 3, 32, 32)
    labels = as_tensor(rows[:, label_bytes - 1]).long()
    return Data(x=as_floats(as_tensor(pixels)), y=labels, num_classes=num_classes, name=name)


def _cifar_rows(path: Path, width: int) -> Array:
    with parsing(path, "a CIFAR batch"):
        raw = path.read_bytes()
    if not raw or len(raw) % width:
        raise BadInput(
            f"{path} must hold complete CIFAR records of {width} bytes, got {len(raw)} bytes: "
            "the file is truncated, or `label_bytes` (1 for CIFAR-10, 2 for CIFAR-100) is wrong",
            code="damaged-file",
            argument="paths",
        )
    return np.frombuffer(raw, np.uint8).reshape(-1, width)


def from_npz(path: Path | str, *, part: Part = "all") -> Data:
    """Load arrays `x`, `y` or `images`, `labels` of a .npz file; `x_test`, `y_test`, if present, are the test part.

    Tables may name their features in an array `columns` and their classes in `classes`.
    """
    path = Path(path)
    with parsing(path, "a .npz file"), path.open("rb") as raw:
        if raw.peek(1)[:1] not in (b"P", b"\x93"):  # numpy would take it for a pickle, and speak of trusting it
            raise ValueError("it is no zip file of arrays")
        file = np.load(raw, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            message = f"{path} must be a .npz file, got a single array: write it with numpy.savez(path, x=x, y=y)"
            raise BadInput(message, code="wrong-type", argument="path")
        with file:
            pairs = _npz_pairs(path, file.files, part)
            labels = {y: file[y] for _, y in pairs["all"]}
            images = np.concatenate([_channels_first(path, file[x]) for x, _ in pairs[part]])
            names: dict[str, Array] = {name: file[name] for name in ("columns", "classes") if name in file.files}
            every, y = np.concatenate(list(labels.values())), np.concatenate([labels[y] for _, y in pairs[part]])
    if every.dtype.kind not in "iu":
        message = f"the labels of {path} must be integers, got {every.dtype}: number the classes from 0"
        raise BadInput(message, code="wrong-type", argument="y")
    if every.ndim != 1:
        message = f"the labels of {path} must be one number for each record, got the shape {every.shape}"
        raise BadInput(message, code="shape-mismatch", argument="y")
    num_classes = count_classes(every.tolist(), str(path))
    x, columns = as_floats(as_tensor(images)), _columns(path, names, images)
    return Data(x=x, y=as_tensor(y).long(), num_classes=num_classes, name=path.stem, columns=columns)


def _columns(path: Path, names: dict[str, Array], records: Array) -> Columns | None:
    """The names of the features and classes of a table, where the file has arrays `columns` and `classes`."""
    if "columns" not in names or records.ndim != 2:
        return None
    if names["columns"].shape != records.shape[1:]:
        got = names["columns"].shape
        message = f"`columns` of {path} must name each of the {records.shape[1]} features, got the shape {got}"
        raise BadInput(message, code="shape-mismatch", argument="columns")
    columns = tuple(Column(name=str(name), start=index) for index, name in enumerate(names["columns"]))
    return Columns(columns=columns, classes=tuple(map(str, names.get("classes", ()))))


def _npz_pairs(path: Path, keys: list[str], part: Part) -> dict[Part, list[tuple[str, str]]]:
    train = [pair for pair in _NPZ_KEYS if set(pair) <= set(keys)][:1]
    test = [(f"{x}_test", f"{y}_test") for x, y in train if {f"{x}_test", f"{y}_test"} <= set(keys)]
    if not train or (part == "test" and not test):
        wanted = " or ".join(f"`{x}` and `{y}`" for x, y in _NPZ_KEYS)
        suffix = ", and for a test part the same with `_test`" if part == "test" else ""
        message = f"{path} must hold arrays {wanted}{suffix}, got {', '.join(keys) or 'none'}: rename the arrays"
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


def from_dataset(dataset: Dataset[Any], num_classes: int | None = None) -> Data:
    """Load any map-style `torch.utils.data.Dataset` of (tensor, int) pairs, from the first item to the last."""
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized) or not len(dataset):
        message = f"`dataset` must be map-style with at least one record, got {name}: give it a length and items"
        raise BadInput(message, code="wrong-type", argument="dataset")
    records, labels = zip(*[_pair(name, i, dataset[i]) for i in range(len(dataset))], strict=True)
    check_one_size([f"record {i}" for i in range(len(records))], [tuple(record.shape) for record in records])
    classes = count_classes(labels, name) if num_classes is None else num_classes
    return Data(x=as_floats(torch.stack(records)), y=torch.tensor(labels), num_classes=classes, name=name)


def _pair(name: str, i: int, item: Any) -> tuple[Tensor, int]:
    try:
        record, label = item
        index = operator.index(label)
    except (TypeError, ValueError):
        got = [type(value).__name__ for value in item] if isinstance(item, tuple) else type(item).__name__
        raise BadInput(
            f"item {i} of {name} must be a pair (tensor, int), got {got}: map it", code="wrong-type", argument="dataset"
        ) from None
    if not isinstance(record, Tensor):
        message = f"record {i} of {name} must be a tensor, got {type(record).__name__}: transform it to one"
        raise BadInput(message, code="wrong-type", argument="dataset")
    return record.detach().cpu(), index
