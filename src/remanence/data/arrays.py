"""Parsers of arrays of records: IDX and CIFAR files, and any map-style `Dataset`."""

import gzip
import math
import operator
import os
import struct
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from remanence.bounds import UNIT, Bounds
from remanence.data._parsing import (
    Array,
    as_floats,
    as_tensor,
    check_one_size,
    check_unpacked,
    count_classes,
    parsing,
)
from remanence.disk import open_regular
from remanence.errors import BadInput
from remanence.types import Data


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
    head, magic = 4 * (1 + ndim), 0x0800 + ndim
    with parsing(path, "an IDX file"), open_regular(path) as packed:
        size, zipped = os.fstat(packed.fileno()).st_size, packed.peek(2)[:2] == b"\x1f\x8b"  # type: ignore[attr-defined]
        with gzip.open(packed) if zipped else packed as file:
            start = file.read(head)
            shape = struct.unpack(f">{ndim}I", start[4:]) if len(start) == head else ()
            expected = math.prod(shape) if start[:4] == magic.to_bytes(4, "big") else 0
            check_unpacked(path, expected, size)
            raw = file.read(expected + 1)
    if len(start) < head or int.from_bytes(start[:4], "big") != magic:
        raise BadInput(
            f"{path} must be an IDX file of bytes with {ndim} axes (magic {magic:#010x}), "
            f"got one that starts with 0x{start[:4].hex()}: are images and labels swapped?",
            code="damaged-file",
            argument="path",
        )
    if len(raw) != expected:
        raise BadInput(
            f"{path} must hold {expected} bytes for its shape {shape}, got {'more' if raw[expected:] else len(raw)}: "
            "the file is truncated or damaged, fetch it again",
            code="damaged-file",
            argument="path",
        )
    return np.frombuffer(raw, np.uint8).reshape(shape)


def from_cifar(paths: Sequence[Path | str], *, label_bytes: Literal[1, 2], num_classes: int, name: str) -> Data:
    """Load 32x32 colour images from CIFAR's binary batches; of CIFAR-100's two labels the second, the fine one."""
    rows = np.concatenate([_cifar_rows(Path(path), label_bytes + 3 * 32 * 32) for path in paths])
    pixels = rows[:, label_bytes:].reshape(-1, 3, 32, 32)
    labels = as_tensor(rows[:, label_bytes - 1]).long()
    return Data(x=as_floats(as_tensor(pixels)), y=labels, num_classes=num_classes, name=name)


def _cifar_rows(path: Path, width: int) -> Array:
    with parsing(path, "a CIFAR batch"), open_regular(path) as file:
        raw = file.read()
    if not raw or len(raw) % width:
        raise BadInput(
            f"{path} must hold complete CIFAR records of {width} bytes, got {len(raw)} bytes: "
            "the file is truncated, or `label_bytes` (1 for CIFAR-10, 2 for CIFAR-100) is wrong",
            code="damaged-file",
            argument="paths",
        )
    return np.frombuffer(raw, np.uint8).reshape(-1, width)


def from_dataset(dataset: Dataset[Any], num_classes: int | None = None, *, bounds: Bounds = UNIT) -> Data:
    """Load any map-style `torch.utils.data.Dataset` of (tensor, int) pairs, from the first item to the last.

    `bounds` are the smallest and the largest value that a record can have.
    """
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized) or not len(dataset):
        message = f"`dataset` must be map-style with at least one record, got {name}: give it a length and items"
        raise BadInput(message, code="wrong-type", argument="dataset")
    records, labels = zip(*[_pair(name, i, dataset[i]) for i in range(len(dataset))], strict=True)
    check_one_size([f"record {i}" for i in range(len(records))], [tuple(record.shape) for record in records])
    classes = count_classes(labels, name) if num_classes is None else num_classes
    x = as_floats(torch.stack(records))
    return Data(x=x, y=torch.tensor(labels), num_classes=classes, name=name, bounds=bounds)


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
