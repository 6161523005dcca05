"""A small assembler for pickles, safetensors and torch zips that lie, and what a refusal of one must be like."""

import json
import resource
import struct
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from remanence.errors import BadModelFile
from remanence.releases.loading import load_weights

TEN_GB = 10 * 2**30


def refused(path: Path, code: str, *parts: str, expected: Any = None) -> str:
    """The message of the refusal, which must come without memory and far sooner than a bomb would end."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
    with pytest.raises(BadModelFile) as caught:
        load_weights(path, expected=expected)
    assert time.thread_time() - start < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB
    message = str(caught.value)
    assert caught.value.code == code, message
    assert path.name in message
    assert all(part in message for part in parts), message
    assert len(message) < 900
    assert message.isprintable()
    assert caught.value.__suppress_context__
    return message


def op(value: Any) -> bytes:
    """The opcodes that push `value`; bytes are opcodes already."""
    match value:
        case bytes():
            return value
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            return b"\x8a\x20" + value.to_bytes(32, "little", signed=True)
        case str():
            return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    return b"(" + b"".join(op(item) for item in value) + b"t"


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


ORDERED = name("collections", "OrderedDict") + b")R"
REBUILD = name("torch._utils", "_rebuild_tensor_v2")


def tensor(
    *,
    key: Any = "0",
    kind: str = "FloatStorage",
    numel: Any = 4,
    offset: Any = 0,
    shape: Any = (2, 2),
    stride: Any = (2, 1),
) -> bytes:
    storage = op(("storage", name("torch", kind), key, "cpu", numel)) + b"Q"
    return REBUILD + op((storage, offset, shape, stride, False, ORDERED)) + b"R"


def tensor_again(i: int) -> bytes:
    """A tensor of 4 kB, and then the same one over and over from the memo."""
    big = {"key": "big", "numel": 1024, "shape": (1024,), "stride": (1,)}
    return tensor(**big) + b"q\x00" if i == 0 else b"h\x00"


def state(*items: Any) -> bytes:
    return b"\x80\x02}(" + b"".join(op(item) for item in items) + b"u."


RECORD = torch.arange(4.0).numpy().tobytes()


def write_zip(path: Path, data: bytes, records: Mapping[str, bytes] | None = None, **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("m/data.pkl", data)
        for key, content in {"data/0": RECORD, **(records or {})}.items():
            archive.writestr(f"m/{key}", content)
    return path


def write_safetensors(path: Path, header: Any, data: bytes = RECORD, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(start: Any = 0, end: Any = 16, shape: Any = (2, 2), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
