"""Files of records: .npz, .csv and images, as the options of an audit name them."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np

from remanence.auditing.inputs.sources import load_records
from remanence.types import Data
from targets import Target


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
        "mixed.csv": b"age,when,job,class\n31,2020-01-02,cook,yes\n,2021-03-04,smith,no\n40,2022-05-06,cook,no\n",
    }


def parse(path: Path) -> list[Data]:
    return load_records([str(path)], "class" if path.suffix == ".csv" else None)


def sound(parsed: object) -> None:
    """What is parsed lies in [0, 1], with labels of its classes and printable names."""
    assert isinstance(parsed, list)
    for data in parsed:
        assert isinstance(data, Data)
        assert len(data.x) == len(data.y)


TARGET = Target(
    parse=parse,
    seeds=seeds,
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
