"""Headers and zip directories that lie about sizes and places: made by hand, byte by byte."""

import json
import struct
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hostile_files import RECORD, TEN_GB, entry, refused, state, tensor, write_safetensors, write_zip

from remanence.releases.loading import load_weights


def pairs(*items: tuple[str, Any]) -> bytes:
    """A JSON object that may have a name twice."""
    return b"{" + b",".join(f"{json.dumps(key)}:{json.dumps(value)}".encode() for key, value in items) + b"}"


TWO = {"a": entry(0, 8, [2]), "b": entry(8, 16, [2])}
SAFETENSORS_LIES: dict[str, tuple[Any, str]] = {
    "10 GB of data": ({"w": entry(0, TEN_GB, [TEN_GB // 4])}, "damaged-file"),
    "shape of 10 GB": ({"w": entry(0, 16, [TEN_GB // 4])}, "damaged-file"),
    "overlap": (TWO | {"b": entry(4, 16, [3])}, "damaged-file"),
    "gap": (TWO | {"b": entry(12, 16, [1])}, "damaged-file"),
    "bytes left over": ({"a": entry(0, 8, [2])}, "damaged-file"),
    "backwards": ({"w": entry(0, -16)}, "damaged-file"),
    "negative start": ({"w": entry(-4, 16, [5])}, "damaged-file"),
    "wrong dtype for the size": ({"w": entry(dtype="F64")}, "damaged-file"),
    "complex": ({"w": entry(shape=[2], dtype="C64")}, "unsupported-format"),
    "8-bit float": ({"w": entry(shape=[16], dtype="F8_E8M0")}, "unsupported-format"),
    "negative shape": ({"w": entry(shape=[-2, -2])}, "damaged-file"),
    "absurd shape of nothing": (TWO | {"c": entry(16, 16, [2**62, 2**62, 0])}, "damaged-file"),
    "shape with a billion digits": ({"w": entry(shape=[10**4000] * 200)}, "damaged-file"),
    "many dimensions": ({"w": entry(shape=[4] + [1] * 40)}, "unsafe-file"),
    "fraction": ({"w": entry(shape=[2.0, 2])}, "damaged-file"),
    "truth as a size": ({"w": entry(shape=[True, 4])}, "damaged-file"),
    "nested shape": ({"w": entry(shape=json.loads("[" * 900 + "]" * 900))}, "damaged-file"),
    "offsets in words": ({"w": entry("0", "16")}, "damaged-file"),
    "no entry": ({"w": 3}, "damaged-file"),
    "a name twice": (pairs(("w", entry()), ("w", entry())), "unsafe-file"),
    "a field twice": (b'{"w":{"dtype":"F32","dtype":"F64","shape":[2,2],"data_offsets":[0,16]}}', "damaged-file"),
    "terminal escapes": ({"w\x1b[2J": entry()}, "unsafe-file"),
    "not JSON": (b"{'w': 3}", "damaged-file"),
    "not UTF-8": (b'{"\xff": 3}', "damaged-file"),
    "huge number": (b'{"w": ' + b"9" * 100_000 + b"}", "damaged-file"),
    "deep": (b'{"w":' * 200_000, "damaged-file"),
    "wide": (b'{"w":[' + b"[]," * 340_000 + b"[]]}", "damaged-file"),
}


@pytest.mark.parametrize("case", SAFETENSORS_LIES)
def test_a_safetensors_header_that_lies_is_refused(case: str, tmp_path: Path) -> None:
    header, code = SAFETENSORS_LIES[case]
    refused(write_safetensors(tmp_path / "lie", header), code)


def test_a_header_longer_than_the_file_or_the_limit_is_refused(tmp_path: Path) -> None:
    for length in (17, TEN_GB, 2**64 - 1, 1, 0):
        refused(write_safetensors(tmp_path / "lie", {}, length=length, data=b""), "damaged-file")
    refused(write_safetensors(tmp_path / "long", b"{" + b" " * 2**22 + b"}"), "too-large")


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compressed_record_is_refused_before_it_is_unfolded(kind: int, tmp_path: Path) -> None:
    bomb = {"data/1": bytes(10**7)}
    refused(write_zip(tmp_path / "bomb.pt", state("w", tensor()), bomb, compression=kind), "unsafe-file")


def test_two_records_of_one_name_are_refused(tmp_path: Path) -> None:
    other = {"data/1": RECORD, "data/2": bytes(16)}
    content = write_zip(tmp_path / "twice.pt", state("w", tensor()), other).read_bytes()
    (tmp_path / "twice.pt").write_bytes(content.replace(b"m/data/2", b"m/data/1"))
    refused(tmp_path / "twice.pt", "unsafe-file")
    with zipfile.ZipFile(tmp_path / "pickles.pt", "w") as archive:
        archive.writestr("a/data.pkl", state("w", tensor()))
        archive.writestr("b/data.pkl", state("w", tensor()))
    refused(tmp_path / "pickles.pt", "unsupported-format")


def directory_lies(content: bytes) -> dict[str, tuple[bytes, str]]:
    """Copies of a torch zip in which one field of the entry of data/0 is another."""
    start = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 4)
    end = content.rindex(b"PK\x05\x06")

    def with_field(at: int, form: str, *values: int) -> bytes:
        return content[:at] + struct.pack(form, *values) + content[at + struct.calcsize(form) :]

    return {
        "10 GB": (with_field(start + 20, "<2L", 2**32 - 2, 2**32 - 2), "damaged-file"),
        "larger than it is": (with_field(start + 20, "<2L", 64, 64), "damaged-file"),
        "smaller than it is": (with_field(start + 20, "<2L", 8, 8), "unsafe-file"),
        "unlike sizes": (with_field(start + 20, "<2L", 8, 16), "unsafe-file"),
        "another place": (with_field(start + 42, "<L", 3), "damaged-file"),
        "beyond the file": (with_field(start + 42, "<L", 2**32 - 2), "damaged-file"),
        "encrypted": (with_field(start + 8, "<H", 1), "damaged-file"),
        "another checksum": (with_field(start + 16, "<L", 7), "damaged-file"),
        "unknown method": (with_field(start + 10, "<H", 99), "unsafe-file"),
        "future version": (with_field(start + 6, "<H", 900), "damaged-file"),
        "huge directory": (with_field(end + 12, "<L", 2**32 - 2), "damaged-file"),
        "directory elsewhere": (with_field(end + 16, "<L", 2**32 - 2), "unsafe-file"),
        "no directory": (content[:end], "damaged-file"),
    }


@pytest.mark.parametrize("case", directory_lies(b"PK\x01\x02PK\x01\x02PK\x05\x06"))
def test_a_zip_directory_that_lies_is_refused(case: str, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "lie.pt", state("w", tensor()))
    content, code = directory_lies(path.read_bytes())[case]
    path.write_bytes(content)
    refused(path, code)


# --- files in which torch would find another model than the one that was audited


def zipped(record: bytes, shift: int = 0) -> tuple[bytes, bytes]:
    """The records and the directory of a torch zip that begins `shift` bytes into a file."""
    buffer = BytesIO(bytes(shift))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("m/data.pkl", state("w", tensor()))
        archive.writestr("m/data/0", record)
        directory = archive.fp.tell()
    content = buffer.getvalue()
    return content[shift:directory], content[directory : content.rindex(b"PK\x05\x06")]


def end(directory: bytes, at: int) -> bytes:
    return struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 2, 2, len(directory), at, 0)


def wide_end(directory: bytes, at: int) -> bytes:
    return struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 2, 2, len(directory), at)


def test_two_models_one_behind_the_other_are_refused(tmp_path: Path) -> None:
    records, directory = zipped(RECORD)
    others, _ = zipped(bytes(16))
    tail = directory + end(directory, len(records))
    (tmp_path / "one.pt").write_bytes(records + tail)
    assert load_weights(tmp_path / "one.pt")["w"].tolist() == [[0, 1], [2, 3]]
    (tmp_path / "two.pt").write_bytes(records + tail + others + tail)
    refused(tmp_path / "two.pt", "unsafe-file")
    (tmp_path / "comment.pt").write_bytes(records + tail[:-2] + b"\x04\0abcd")
    refused(tmp_path / "comment.pt", "unsafe-file")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "records", "code"),
    [
        (tensor(), {"DATA/0": bytes(16)}, "unsafe-file"),
        (tensor(kind="IntStorage"), {}, "unsafe-file"),
        (tensor(), {f"data/{i}": b"" for i in range(1, 40_000)}, "too-large"),
        (tensor(), {"byteorder": b"big"}, "unsupported-format"),
    ],
    ids=["names that differ in case", "one storage of two kinds", "directory over the limit", "big endian"],
)
def test_records_that_another_reader_may_take_otherwise_are_refused(
    weights: bytes, records: dict[str, bytes], code: str, tmp_path: Path
) -> None:
    refused(write_zip(tmp_path / "odd.pt", state("w", tensor(), "n", weights), records), code)


def test_two_64_bit_directories_are_refused(tmp_path: Path) -> None:
    records, first = zipped(RECORD)
    others, second = zipped(bytes(16), shift=len(records))
    content = records + others + first
    place = len(content)  # of the end that the locator names, and that torch takes; zipfile takes the one before it
    content += wide_end(first, len(records + others)) + second
    content += wide_end(second, place + 56) + struct.pack("<4sLQL", b"PK\x06\x07", 0, place, 1)
    (tmp_path / "two.pt").write_bytes(content + end(second, 2**32 - 1))
    refused(tmp_path / "two.pt", "unsafe-file")  # by us, or by the zipfile of a newer Python
