"""The readers against bytes written here by hand, and their refusals."""

import csv
import gzip
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from remanence.data.formats import from_csv, from_dataset, from_image_folder, from_npz, read_cifar, read_idx
from remanence.errors import BadInput

PIXELS = [[[0, 51, 102], [153, 204, 255]], [[1, 2, 3], [4, 5, 6]]]  # two images of 2 x 3


def idx_bytes(values: bytes, *shape: int) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + values


def write_idx(folder: Path, *, gz: bool = False, images: bytes = b"", labels: bytes = b"") -> list[Path]:
    flat = bytes(value for image in PIXELS for row in image for value in row)
    contents = [images or idx_bytes(flat, 2, 2, 3), labels or idx_bytes(b"\x03\x00", 2)]
    paths = [folder / "images", folder / "labels"]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(gzip.compress(content) if gz else content)
    return paths


@pytest.mark.parametrize("gz", [False, True])
def test_idx_reads_pixels_and_labels(tmp_path: Path, gz: bool) -> None:
    data = read_idx(*write_idx(tmp_path, gz=gz), num_classes=4, name="small")
    assert data.x.dtype == torch.float32
    assert data.x.shape == (2, 1, 2, 3)
    for n, image in enumerate(PIXELS):
        for row in range(2):
            for column in range(3):
                assert data.x[n, 0, row, column].item() == np.float32(image[row][column]) / np.float32(255)
    assert data.y.tolist() == [3, 0]
    assert (data.num_classes, data.name) == (4, "small")


def test_idx_refuses_swapped_cut_and_unequal_files(tmp_path: Path) -> None:
    images, labels = write_idx(tmp_path)
    with pytest.raises(BadInput, match=r"labels must be .* 3 axes \(magic 0x00000803\).*0x00000801"):
        read_idx(labels, images, num_classes=10, name="small")
    images, labels = write_idx(tmp_path, images=idx_bytes(b"\0" * 11, 2, 2, 3))
    with pytest.raises(BadInput, match=r"must hold 12 bytes .* got 11"):
        read_idx(images, labels, num_classes=10, name="small")
    images, labels = write_idx(tmp_path, labels=idx_bytes(b"\0\0\0", 3))
    with pytest.raises(BadInput, match="2 images and 3 labels"):
        read_idx(images, labels, num_classes=10, name="small")


@pytest.mark.parametrize("damage", [b"", b"\x00\x00", b"\x1f\x8bjunk", gzip.compress(b"\0" * 99)[:-9]])
def test_idx_refuses_damaged_files(tmp_path: Path, damage: bytes) -> None:
    images, labels = write_idx(tmp_path)
    images.write_bytes(damage)
    with pytest.raises(BadInput, match="images"):
        read_idx(images, labels, num_classes=10, name="small")


def test_idx_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere does not exist"):
        read_idx(tmp_path / "nowhere", tmp_path / "nowhere", num_classes=10, name="small")


def cifar_record(labels: bytes, *, red: int, green: int, blue: int) -> bytes:
    """One image of one colour, but for the last pixel of the first row, whose red is 255."""
    reds = bytearray([red] * 1024)
    reds[31] = 255
    return labels + bytes(reds) + bytes([green] * 1024) + bytes([blue] * 1024)


def test_cifar_10_layout(tmp_path: Path) -> None:
    first, second = tmp_path / "1.bin", tmp_path / "2.bin"
    first.write_bytes(cifar_record(b"\x07", red=51, green=0, blue=102))
    second.write_bytes(cifar_record(b"\x01", red=0, green=0, blue=0) + cifar_record(b"\x02", red=1, green=1, blue=1))
    data = read_cifar([first, second], label_bytes=1, num_classes=10, name="c")
    assert data.x.shape == (3, 3, 32, 32)
    assert data.x.is_contiguous()
    assert data.y.tolist() == [7, 1, 2]
    torch.testing.assert_close(data.x[0, :, 5, 5], torch.tensor([0.2, 0.0, 0.4]))
    assert data.x[0, 0, 0, 31] == 1.0  # the end of a row: height comes before width
    assert data.x[0, 0, 31, 0] == torch.tensor(51 / 255)


def test_cifar_100_takes_the_fine_label(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(cifar_record(b"\x0b\x55", red=1, green=2, blue=255))
    data = read_cifar([path], label_bytes=2, num_classes=100, name="c")
    assert data.y.tolist() == [0x55]
    assert data.x[0, 2].min() == 1.0


@pytest.mark.parametrize("size", [0, 3072, 3074, 2 * 3073 - 1])
def test_cifar_refuses_broken_records(tmp_path: Path, size: int) -> None:
    path = tmp_path / "cut.bin"
    path.write_bytes(bytes(size))
    with pytest.raises(BadInput, match=rf"cut\.bin must hold whole CIFAR records of 3073 bytes, got {size}"):
        read_cifar([path], label_bytes=1, num_classes=10, name="c")


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


def test_npz_parts(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.uint8).reshape(3, 1, 2, 2)
    path = save(tmp_path / "a.npz", x=x[:2], y=[0, 1], x_test=x[2:], y_test=[4])
    assert torch.equal(from_npz(path).x, torch.from_numpy(x) / 255)
    assert torch.equal(from_npz(path, part="train").x, torch.from_numpy(x[:2]) / 255)
    test = from_npz(path, part="test")
    assert torch.equal(test.x, torch.from_numpy(x[2:]) / 255)
    assert {from_npz(path, part="train").num_classes, test.num_classes} == {5}  # one number for both parts
    with pytest.raises(BadInput, match="_test"):
        from_npz(save(tmp_path / "b.npz", x=x, y=[0, 1, 1]), part="test")


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((2, 1, 2, 2), np.int64), [0, 1], "must hold floats in .* got torch.int64: divide"),
        (np.zeros((2, 1, 2, 2), ">u2"), [0, 1], "must hold floats in .* got torch.uint16: divide"),
        (np.full((2, 1, 2, 2), 255.0), [0, 1], "rescale"),
        (np.full((2, 3), 1e300), [0, 1], "rescale"),
        (np.full((2, 3), np.nan), [0, 1], "rescale"),
        (np.zeros((2, 8, 8, 4), np.uint8), [0, 1], "1 or 3 channels"),
        (np.zeros((2, 3)), [0.0, 1.0], "labels .* integers"),
        (np.zeros((2, 3)), ["cat", "dog"], "labels .* integers"),
        (np.zeros((2, 3)), [0, 1, 1], "one int64 label for each of the 2"),
        (np.zeros((2, 3)), 1, "cannot be read"),
        (np.array([["a"], ["b"]]), [0, 1], "must be numbers"),
        (np.zeros((2, 3)), [-1, 1], "labels .* must lie"),
    ],
)
def test_npz_refusals(tmp_path: Path, x: Any, y: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        from_npz(save(tmp_path / "a.npz", x=x, y=y))


class Bomb:
    """An object whose unpickling would be noticed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("the pickle was opened",)


def test_npz_opens_no_pickle(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", x=np.array([Bomb()], object), y=[0])
    with pytest.raises(BadInput, match=r"a\.npz cannot be read"):
        from_npz(path)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut"])
def test_npz_damage(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"a\.npz cannot be read as a \.npz file"):
        from_npz(path)


def test_npz_wrong_keys_and_single_array(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="`x` and `y` or `images` and `labels`, got pictures, y"):
        from_npz(save(tmp_path / "a.npz", pictures=np.zeros(3), y=[0]))
    with (tmp_path / "b.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(BadInput, match="single array"):
        from_npz(tmp_path / "b.npz")


def put(folder: Path, name: str, pixels: Any, mode: str | None = None) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(pixels, np.uint8))
    (image.convert(mode) if mode else image).save(path)
    return path


def test_image_folder_sorts_classes_and_keeps_grey(tmp_path: Path) -> None:
    put(tmp_path, "zebra/1.png", [[0, 51], [102, 255]])
    put(tmp_path, "ant/2.PNG", [[1, 1], [1, 1]])
    put(tmp_path, "ant/10.bmp", [[2, 2], [2, 2]])
    (tmp_path / "ant" / "Thumbs.db").write_bytes(b"junk")
    (tmp_path / ".hidden").mkdir()
    data = from_image_folder(tmp_path)
    assert data.x.shape == (3, 1, 2, 2)
    assert data.x.dtype == torch.float32
    assert (data.x[:, 0, 0, 0] * 255).round().tolist() == [2, 1, 0]  # ant/10, ant/2, zebra/1
    torch.testing.assert_close(data.x[2, 0], torch.tensor([[0.0, 0.2], [0.4, 1.0]]))
    assert data.y.tolist() == [0, 0, 1]
    assert (data.num_classes, data.name) == (2, tmp_path.name)


def test_one_colour_image_makes_all_colour(tmp_path: Path) -> None:
    put(tmp_path, "a/grey.png", [[51, 51]])
    put(tmp_path, "b/colour.png", [[[255, 0, 51], [0, 255, 0]]])
    x = from_image_folder(tmp_path).x
    assert x.shape == (2, 3, 1, 2)
    torch.testing.assert_close(x[0], torch.full((3, 1, 2), 0.2))
    torch.testing.assert_close(x[1, :, 0, 0], torch.tensor([1.0, 0.0, 0.2]))


def test_palette_alpha_jpeg_and_webp(tmp_path: Path) -> None:
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    (tmp_path / "a").mkdir()
    palette.save(tmp_path / "a" / "1.png", transparency=b"\x80\xff")
    put(tmp_path, "a/2.png", np.full((8, 8, 4), (255, 0, 0, 7)))
    put(tmp_path, "a/3.jpeg", np.full((8, 8, 3), (255, 0, 0)))
    put(tmp_path, "a/4.webp", np.full((8, 8, 3), (255, 0, 0)))
    grey = Image.new("L", (8, 8), 255)
    grey.save(tmp_path / "a" / "5.png", transparency=3)
    x = from_image_folder(tmp_path).x
    expected = torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1).expand(4, 3, 8, 8)
    torch.testing.assert_close(x[:4], expected, atol=0.03, rtol=0)  # the lossy two are near, not equal
    assert x[4].min() == 1.0


def test_image_folder_refuses_two_sizes(tmp_path: Path) -> None:
    for name, shape in {"a/1.png": (2, 3), "a/2.png": (2, 3), "b/3.png": (4, 5), "b/4.png": (6, 7)}.items():
        put(tmp_path, name, np.zeros(shape))
    with pytest.raises(BadInput, match=r"\(3, 2\) for .*1\.png and \(5, 4\) for .*3\.png: resize"):
        from_image_folder(tmp_path)


def test_image_folder_refuses_emptiness(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="one sub-folder"):
        from_image_folder(tmp_path)
    put(tmp_path, "full/1.png", [[1]])
    (tmp_path / "hollow").mkdir()
    with pytest.raises(BadInput, match=r"class folder .*hollow"):
        from_image_folder(tmp_path)
    with pytest.raises(BadInput, match="nowhere does not exist"):
        from_image_folder(tmp_path / "nowhere")


def test_image_folder_names_unreadable_files(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3))
    path = put(tmp_path, "a/1.png", noise)
    whole = path.read_bytes()
    Image.new("L", (64, 64)).save(tmp_path / "disguised.gif")  # whole, but not of the formats that are allowed
    disguised = (tmp_path / "disguised.gif").read_bytes()
    for content in (b"", b"junk", whole[:40], whole[: len(whole) // 2], disguised):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=r"1\.png cannot be read as an image"):
            from_image_folder(tmp_path)


def test_image_folder_refuses_sixteen_bits(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((2, 2), 40_000, np.uint16)).save(tmp_path / "a" / "1.png")
    with pytest.raises(BadInput, match=r"1\.png must have 8 bits"):
        from_image_folder(tmp_path)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("factor", [0.6, 0.2])  # Pillow only warns up to twice its limit, then raises
def test_image_folder_refuses_decompression_bombs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    put(tmp_path, "a/1.png", np.zeros((10, 10)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(100 * factor))
    with pytest.raises(BadInput, match=r"1\.png .* decompression bomb"):
        from_image_folder(tmp_path)


def table(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_csv_scales_columns_and_sorts_classes(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "age,kind,height,same", "20,dog,-1,7", "30,cat,0,7", "40, dog ,3,7", "")
    data = from_csv(path, "kind")
    assert data.x.dtype == torch.float32
    assert data.x.tolist() == [[0.0, 0.0, 0.0], [0.5, 0.25, 0.0], [1.0, 1.0, 0.0]]
    assert data.y.tolist() == [1, 0, 1]
    assert (data.num_classes, data.name, data.is_image) == (2, "t", False)


@pytest.mark.parametrize(
    ("cells", "expected"), [("2 0 1", [2, 0, 1]), ("2.0 0.0 1.0", [2, 0, 1]), ("2 0 x", [1, 0, 2])]
)
def test_csv_numeric_labels_stay_and_names_are_sorted(tmp_path: Path, cells: str, expected: list[int]) -> None:
    rows = [f"{i},{cell}" for i, cell in enumerate(cells.split())]
    data = from_csv(table(tmp_path / "t.csv", "a,y", *rows), "y")
    assert data.y.tolist() == expected
    assert data.num_classes == 3


def test_csv_reads_what_spreadsheets_write(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["y", "a, b"], ["no", "1e1"], ["yes", "2e1"]])
    data = from_csv(path, "y")
    assert data.x.tolist() == [[0.0], [1.0]]
    assert data.y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a,b,y", "1,2,0", "1,two,0"], r"row 3, column `b` of .*t\.csv must be a finite number, got 'two'"),
        (["a,b,y", "1,,0"], "row 2, column `b` .* got ''"),
        (["a,b,y", "nan,1,0"], "row 2, column `a` .* got 'nan'"),
        (["a,b,y", "1,2,0", "1,2"], "row 3 .* 3 values .* got 2"),
        (["a,b,y"], "then rows"),
        ([""], "then rows"),
        (["y", "1"], "at least two different column names"),
        (["a,a,y", "1,2,0"], "at least two different column names"),
        (["a,b,y", "1,2,0.5"], "class numbers or names, got 0.5"),
        (["a,b,y", "1,2,1e300"], "class numbers or names"),
        (["a,b,y", "1,2,"], "label column `y` .* no gaps"),
        (["a,b,y", "1,2,-1"], "labels of t must lie"),
    ],
)
def test_csv_refusals(tmp_path: Path, rows: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        from_csv(table(tmp_path / "t.csv", *rows), "y")


def test_csv_suggests_the_label_and_names_broken_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown label column `speces`: did you mean `species`"):
        from_csv(table(tmp_path / "t.csv", "a,species", "1,x"), "speces")
    (tmp_path / "u.csv").write_bytes("a,y\n1,é\n".encode("utf-16"))
    with pytest.raises(BadInput, match=r"u\.csv cannot be read as a CSV file"):
        from_csv(tmp_path / "u.csv", "y")


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
    with pytest.raises(BadInput, match=r"got torch\.int32: divide"):
        from_dataset(Listed((torch.tensor([0, 51, 255], dtype=torch.int32), 0)))


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Listed((torch.zeros(3), 0), (torch.zeros(4), 0)), r"\(3,\) for record 0 and \(4,\) for record 1"),
        (Listed((torch.zeros(3), 0.5)), r"\(tensor, int\), got \['Tensor', 'float'\]"),
        (Listed(torch.zeros(3)), r"\(tensor, int\), got Tensor"),
        (Listed((np.zeros(3), 0)), "record 0 of Listed must be a tensor, got ndarray"),
        (Listed(), "at least one record"),
        (Endless(), "map-style"),
    ],
)
def test_dataset_refusals(dataset: Dataset[Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        from_dataset(dataset)
