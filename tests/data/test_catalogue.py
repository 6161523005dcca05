"""The catalogue, where files are looked for, and what `load` says when something is missing or wrong."""

import gzip
import hashlib
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused

from remanence.data import catalogue
from remanence.data.catalogue import CATALOGUE, Entry, data_folders, fetch_named, list_named, load
from remanence.data.download import KnownFile


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """`$REMANENCE_DATA` and the cache, both empty."""
    monkeypatch.setenv("REMANENCE_DATA", str(tmp_path / "given"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "given", tmp_path / "cache" / "remanence"


def known_as(monkeypatch: pytest.MonkeyPatch, name: str, contents: dict[str, bytes]) -> None:
    """The entry `name` with the digests of `contents`, so that small files pass for the published ones."""
    entry = CATALOGUE[name]
    assert [file.name for file in entry.source.files] == list(contents)
    files = tuple(replace(file, digest=digest(file, contents[file.name])) for file in entry.source.files)
    small: Entry = replace(entry, source=replace(entry.source, files=files))
    monkeypatch.setitem(catalogue.CATALOGUE, name, small)


def digest(file: KnownFile, content: bytes) -> str:
    return hashlib.new(file.algorithm, content).hexdigest()


def put(folder: Path, contents: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def idx(values: bytes, *shape: int) -> bytes:
    return gzip.compress(struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + values, mtime=0)


MNIST = {
    "train-images-idx3-ubyte.gz": idx(bytes(range(8)), 2, 2, 2),
    "train-labels-idx1-ubyte.gz": idx(b"\x05\x09", 2),
    "t10k-images-idx3-ubyte.gz": idx(b"\xff" * 4, 1, 2, 2),
    "t10k-labels-idx1-ubyte.gz": idx(b"\x01", 1),
}
CIFAR10 = {f"data_batch_{i}.bin": bytes([i]) + bytes([i]) * 3072 for i in range(1, 6)}
CIFAR10["test_batch.bin"] = b"\x09" + bytes(3072)
CIFAR100 = {"train.bin": b"\x01\x63" + b"\xff" * 3072, "test.bin": b"\x02\x07" + bytes(3072)}


def test_digits_agree_with_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    data, reference = load("digits"), load_digits()
    assert data.x.shape == (1797, 1, 8, 8)
    assert data.x.dtype == torch.float32
    assert np.array_equal(data.x.flatten(1).numpy() * 16, reference.data)
    assert np.array_equal(data.y.numpy(), reference.target)
    assert (data.num_classes, data.name) == (10, "digits")
    with refused("conflict", "part"):
        load("digits", part="test")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_sets_and_their_parts(name: str, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    known_as(monkeypatch, name, MNIST)
    put(folders[0] / name, MNIST)
    assert load(name).y.tolist() == [5, 9, 1]
    assert load(name, part="train").y.tolist() == [5, 9]
    test = load(name, part="test")
    assert test.y.tolist() == [1]
    assert test.x.unique().tolist() == [1.0]
    assert (test.name, test.num_classes, test.shape) == (name, 10, (1, 2, 2))


def test_cifar_sets_and_their_parts(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    known_as(monkeypatch, "cifar10", CIFAR10)
    known_as(monkeypatch, "cifar100", CIFAR100)
    put(folders[1] / "cifar-10-batches-bin", CIFAR10)
    put(folders[1] / "cifar-100-binary", CIFAR100)
    assert load("cifar10").y.tolist() == [1, 2, 3, 4, 5, 9]
    assert load("cifar10", part="train").y.tolist() == [1, 2, 3, 4, 5]
    assert load("cifar10", part="test").y.tolist() == [9]
    assert load("cifar100").y.tolist() == [0x63, 0x07]
    assert load("cifar100", part="test").num_classes == 100


def test_the_given_folder_comes_before_the_cache(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    known_as(monkeypatch, "mnist", MNIST)
    put(folders[1] / "mnist", MNIST)
    assert len(load("mnist")) == 3
    put(folders[0] / "mnist", {"t10k-labels-idx1-ubyte.gz": b"damaged"})
    with refused("damaged-file", "source"):
        load("mnist")
    assert len(load("mnist", part="train")) == 2  # the damaged file is not needed


def test_folders_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folders() == [tmp_path / "given", tmp_path / "cache" / "remanence"]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("REMANENCE_DATA", "~/mine")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folders() == [tmp_path / "mine", tmp_path / ".cache" / "remanence"]
    monkeypatch.setenv("REMANENCE_DATA", "")
    assert data_folders() == [tmp_path / ".cache" / "remanence"]


@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if entry.source])
def test_missing_files_name_the_command(name: str) -> None:
    with refused("missing-file", "source"):
        load(name)


def test_a_changed_file_is_refused(folders: tuple[Path, Path]) -> None:
    put(folders[0] / "mnist", MNIST)  # well formed, but not the published ones
    with refused("damaged-file", "source"):
        load("mnist")
    put(folders[0] / "cifar-10-batches-bin", CIFAR10)
    with refused("damaged-file", "source"):
        load("cifar10")


def test_the_listing(folders: tuple[Path, Path]) -> None:
    put(folders[1] / "mnist", MNIST)
    put(folders[0] / "cifar-100-binary", {"train.bin": b""})  # half a set is not present
    found = {listing.name: listing for listing in list_named()}
    assert list(found) == ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100"]
    assert {name for name, listing in found.items() if listing.present} == {"digits", "mnist"}
    assert found["mnist"].where == folders[1] / "mnist"
    assert found["digits"].where is found["cifar100"].where is None
    assert "1x28x28" in found["mnist"].description


def test_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("own.npz", x=np.zeros((2, 4)), y=[0, 1], x_test=np.zeros((1, 4)), y_test=[0])
    assert len(load("own.npz")) == 3
    assert len(load(Path("own.npz"), part="test")) == 1
    Path("own.csv").write_text("a,kind\n1,x\n2,y\n")
    assert load("own.csv", label="kind").y.tolist() == [0, 1]
    (tmp_path / "mnist" / "one").mkdir(parents=True)
    Image.new("L", (2, 2)).save(tmp_path / "mnist" / "one" / "1.png")
    for folder in ("./mnist", Path("mnist"), str(tmp_path / "mnist")):
        assert load(folder).shape == (1, 2, 2)  # a path, not the catalogue's name


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("a,kind\n1,x\n")
    (tmp_path / "own.parquet").write_bytes(b"")
    for source, keywords, code in [
        ("mnits", {}, "unknown-name"),
        ("mnist", {"part": "trian"}, "unknown-name"),
        ("mnist", {"label": "kind"}, "conflict"),
        (tmp_path / "own.csv", {}, "missing-argument"),
        (tmp_path / "own.csv", {"label": "kind", "part": "test"}, "conflict"),
        (tmp_path / "own.parquet", {}, "wrong-type"),
        (tmp_path / "nowhere", {}, "missing-file"),
        ("./nowhere", {}, "missing-file"),
        ("", {}, "unknown-name"),
        (tmp_path / "nowhere.csv", {}, "missing-file"),
        (tmp_path / "nowhere.npz", {}, "missing-file"),
        (tmp_path / "nowhere.csv", {"label": "kind"}, "missing-file"),
    ]:
        with refused(code):
            load(source, **keywords)


def test_fetching_by_name(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    known_as(monkeypatch, "mnist", MNIST)
    put(folders[0] / "mnist", MNIST)
    nowhere = "http://127.0.0.1:1/"  # never asked, since everything is there
    assert [path.name for path in fetch_named("mnist", address=nowhere)] == list(MNIST)
    assert fetch_named("digits") == []
    with refused("unknown-name", "name"):
        fetch_named("cifar-100")


def test_the_catalogue_is_well_formed() -> None:
    sources = [entry.source for entry in CATALOGUE.values() if entry.source]
    files = [file for source in sources for file in (*source.files, *([source.archive] if source.archive else []))]
    assert len({file.digest for file in files}) == len(files) == 4 + 4 + 7 + 3
    for file in files:
        assert re.fullmatch(r"[0-9a-f]+", file.digest)
        assert len(file.digest) == {"md5": 32, "sha1": 40}[file.algorithm]
