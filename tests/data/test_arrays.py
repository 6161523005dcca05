"""IDX, CIFAR and .npz files and datasets, written by hand here and read back."""

import gzip
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from remanence.data import from_cifar, from_dataset, from_idx, from_npz

PIXELS = [[[0, 51, 102], [153, 204, 255]], [[1, 2, 3], [4, 5, 6]]]  # two images of 2 x 3


def idx_bytes(values: bytes, *shape: int) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + values


def write_idx(folder: Path, *, gz: bool = False, images: bytes | None = None, labels: bytes = b"") -> list[Path]:
    flat = bytes(value for image in PIXELS for row in image for value in row)
    contents = [idx_bytes(flat, 2, 2, 3) if images is None else images, labels or idx_bytes(b"\x03\x00", 2)]
    paths = [folder / "images", folder / "labels"]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(gzip.compress(content) if gz else content)
    return paths


@pytest.mark.parametrize("gz", [False, True])
def test_idx_reads_pixels_and_labels(tmp_path: Path, gz: bool) -> None:
    data = from_idx(*write_idx(tmp_path, gz=gz), num_classes=4, name="small")
    assert data.x.dtype == torch.float32
    assert data.x.shape == (2, 1, 2, 3)
    assert np.array_equal(data.x[:, 0].numpy(), np.float32(PIXELS) / np.float32(255))
    assert data.y.tolist() == [3, 0]
    assert (data.num_classes, data.name) == (4, "small")


IDX_FAULTS: dict[str, tuple[dict[str, bytes], str]] = {
    "swapped": ({"images": idx_bytes(b"\x03\x00", 2)}, "damaged-file"),
    "cut": ({"images": idx_bytes(b"\0" * 11, 2, 2, 3)}, "damaged-file"),
    "unequal": ({"labels": idx_bytes(b"\0\0\0", 3)}, "shape-mismatch"),
    "empty": ({"images": b""}, "damaged-file"),
    "short header": ({"images": b"\x00\x00"}, "damaged-file"),
    "not gzip": ({"images": b"\x1f\x8bjunk"}, "damaged-file"),
    "cut gzip": ({"images": gzip.compress(b"\0" * 99, mtime=0)[:-9]}, "damaged-file"),
}


@pytest.mark.parametrize("case", IDX_FAULTS)
def test_idx_refusals(tmp_path: Path, case: str) -> None:
    contents, code = IDX_FAULTS[case]
    with refused(code):
        from_idx(*write_idx(tmp_path, **contents), num_classes=10, name="small")


def test_idx_refuses_missing_files(tmp_path: Path) -> None:
    with refused("missing-file", "path"):
        from_idx(tmp_path / "images", tmp_path / "labels", num_classes=10, name="small")


def cifar_record(labels: bytes, *, red: int, green: int, blue: int) -> bytes:
    """One image of one colour, but for the last pixel of the first row, whose red is 255."""
    reds = bytearray([red] * 1024)
    reds[31] = 255
    return labels + bytes(reds) + bytes([green] * 1024) + bytes([blue] * 1024)


def test_cifar_10_layout(tmp_path: Path) -> None:
    first, second = tmp_path / "1.bin", tmp_path / "2.bin"
    first.write_bytes(cifar_record(b"\x07", red=51, green=0, blue=102))
    second.write_bytes(cifar_record(b"\x01", red=0, green=0, blue=0) + cifar_record(b"\x02", red=1, green=1, blue=1))
    data = from_cifar([first, second], label_bytes=1, num_classes=10, name="c")
    assert data.x.shape == (3, 3, 32, 32)
    assert data.x.is_contiguous()
    assert data.y.tolist() == [7, 1, 2]
    torch.testing.assert_close(data.x[0, :, 5, 5], torch.tensor([0.2, 0.0, 0.4]))
    assert data.x[0, 0, 0, 31] == 1.0  # the end of a row: height comes before width
    assert data.x[0, 0, 31, 0] == torch.tensor(51 / 255)


def test_cifar_100_takes_the_fine_label_and_broken_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(cifar_record(b"\x0b\x55", red=1, green=2, blue=255))
    data = from_cifar([path], label_bytes=2, num_classes=100, name="c")
    assert data.y.tolist() == [0x55]
    assert data.x[0, 2].min() == 1.0
    for size in (0, 3072, 3074, 2 * 3073 - 1):
        path.write_bytes(bytes(size))
        with refused("damaged-file", "paths"):
            from_cifar([path], label_bytes=1, num_classes=10, name="c")


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("keys", [("x", "y"), ("images", "labels")])
def test_npz_turns_hwc_bytes_into_chw_floats(tmp_path: Path, keys: tuple[str, str]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)
    path = save(tmp_path / "a.npz", **{keys[0]: pixels, keys[1]: np.array([0, 2, 1, 2], np.uint8)})
    data = from_npz(path)
    assert data.x.dtype == torch.float32
    assert data.x.shape == (4, 3, 5, 6)
    assert data.x[3, 2, 4, 1].item() == np.float32(pixels[3, 4, 1, 2]) / np.float32(255)
    assert data.y.tolist() == [0, 2, 1, 2]
    assert (data.num_classes, data.name) == (3, "a")


def test_npz_leaves_chw_and_grey_and_tables_in_place(tmp_path: Path) -> None:
    y = np.array([0, 1])
    chw = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 5), np.uint8)
    assert torch.equal(from_npz(save(tmp_path / "a.npz", x=chw, y=y)).x, torch.from_numpy(chw) / 255)
    grey = from_npz(save(tmp_path / "b.npz", x=chw[:, 0], y=y)).x
    assert torch.equal(grey, torch.from_numpy(chw[:, :1]) / 255)
    rows = np.array([[0.25, 1.0], [0.0, 0.5]], ">f8")
    table = from_npz(save(tmp_path / "c.npz", x=rows, y=y)).x
    assert table.dtype == torch.float32
    assert table.tolist() == [[0.25, 1.0], [0.0, 0.5]]
    assert from_npz(save(tmp_path / "d.npz", x=np.eye(2) > 0, y=y)).x.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_npz_parts(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.uint8).reshape(3, 1, 2, 2)
    path = save(tmp_path / "a.npz", x=x[:2], y=[0, 1], x_test=x[2:], y_test=[4])
    assert torch.equal(from_npz(path).x, torch.from_numpy(x) / 255)
    assert torch.equal(from_npz(path, part="train").x, torch.from_numpy(x[:2]) / 255)
    test = from_npz(path, part="test")
    assert torch.equal(test.x, torch.from_numpy(x[2:]) / 255)
    assert {from_npz(path, part="train").num_classes, test.num_classes} == {5}  # one number for both parts
    with refused("unknown-name", "part"):
        from_npz(save(tmp_path / "b.npz", x=x, y=[0, 1, 1]), part="test")


class Bomb:
    """An object whose unpickling would be noticed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("the pickle was opened",)


@pytest.mark.parametrize(
    ("x", "y", "code"),
    [
        (np.array([Bomb()], object), [0], "damaged-file"),
        (np.zeros((2, 3)), [0, 2_000_000_000], "out-of-range"),  # identifiers, not classes
        (np.zeros((2, 1, 2, 2), np.int64), [0, 1], "wrong-type"),
        (np.zeros((2, 1, 2, 2), ">u2"), [0, 1], "wrong-type"),
        (np.full((2, 1, 2, 2), 255.0), [0, 1], "out-of-range"),
        (np.full((2, 3), 1e300), [0, 1], "out-of-range"),
        (np.full((2, 3), np.nan), [0, 1], "not-finite"),
        (np.zeros((2, 0, 3)), [0, 1], "shape-mismatch"),
        (np.zeros((2, 8, 8, 4), np.uint8), [0, 1], "shape-mismatch"),
        (np.zeros((2, 3)), [0.0, 1.0], "wrong-type"),
        (np.zeros((2, 3)), ["cat", "dog"], "wrong-type"),
        (np.zeros((2, 3)), [0, 1, 1], "shape-mismatch"),
        (np.zeros((2, 3)), 1, "damaged-file"),
        (np.array([["a"], ["b"]]), [0, 1], "wrong-type"),
        (np.zeros((2, 3)), [-2, -1], "out-of-range"),
        (np.zeros((2, 3)), [[0, 1], [1, 0]], "shape-mismatch"),
    ],
)
def test_npz_refusals(tmp_path: Path, x: Any, y: Any, code: str) -> None:
    with refused(code):
        from_npz(save(tmp_path / "a.npz", x=x, y=y))


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut"])
def test_npz_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with refused("damaged-file", "path"):
        from_npz(tmp_path / "a.npz")


def test_npz_of_a_single_array_or_other_names_is_refused(tmp_path: Path) -> None:
    with refused("unknown-name", "path"):
        from_npz(save(tmp_path / "a.npz", pictures=np.zeros(3), y=[0]))
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with refused("wrong-type", "path"):
        from_npz(tmp_path / "a.npz")


class Listed(Dataset[Any]):
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Endless(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield torch.zeros(1)


def test_dataset_of_pairs() -> None:
    x = torch.rand(4, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data = from_dataset(TensorDataset(x, torch.tensor([0, 3, 1, 0])))
    assert torch.equal(data.x, x.float())
    assert data.y.tolist() == [0, 3, 1, 0]
    assert (data.num_classes, data.name) == (4, "TensorDataset")
    assert from_dataset(TensorDataset(x, torch.tensor([0, 3, 1, 0])), num_classes=7).num_classes == 7


def test_dataset_divides_bytes_only() -> None:
    data = from_dataset(Listed((torch.tensor([0, 51, 255], dtype=torch.uint8), 0)))
    torch.testing.assert_close(data.x, torch.tensor([[0.0, 0.2, 1.0]]))
    with refused("wrong-type", "x"):
        from_dataset(Listed((torch.tensor([0, 51, 255], dtype=torch.int32), 0)))


@pytest.mark.parametrize(
    ("dataset", "code"),
    [
        (Listed((torch.zeros(3), 0), (torch.zeros(4), 0)), "shape-mismatch"),
        (Listed((torch.zeros(3), 0.5)), "wrong-type"),
        (Listed(torch.zeros(3)), "wrong-type"),
        (Listed((np.zeros(3), 0)), "wrong-type"),
        (Listed(), "wrong-type"),
        (Endless(), "wrong-type"),
    ],
)
def test_dataset_refusals(dataset: Dataset[Any], code: str) -> None:
    with refused(code):
        from_dataset(dataset)


def test_npz_tables_may_name_columns_and_classes(tmp_path: Path) -> None:
    path, x = tmp_path / "t.npz", np.array([[0.0, 1.0], [0.5, 0.25]])
    np.savez(path, x=x, y=np.array([0, 1]), columns=np.array(["age", "dose"]), classes=np.array(["well", "ill"]))
    columns = from_npz(path).columns
    assert columns is not None
    assert [column.name for column in columns.columns] == ["age", "dose"]
    assert columns.describe_label(1) == "ill"
    np.savez(path, x=x, y=np.array([0, 1]), columns=np.array(["age"]))
    with refused("shape-mismatch", "columns"):
        from_npz(path)
