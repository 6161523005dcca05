"""Data files and folders of a stranger are parsed or refused: at once, in one short line, without unpacking a bomb."""

import io
import os
import resource
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from PIL import Image
from refusals import refused

from remanence.auditing.inputs.sources import load_records
from remanence.data import data_folders, fetch_named, from_idx, from_image_folder, list_named, load

CONTROL = "\x1b[2J\x1b]0;owned\x07"


@contextmanager
def refused_soon(code: str) -> Iterator["pytest.ExceptionInfo[Any]"]:
    """Expect a refusal within five seconds and 300 MB, in one printable line of at most 1,000 characters."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, process_time()
    with refused(code) as caught:
        yield caught
    assert process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
    assert len(str(caught.value)) <= 1000
    assert str(caught.value).isprintable()


def npy(array: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def npy_header(header: str, version: int = 1) -> bytes:
    text = header.encode("latin-1")
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text


def write_npz(path: Path, method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> str:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return str(path)


X, Y = npy(np.zeros((3, 2))), npy(np.arange(3))
STRUCTURED = np.zeros(3, [("a", "i4"), ("b", "f8")])
NO_ARRAYS: dict[str, tuple[bytes, str]] = {
    "objects": (npy(np.array([{"a": 1}], object), allow_pickle=True), "damaged-file"),
    "text": (b"1,2,3\n", "damaged-file"),
    "empty": (b"", "damaged-file"),
    "truncated": (X[:-5], "damaged-file"),
    "longer": (X + b"more", "damaged-file"),
    "structured": (npy(STRUCTURED), "wrong-type"),
    "complex": (npy(np.zeros(3, complex)), "wrong-type"),
    "dates": (npy(np.zeros(3, "datetime64[D]")), "wrong-type"),
    "version 9": (X[:6] + b"\x09\x00" + X[8:], "damaged-file"),
    "huge shape": (npy_header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({10**18},)}}"), "damaged-file"),
    "400 digits": (npy_header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': (1{'0' * 400},)}}"), "damaged-file"),
    "negative shape": (npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -3)}"), "damaged-file"),
    "deep header": (npy_header("(" * 9000 + ")" * 900), "damaged-file"),
    "minus signs": (npy_header("-" * 9000 + "1"), "damaged-file"),
    "long header": (npy_header(" " * 50_000), "damaged-file"),
    "endless header": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100_000, "damaged-file"),
    "wide text": (npy_header(f"{{'descr': '<U{2**29}', 'fortran_order': False, 'shape': (9,)}}"), "damaged-file"),
}


@pytest.mark.parametrize("member", ["x", "y"])
@pytest.mark.parametrize("case", NO_ARRAYS)
def test_members_that_are_no_arrays_are_refused(tmp_path: Path, case: str, member: str) -> None:
    content, code = NO_ARRAYS[case]
    source = write_npz(tmp_path / "a.npz", **{"x": X, "y": Y, member: content})
    with refused_soon(code) as caught:
        load_records([source], None)
    assert f"`{member}`" in str(caught.value)


def test_all_problems_of_an_npz_stand_in_one_message(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "a.npz", x=b"text", y=npy(STRUCTURED), columns=X[:20])
    with refused_soon("damaged-file") as caught:
        load(source)
    assert all(f"`{name}`" in str(caught.value) for name in ("x", "y", "columns"))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing_are_refused(tmp_path: Path, method: int) -> None:
    with refused_soon("damaged-file"):
        load(write_npz(tmp_path / "a.npz", method, x=X, y=Y))


def zeros(count: int) -> bytes:
    """A deflated stream of so many zeros, made without having them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = bytes(2**24)
    return b"".join(packer.compress(block) for _ in range(count // len(block))) + packer.flush()


def bomb(size: int, packed: bytes, *, declared: int) -> bytes:
    """An .npz whose `x` says that it has `declared` bytes, and unpacks to `size`."""
    head = npy_header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size // 4}, 4)}}")
    stored = zlib.compressobj(0, zlib.DEFLATED, -15)
    start = stored.compress(head) + stored.flush(zlib.Z_SYNC_FLUSH)
    name, content = b"x.npy", start + packed
    fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 0, 0, len(content), min(declared, 2**32 - 1), len(name), 0)
    local = b"PK\x03\x04" + fields + name + content
    entry = b"PK\x01\x02\x14\x00" + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry), len(local), 0)
    return local + entry + end


@pytest.mark.slow
def test_a_bomb_of_six_gigabytes_is_not_unpacked(tmp_path: Path) -> None:
    path, size = tmp_path / "a.npz", 6 * 2**30
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("y.npy", Y)
    packed = zeros(2**30)  # a sixth of it is enough to be refused
    for declared in (2**32 - 2, 100, 2**27):
        path.write_bytes(bomb(size, packed, declared=declared))
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("y.npy", Y)
        with refused_soon("too-large" if declared > 2**27 else "damaged-file"):
            load(str(path))


def test_very_many_members_are_not_listed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", X)
    content = (tmp_path / "a.npz").read_bytes()
    end = content.rindex(b"PK\x05\x06")
    entry = content[content.rindex(b"PK\x01\x02") : end]
    many = struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry) * 100_000, len(content) - len(entry) - 22, 0)
    (tmp_path / "a.npz").write_bytes(content[: end - len(entry)] + entry * 100_000 + b"PK\x05\x06" + many)
    start = process_time()
    with refused_soon("damaged-file"):
        load(str(tmp_path / "a.npz"))
    assert process_time() - start < 0.5


def test_a_gzip_bomb_of_an_idx_file_is_not_unpacked(tmp_path: Path) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = struct.pack(">IIII", 0x803, 6 * 2**20, 32, 32)
    content = packer.compress(head) + b"".join(packer.compress(bytes(2**20)) for _ in range(64)) + packer.flush()
    (tmp_path / "images").write_bytes(content)
    with refused_soon("too-large"):
        from_idx(tmp_path / "images", tmp_path / "images", num_classes=2, name="a")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


NO_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (make_fifo, "wrong-type"),
    "device": (link_to("/dev/zero"), "wrong-type"),
    "terminal": (link_to("/dev/tty"), "damaged-file"),
    "folder": (Path.mkdir, "wrong-type"),
    "loop": (lambda path: path.symlink_to(path.name), "damaged-file"),
    "dangling": (link_to("nowhere"), "missing-file"),
}


@pytest.mark.parametrize("name", ["a.npz", "a.csv"])
@pytest.mark.parametrize("case", NO_FILES)
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path, case: str, name: str) -> None:
    make, code = NO_FILES[case]
    make(tmp_path / name)
    with refused_soon(code):
        load_records([str(tmp_path / name)], "y" if name == "a.csv" else None)


@pytest.mark.parametrize("case", [case for case in NO_FILES if case != "folder"])
def test_images_that_are_no_regular_files_are_refused(tmp_path: Path, case: str) -> None:
    make, code = NO_FILES[case]
    (tmp_path / "a").mkdir()
    make(tmp_path / "a" / "1.png")
    with refused_soon(code):
        from_image_folder(tmp_path)


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A grey PNG that says that it has this size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows or zlib.compress(b"")) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(("width", "height"), [(2**31 - 1, 2**31 - 1), (20_000, 20_000), (6000, 6000)])
def test_decompression_bombs_among_images_are_refused(tmp_path: Path, width: int, height: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(png(width, height))
    with refused_soon("too-large"):
        from_image_folder(tmp_path)


def test_many_large_images_of_few_bytes_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for i in range(20):
        (tmp_path / "a" / f"{i}.png").write_bytes(png(5000, 5000))
    with refused_soon("too-large"):
        from_image_folder(tmp_path)


def test_all_broken_images_of_a_folder_stand_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "a" / "0.png")
    for i in range(1, 300):
        (tmp_path / "a" / f"{CONTROL}{i}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * i)
    with refused_soon("damaged-file") as caught:
        from_image_folder(tmp_path)
    assert "294 more of 300 images" in str(caught.value)


LONG = "z" * 100_000
CSV: dict[str, tuple[str, str]] = {
    "controls in a name": (f"a{CONTROL},y\nx,1\nz,2\n", "wrong-type"),
    "controls in cells": (f"a,y\n1,1\n{CONTROL},2\n" + "3,1\n" * 20, "wrong-type"),
    "long cells": (f"a,y\n1,1\n{LONG},2\n" + "3,1\n" * 20, "wrong-type"),
    "long category": (f"a,y\n{LONG},1\n{LONG},2\nb,2\n", "wrong-type"),
    "long name": (f"{LONG},y\n1,2\n2,3\n", "too-large"),
    "blanks in a name": (f"a{' ' * 100_000}b,y\n1,2\n2,3\n", "too-large"),
    "brackets in a name": (f"{'[' * 100_000},y\n1,2\n2,3\n", "too-large"),
    "no label": (",".join(f"column {i}" for i in range(20_000)) + "\n" + "1," * 19_999 + "1\n", "unknown-name"),
    "long cells beyond the parser": (f"a,y\n{LONG * 3},2\n", "damaged-file"),
    "texts": (
        ",".join([*(f"column {i}" for i in range(2000)), "y"]) + ("\n" + ",".join(["q"] * 2000 + ["1"])) * 3,
        "wrong-type",
    ),
    "rows": ("a,b,y\n" + "1,2\n" * 50_000, "shape-mismatch"),
    "one name": ("a,a,y\n1,2,3\n", "damaged-file"),
    "nothing": ("\x00" * 1000, "damaged-file"),
}


@pytest.mark.parametrize("case", CSV)
def test_tables_of_a_stranger_are_refused(tmp_path: Path, case: str) -> None:
    text, code = CSV[case]
    (tmp_path / "a.csv").write_text(text)
    with refused_soon(code):
        load(str(tmp_path / "a.csv"), label="y")


@pytest.mark.slow
def test_wide_tables_and_tables_of_gaps_take_no_longer_than_their_cells(tmp_path: Path) -> None:
    start = process_time()
    (tmp_path / "wide.csv").write_text(
        ",".join([*(f"c{i}" for i in range(20_000)), "y"]) + ("\n" + ",".join(map(str, range(20_001)))) * 2
    )
    assert load(str(tmp_path / "wide.csv"), label="y").shape == (20_000,)
    (tmp_path / "gaps.csv").write_text("a,y\n" + "1.5,0\n,1\n" * 20_000)
    assert load(str(tmp_path / "gaps.csv"), label="y", encode="auto").shape == (2,)
    (tmp_path / "many.csv").write_text("a,b,y\n" + "".join(f"x{i // 3},{i},0\n" for i in range(20_000)))
    with refused_soon("empty"):  # categories beyond number would be a feature each
        load(str(tmp_path / "many.csv"), label="y", encode="auto")
    assert process_time() - start < 5


def test_the_largest_and_smallest_numbers_are_scaled(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,y\n1.7e308,5e-324,0\n-1.7e308,0,1\n1.7e308,0,1\n")
    assert load(str(tmp_path / "a.csv"), label="y").x[:, 0].tolist() == [1.0, 0.0, 1.0]
    (tmp_path / "b.csv").write_text("a,y\n1.7e308,0\n1.7e308,1\n,1\n")
    assert load(str(tmp_path / "b.csv"), label="y", encode="auto").x.isfinite().all()


def test_names_from_files_are_escaped_where_they_stay(tmp_path: Path) -> None:
    path = tmp_path / f"{CONTROL.replace('/', '')}.csv"
    path.write_text(f"a{CONTROL},job,y\n1,{CONTROL},{CONTROL}x\n2,b,z\n3,c,z\n")
    data = load(str(path), label="y", encode="auto")
    assert data.columns is not None
    names = [column.name for column in data.columns.columns] + [*data.columns.columns[1].categories]
    assert all(name.isprintable() for name in (data.name, *names, *data.columns.classes, *data.columns.notes))
    source = write_npz(
        tmp_path / "a.npz", x=npy(np.zeros((2, 1))), y=npy(np.arange(2)), columns=npy(np.array([CONTROL]))
    )
    columns = load(source).columns
    assert columns is not None
    assert columns.columns[0].name.isprintable()


def test_raw_tables_of_other_shapes_and_labels_are_refused(tmp_path: Path) -> None:
    one = write_npz(tmp_path / "a.npz", x=npy(np.full((3, 2), 9.0)), y=Y)
    other = write_npz(tmp_path / "b.npz", x=npy(np.full((3, 4), 9.0)), y=Y)
    with refused_soon("shape-mismatch"):
        load_records([one, other], None)
    with refused_soon("out-of-range"):
        load_records([write_npz(tmp_path / "c.npz", x=X, y=npy(np.array([0, 1, 10**12])))], None)


@pytest.mark.parametrize("source", ["~nosuchuser/a.npz", "~nosuchuser/a.csv", "~nosuchuser/faces", "~nosuchuser"])
def test_an_unknown_home_is_named(source: str) -> None:
    with refused_soon("missing-file"):
        load(source, label="y" if source.endswith(".csv") else None)
    with refused_soon("missing-file"):
        load_records([source], "y" if source.endswith(".csv") else None)


def test_names_that_no_file_system_takes_are_refused(tmp_path: Path) -> None:
    for name in ("a" * 5000, "a/" * 5000 + "b", "a\0b"):
        for suffix in ("", ".npz", ".csv"):
            with refused("damaged-file" if suffix or "\0" not in name else "missing-file"):
                load(f"{tmp_path}/{name}{suffix}", label="y" if suffix == ".csv" else None)


def test_without_a_home_the_data_folder_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    for name in ("REMANENCE_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert data_folders() == []
    assert [entry.present for entry in list_named() if entry.name == "digits"] == [True]
    for use in (lambda: load("mnist"), lambda: fetch_named("mnist")):
        with refused("missing-file") as caught:
            use()
        assert "REMANENCE_DATA" in str(caught.value)
    monkeypatch.setenv("REMANENCE_DATA", str(tmp_path))
    assert data_folders() == [tmp_path]
    monkeypatch.setenv("REMANENCE_DATA", "~nosuchuser/data")
    with refused("missing-file", "REMANENCE_DATA"):
        list_named()
