"""Files and other people's objects become `Data`: float32 in [0, 1], images as (n, channels, height, width)."""

import csv
import gzip
import math
import operator
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from remanence.errors import BadInput, unknown
from remanence.types import Data

Part: TypeAlias = Literal["train", "test", "all"]
Array: TypeAlias = NDArray[Any]

_IMAGES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".webp": "WEBP"}
_GREY = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_NPZ_KEYS = (("x", "y"), ("images", "labels"))
# everything the decoders below are known to raise on a damaged file
_BROKEN = (
    *(OSError, ValueError, EOFError, SyntaxError, RuntimeError, MemoryError),
    *(zlib.error, zipfile.BadZipFile, struct.error, csv.Error),
)


def read_idx(images_path: Path | str, labels_path: Path | str, *, num_classes: int, name: str) -> Data:
    """Grey images and their labels from a pair of IDX files, the format of MNIST, gzipped or plain."""
    images, labels = _idx(Path(images_path), ndim=3), _idx(Path(labels_path), ndim=1)
    if len(images) != len(labels):
        raise BadInput(
            f"{images_path} and {labels_path} must hold as many labels as images, got {len(images)} images and "
            f"{len(labels)} labels: take both files from one data set"
        )
    return Data(x=_floats(_tensor(images[:, None])), y=_tensor(labels).long(), num_classes=num_classes, name=name)


def _idx(path: Path, ndim: int) -> Array:
    with _reading(path, "an IDX file"):
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    head, magic = 4 * (1 + ndim), 0x0800 + ndim
    if len(raw) < head or int.from_bytes(raw[:4], "big") != magic:
        raise BadInput(
            f"{path} must be an IDX file of bytes with {ndim} axes (magic {magic:#010x}), "
            f"got one that starts with 0x{raw[:4].hex()}: are images and labels swapped?"
        )
    shape = struct.unpack(f">{ndim}I", raw[4:head])
    if len(raw) - head != math.prod(shape):
        raise BadInput(
            f"{path} must hold {math.prod(shape)} bytes for its shape {shape}, got {len(raw) - head}: "
            "the file is cut or damaged, fetch it again"
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def read_cifar(paths: Sequence[Path | str], *, label_bytes: Literal[1, 2], num_classes: int, name: str) -> Data:
    """32x32 colour images from CIFAR's binary batches; of CIFAR-100's two label bytes the fine one is the second."""
    rows = np.concatenate([_cifar_rows(Path(path), label_bytes + 3 * 32 * 32) for path in paths])
    pixels = rows[:, label_bytes:].reshape(-1, 3, 32, 32)
    labels = _tensor(rows[:, label_bytes - 1]).long()
    return Data(x=_floats(_tensor(pixels)), y=labels, num_classes=num_classes, name=name)


def _cifar_rows(path: Path, width: int) -> Array:
    with _reading(path, "a CIFAR batch"):
        raw = path.read_bytes()
    if not raw or len(raw) % width:
        raise BadInput(
            f"{path} must hold whole CIFAR records of {width} bytes, got {len(raw)} bytes: "
            "the file is cut, or `label_bytes` (1 for CIFAR-10, 2 for CIFAR-100) is wrong"
        )
    return np.frombuffer(raw, np.uint8).reshape(-1, width)


def from_npz(path: Path | str, *, part: Part = "all") -> Data:
    """Arrays `x`, `y` or `images`, `labels` of a .npz file; where it has them, `x_test`, `y_test` are the test part."""
    path = Path(path)
    with _reading(path, "a .npz file"), path.open("rb") as raw:
        file = np.load(raw, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise BadInput(f"{path} must be a .npz file, got a single array: write it with numpy.savez(path, x=x, y=y)")
        with file:
            pairs = _npz_pairs(path, file.files, part)
            labels = {y: file[y] for _, y in pairs["all"]}
            images = np.concatenate([_channels_first(path, file[x]) for x, _ in pairs[part]])
            every, y = np.concatenate(list(labels.values())), np.concatenate([labels[y] for _, y in pairs[part]])
    if every.dtype.kind not in "iu":
        raise BadInput(f"the labels of {path} must be integers, got {every.dtype}: number the classes from 0")
    num_classes = int(every.max(initial=0)) + 1
    return Data(x=_floats(_tensor(images)), y=_tensor(y).long(), num_classes=num_classes, name=path.stem)


def _npz_pairs(path: Path, keys: list[str], part: Part) -> dict[Part, list[tuple[str, str]]]:
    train = [pair for pair in _NPZ_KEYS if set(pair) <= set(keys)][:1]
    test = [(f"{x}_test", f"{y}_test") for x, y in train if {f"{x}_test", f"{y}_test"} <= set(keys)]
    if not train or (part == "test" and not test):
        wanted = " or ".join(f"`{x}` and `{y}`" for x, y in _NPZ_KEYS)
        suffix = ", and for a test part the same with `_test`" if part == "test" else ""
        raise BadInput(f"{path} must hold arrays {wanted}{suffix}, got {', '.join(keys) or 'none'}: rename the arrays")
    return {"train": train, "test": test, "all": train + test}


def _channels_first(path: Path, array: Array) -> Array:
    if array.dtype.kind not in "fiub":
        raise BadInput(f"the images of {path} must be numbers, got {array.dtype}: save bytes or floats in [0, 1]")
    if array.ndim == 3:
        return array[:, None]
    if array.ndim != 4 or array.shape[1] in (1, 3):
        return array
    if array.shape[-1] not in (1, 3):
        raise BadInput(
            f"the images of {path} must have 1 or 3 channels on their second or last axis, got {array.shape}: "
            "drop the other channels, or build `Data` from a tensor"
        )
    return array.transpose(0, 3, 1, 2)


def from_image_folder(path: Path | str) -> Data:
    """Images of one size from one sub-folder for each class; the sorted names of the sub-folders are the classes."""
    files = _class_files(Path(path))
    sizes, modes = zip(*[_header(file) for file, _ in files], strict=True)
    _check_one_size([str(file) for file, _ in files], sizes)
    mode = "L" if set(modes) <= set(_GREY) else "RGB"
    pixels = np.stack([_pixels(file, mode) for file, _ in files])
    y = torch.tensor([label for _, label in files])
    return Data(x=_floats(_tensor(pixels)), y=y, num_classes=int(y[-1]) + 1, name=Path(path).resolve().name)


def _class_files(folder: Path) -> list[tuple[Path, int]]:
    with _reading(folder, "a folder"):
        classes = sorted(sub for sub in folder.iterdir() if sub.is_dir() and not sub.name.startswith("."))
        found = [sorted(file for file in sub.iterdir() if file.suffix.lower() in _IMAGES) for sub in classes]
    if not classes:
        raise BadInput(f"{folder} must hold one sub-folder of images for each class, got no sub-folder: make them")
    for sub, files in zip(classes, found, strict=True):
        if not files:
            raise BadInput(f"the class folder {sub} must hold {', '.join(_IMAGES)} files, got none: fill or remove it")
    return [(file, label) for label, files in enumerate(found) for file in files]


def _header(file: Path) -> tuple[tuple[int, int], str]:
    with _opened(file) as image:
        if image.mode not in _GREY + _COLOUR:
            raise BadInput(f"{file} must have 8 bits for each channel, got pixels of mode {image.mode}: convert it")
        return image.size, image.mode


def _pixels(file: Path, mode: str) -> Array:
    with _opened(file) as image:
        # Pillow warns about a palette with transparency unless it goes through RGBA
        image = image.convert("RGBA") if image.mode in ("P", "PA") else image
        pixels = np.asarray(image.convert(mode))
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    with _reading(file, "an image"), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            # a closed list of formats, so that a disguised file never reaches a decoder that runs programs
            with Image.open(file, formats=sorted(set(_IMAGES.values()))) as image:
                yield image
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            limit = Image.MAX_IMAGE_PIXELS
            raise BadInput(f"{file} must have at most {limit} pixels, got a decompression bomb: remove it") from error


def from_csv(path: Path | str, label: str) -> Data:
    """A table with a header: numeric columns scaled to [0, 1] each, and the column `label` as the classes."""
    path = Path(path)
    header, rows = _table(path)
    if label not in header:
        raise unknown("label column", label, header)
    at = header.index(label)
    features = [column for column in range(len(header)) if column != at]
    cells = [[_number(path, line, header[column], row[column]) for column in features] for line, row in rows]
    y, num_classes = _classes(path, label, [row[at] for _, row in rows])
    return Data(x=_min_max(np.array(cells)), y=torch.tensor(y), num_classes=num_classes, name=path.stem)


def _table(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    with _reading(path, "a CSV file"), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    if len(lines) < 2 or len(lines[0][1]) < 2 or len(set(lines[0][1])) < len(lines[0][1]):
        raise BadInput(
            f"{path} must hold a header of at least two different column names and then rows, got {len(lines)} lines "
            f"and the header {lines[0][1] if lines else []}: separate columns with commas and name each once"
        )
    header = lines[0][1]
    for line, row in lines[1:]:
        if len(row) != len(header):
            raise BadInput(f"row {line} of {path} needs {len(header)} values like the header, got {len(row)}: mend it")
    return header, lines[1:]


def _number(path: Path, line: int, column: str, cell: str) -> float:
    value = _as_float(cell)
    if value is None or not math.isfinite(value):
        raise BadInput(
            f"row {line}, column `{column}` of {path} must be a finite number, got {cell!r}: "
            "mend the value, or drop or encode the column"
        )
    return value


def _classes(path: Path, label: str, cells: list[str]) -> tuple[list[int], int]:
    if "" in cells:
        raise BadInput(f"the label column `{label}` of {path} must have no gaps, got {cells.count('')}: drop the rows")
    numbers = [number for cell in cells if (number := _as_float(cell)) is not None]
    if len(numbers) < len(cells):
        index = {name: i for i, name in enumerate(sorted(set(cells)))}
        return [index[cell] for cell in cells], len(index)
    odd = [number for number in numbers if not number.is_integer() or abs(number) >= 2**31]
    if odd:
        raise BadInput(f"the label column `{label}` of {path} must hold class numbers or names, got {odd[0]:g}: bin it")
    return [int(number) for number in numbers], int(max(numbers)) + 1


def _as_float(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _min_max(values: NDArray[np.float64]) -> Tensor:
    low, high = values.min(axis=0), values.max(axis=0)
    span = np.where(high > low, high - low, 1.0)  # a constant column carries nothing and becomes 0
    return _tensor((values - low) / span)


def from_dataset(dataset: Dataset[Any], num_classes: int | None = None) -> Data:
    """Any map-style `torch.utils.data.Dataset` of (tensor, int) pairs, read once from the first to the last."""
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized) or not len(dataset):
        raise BadInput(f"`dataset` must be map-style with at least one record, got {name}: give it a length and items")
    records, labels = zip(*[_pair(name, i, dataset[i]) for i in range(len(dataset))], strict=True)
    _check_one_size([f"record {i}" for i in range(len(records))], [tuple(record.shape) for record in records])
    classes = max(labels) + 1 if num_classes is None else num_classes
    return Data(x=_floats(torch.stack(records)), y=torch.tensor(labels), num_classes=classes, name=name)


def _pair(name: str, i: int, item: Any) -> tuple[Tensor, int]:
    try:
        record, label = item
        index = operator.index(label)
    except (TypeError, ValueError):
        got = [type(value).__name__ for value in item] if isinstance(item, tuple) else type(item).__name__
        raise BadInput(f"item {i} of {name} must be a pair (tensor, int), got {got}: map it") from None
    if not isinstance(record, Tensor):
        raise BadInput(f"record {i} of {name} must be a tensor, got {type(record).__name__}: transform it to one")
    return record.detach().cpu(), index


def _check_one_size(names: Sequence[str], sizes: Sequence[tuple[int, ...]]) -> None:
    for name, size in zip(names, sizes, strict=True):
        if size != sizes[0]:
            raise BadInput(f"records must have one size, got {sizes[0]} for {names[0]} and {size} for {name}: resize")


def _tensor(array: Array) -> Tensor:
    native = np.float32 if array.dtype.kind == "f" else array.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):  # an infinity is refused by `Data`, in its own words
        return torch.from_numpy(np.require(array, native, ["C", "W"]))


def _floats(x: Tensor) -> Tensor:
    """Only 8-bit pixels have a known range; other integers stay as they are, for `Data` to refuse."""
    if x.dtype == torch.uint8:
        return x.float().div_(255)
    return x.float() if x.is_floating_point() else x


@contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """Whatever a missing or damaged file raises becomes one sentence that names it."""
    try:
        yield
    except BadInput:
        raise
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist: check the path") from None
    except _BROKEN as error:
        raise BadInput(f"{path} cannot be read as {kind} ({error}): check or replace the file") from error
