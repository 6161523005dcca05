"""Files of records: .npz, .csv and images in a folder, as the options of an audit name them."""

import struct
import zipfile
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from remanence.auditing.inputs.sources import load_records
from remanence.types import Data
from targets import Target

IMAGES = {".png": "PNG", ".jpg": "JPEG", ".bmp": "BMP", ".webp": "WEBP"}


def npz_file(*, compressed: bool = False, **arrays: object) -> bytes:
    """What `numpy.savez` writes."""
    buffer = BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def seeds() -> Mapping[str, bytes]:
    rng = np.random.default_rng(0)
    x, y = rng.random((6, 1, 4, 4), dtype=np.float32), np.arange(6) % 3
    pixels, table = (x * 255).astype("uint8"), rng.normal(0, 9, (6, 3)).astype("float32")
    return {
        "images.npz": npz_file(x=x, y=y),
        "parts.npz": npz_file(images=pixels, labels=y, images_test=pixels, labels_test=y),
        "packed.npz": npz_file(compressed=True, x=x, y=y),
        "table.npz": npz_file(x=table, y=y, columns=np.array(["a", "b", "c"]), classes=np.array(["u", "v", "w"])),
        "numbers.csv": b"a,b [cm],class\n1,2.5,x\n2,3.5,y\n3,1e3,x\n4,-7,y\n",
        **{f"image{suffix}": image_file(kind) for suffix, kind in IMAGES.items()},
        "steps.jpg": image_file("JPEG", progressive=True),
        "mixed.csv": b"age,when,job,class\n31,2020-01-02,cook,yes\n,2021-03-04,smith,no\n40,2022-05-06,cook,no\n",
    }


def zip_file(**members: bytes) -> bytes:
    """A zip of these members, which need not be arrays."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def npy_file(header: str, content: bytes = b"") -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


def crafted() -> Iterable[tuple[str, bytes]]:
    """What once failed, or would have: members that are no arrays, headers that lie, tables that steer a terminal."""
    good = npy_file("{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1), }", bytes(8))
    labels = npy_file("{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }", bytes(8))
    kinds = ("|O", "|V8", "<c16", "<M8[D]", "<U500000000", "|S0", "<f16", ">f8", "[('a', '<i4'), ('b', '<f4')]")
    shapes = ("(1,)", "(-1, -1)", f"({10**400},)", f"({10**18},)", "(0, 10)", "()", "(True,)", "[1]", "(1.0,)", "'a'")
    headers = [f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': (1, 1), }}" for kind in kinds]
    headers += [f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}" for shape in shapes]
    headers += ["(" * 9000, "-" * 9000 + "1", "{}", "", "1if 1else 2", "{'descr': 1L}"]
    for member in (b"", b"text", good[:20], good + b"more", *(npy_file(header, bytes(8)) for header in headers)):
        yield "x.npz", zip_file(x=member, y=labels)
        yield "x.npz", zip_file(x=good, y=member)
        yield "x.npz", zip_file(x=good, y=labels, columns=member, classes=member)
    control = b"\x1b[2J\x1b]0;x\x07"
    yield "a.csv", b"a" + control + b",class\nx,1\n" + control + b",2\n"
    yield "a.csv", control * 5000 + b",class\n1,2\n"
    yield "a.csv", b"a,class\n1.7e308,5e-324\n-1.7e308,1\n,1\n"
    yield "a.csv", b"[" * 100_000 + b",class\n1,2\n"
    yield "a.csv", b"\x00" * 1000
    yield "a.png", image_file("PNG").replace(b"\x00\x00\x00\x07\x00\x00\x00\x09", b"\x7f\xff\xff\xff" * 2)
    yield "a.bmp", image_file("BMP").replace(b"\x07\x00\x00\x00\x09", b"\xff\xff\xff\x7f\x09")
    yield "a.png", image_file("GIF")
    yield "a.csv", b"a,class\n" + b"x" * 200_000 + b",1\n"
    yield "a.csv", b",".join(b"c%d" % i for i in range(20_000)) + b",class\n" + b"q," * 20_000 + b"1\n"


def image_file(kind: str, **options: object) -> bytes:
    buffer = BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    Image.fromarray(pixels).convert("P" if kind == "GIF" else "RGB").save(buffer, kind, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def parse(path: Path) -> list[Data]:
    if path.suffix in IMAGES:
        with TemporaryDirectory() as folder:
            for name, content in {"whole.png": image_file("PNG"), path.name: path.read_bytes()}.items():
                (Path(folder) / "a").mkdir(exist_ok=True)
                (Path(folder) / "a" / name).write_bytes(content)
            return load_records([folder], None)
    return load_records([str(path)], "class" if path.suffix == ".csv" else None)


def sound(parsed: object) -> None:
    """What is parsed lies in its box, with labels of its classes and printable names."""
    assert isinstance(parsed, list)
    for data in parsed:
        assert isinstance(data, Data)
        assert len(data.x) == len(data.y)
        assert data.name.isprintable()
        if data.columns is not None:
            names = [column.name for column in data.columns.columns]
            assert all(name.isprintable() for name in (*names, *data.columns.classes, *data.columns.notes))


TARGET = Target(
    parse=parse,
    seeds=seeds,
    crafted=crafted,
    sound=sound,
    words=(
        b"\x93NUMPY\x01\x00",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        b"PK\x03\x04",
        b'"',
        b",,,",
        b"\xef\xbb\xbf",
    ),
)
