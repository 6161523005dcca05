"""Where the tensors of a file are, by its own index: a safetensors header, or the directory and pickle of a torch zip.

An index is a stranger's claim. It is bounded before it is parsed, and every place in it is checked against the file's
true size, so that nothing is allocated that the file does not hold. What torch could read in another way than we do is
refused too: the model that is audited must be the model that is used.
"""

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from io import FileIO
from math import prod
from typing import Any, TypeAlias, final
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import torch

from remanence.errors import BadModelFile
from remanence.releases._pickle_scan import RESAVE, Storage, View, check_shape, scan, shown

Index: TypeAlias = tuple[dict[str, View], Callable[[str], bytearray]]  # the tensors, and the bytes of a storage by key

_LARGEST_INDEX = 2**20  # bytes of a header, directory or pickle: thousands of tensors, still judged within a second


@final
class File(FileIO):
    """A file that gives an index at most `_LARGEST_INDEX` bytes at once, whatever it was made to ask for."""

    size: int

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _LARGEST_INDEX:
            raise BadZipFile(f"a directory of {size} bytes is over the limit of {_LARGEST_INDEX}")
        return super().read(size) or b""

    def exactly(self, start: int, size: int) -> bytearray:
        buffer = bytearray(size)
        rest = memoryview(buffer)
        self.seek(start)
        while rest:  # the system gives at most 2 GiB at once
            got = self.readinto(rest)
            if not got:
                raise BadModelFile(f"it ends {len(rest)} bytes before its index says: wait until it is complete")
            rest = rest[got:]
        return buffer


def index_safetensors(file: File, length: int) -> Index:
    held = file.size - 8
    if not 2 <= length <= held:
        raise BadModelFile(f"its header claims {length} bytes, {held} are there: it is cut short, fetch it again")
    if length > _LARGEST_INDEX:
        raise BadModelFile(f"its header of {length} bytes is over the limit of {_LARGEST_INDEX}: save fewer tensors")
    header = _parse_header(bytes(file.exactly(8, length)))
    spans = {name: _span(name, entry) for name, entry in header.items()}
    _check_tiling(spans, held - length)
    views = {name: _dense_view(name, entry, spans[name]) for name, entry in header.items()}

    def read(key: str) -> bytearray:
        start, end = spans[key]
        return file.exactly(8 + length + start, end - start)

    return views, read


def _parse_header(text: bytes) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(text.decode("utf-8"), object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadModelFile):
            raise
        raise BadModelFile(f"its header is not sound JSON ({type(error).__name__}): fetch it again") from None
    header.pop("__metadata__", None)
    return header


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise BadModelFile(f"its header has {shown(twice)} twice, expected each name once: {RESAVE}")
    return found


def _span(name: str, entry: Any) -> tuple[int, int]:
    match entry:
        case {"dtype": str(), "shape": list(), "data_offsets": [int(start), int(end)]} if len(entry) == 3:
            return start, end
    raise BadModelFile(f"its header gives {shown(name)} something else than dtype, shape and data_offsets: {RESAVE}")


def _check_tiling(spans: Mapping[str, tuple[int, int]], held: int) -> None:
    position = 0
    for name, (start, end) in sorted(spans.items(), key=lambda item: item[1]):
        if not position == start <= end <= held:
            raise BadModelFile(
                f"its header puts {shown(name)} at bytes {shown(start)} to {shown(end)}, expected it to begin at "
                f"{position} and end within {held}: it is cut short or lies, fetch it again"
            )
        position = end
    if position != held:
        raise BadModelFile(f"its header accounts for {position} of its {held} bytes, expected all of them: {RESAVE}")


_DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
}


def _dense_view(name: str, entry: Mapping[str, Any], span: tuple[int, int]) -> View:
    dtype, shape, held = _DTYPES.get(entry["dtype"]), tuple(entry["shape"]), span[1] - span[0]
    if dtype is None:
        raise BadModelFile(f"{shown(name)} has dtype {shown(entry['dtype'])}, expected one of {', '.join(_DTYPES)}")
    check_shape(name, shape)
    if prod(shape) * dtype.itemsize != held:
        raise BadModelFile(f"{shown(name)} claims shape {shown(shape)} of {dtype}, {held} bytes are there: {RESAVE}")
    stride = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    return View(storage=Storage(key=name, dtype=dtype, numel=prod(shape)), offset=0, shape=shape, stride=stride)


def index_zip(file: File) -> Index:
    archive, members = _members(file)
    pickles = [name for name in members if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise BadModelFile(f"it has {len(pickles)} data.pkl, expected one, as in a saved state dict: {RESAVE}")
    root = pickles[0].removesuffix("data.pkl")
    if (order := members.get(f"{root}byteorder")) and _small_record(archive, order) != b"little":
        raise BadModelFile(f"its byteorder is not little-endian: {RESAVE}")
    views = scan(_small_record(archive, members[pickles[0]]))
    for name, view in views.items():
        _check_claim(name, view, members.get(f"{root}data/{view.storage.key}"))
    _check_kinds(views)
    return views, lambda key: _record(archive, members[f"{root}data/{key}"])


# zipfile has no single error for a broken archive: RuntimeError is for encryption and unknown versions, struct.error
# and EOFError for cut fields, OverflowError, ValueError and OSError for places that no file has.
_BROKEN_ZIP = (BadZipFile, RuntimeError, struct.error, EOFError, OverflowError, ValueError, OSError)


def _members(file: File) -> tuple[ZipFile, dict[str, ZipInfo]]:
    try:
        archive = ZipFile(file)
    except _BROKEN_ZIP as error:
        raise BadModelFile(f"it is a torch zip, broken or cut short ({shown(str(error))}): fetch it again") from None
    _check_end(file, archive.start_dir)
    _check_places(archive.infolist(), archive.start_dir)
    seen: set[str] = set()
    for info in archive.infolist():
        if info.filename.lower() in seen:  # torch looks records up without regard to case
            raise BadModelFile(f"its directory has {shown(info.filename)} twice, expected each name once: {RESAVE}")
        if info.compress_type != ZIP_STORED or info.compress_size != info.file_size:
            raise BadModelFile(f"its record {shown(info.filename)} is compressed, torch stores it plainly: {RESAVE}")
        seen.add(info.filename.lower())
    return archive, {info.filename: info for info in archive.infolist()}


def _check_end(file: File, directory: int) -> None:
    """Zipfile finds the directory backwards from the end, torch by the place written there: they must agree."""
    end = bytes(file.exactly(max(file.size - 98, 0), min(file.size, 98))).rjust(98, b"\0")
    wide = end[56:60] == b"PK\x06\x07"  # the 64-bit form: 56 bytes, and 20 that say where they are, before the usual 22
    place = int.from_bytes(end[48:56] if wide else end[92:96], "little")
    wide_place = int.from_bytes(end[64:72], "little") if wide else file.size - 98
    plain_end = end[76:80] == b"PK\x05\x06" and end[96:] == b"\0\0"  # without a comment behind it
    if not plain_end or place != directory or wide_place != file.size - 98:
        raise BadModelFile(f"its end does not say where its directory is, which zip readers take differently: {RESAVE}")


def _check_places(members: Iterable[ZipInfo], directory: int) -> None:
    position = 0
    for info in sorted(members, key=lambda info: info.header_offset):
        end = info.header_offset + 30 + info.compress_size  # 30: the record's own header, less its name
        if not position <= info.header_offset <= end <= directory:
            raise BadModelFile(
                f"its directory puts {shown(info.filename)} at bytes {info.header_offset} to {end}, expected a place "
                f"within {position} to {directory}: it is cut short or lies, fetch it again"
            )
        position = end


def _small_record(archive: ZipFile, info: ZipInfo) -> bytes:
    if info.file_size > _LARGEST_INDEX:
        raise BadModelFile(f"its {shown(info.filename)} is over the limit of {_LARGEST_INDEX} bytes: {RESAVE}")
    return bytes(_record(archive, info))


def _record(archive: ZipFile, info: ZipInfo) -> bytearray:
    buffer = bytearray()
    try:
        with archive.open(info) as record:
            while chunk := record.read(_LARGEST_INDEX):
                buffer += chunk
    except _BROKEN_ZIP as error:  # among them a wrong checksum
        reason = shown(str(error) or type(error).__name__)
        raise BadModelFile(f"its {shown(info.filename)} is broken ({reason}): fetch it again") from None
    return buffer


def _check_claim(name: str, view: View, record: ZipInfo | None) -> None:
    view.check(name)
    claimed, held = view.storage.numel * view.storage.dtype.itemsize, record.file_size if record else 0
    if record is None or claimed != held:
        raise BadModelFile(f"{shown(name)} claims {shown(claimed)} bytes, its record has {held}: {RESAVE}")


def _check_kinds(views: Mapping[str, View]) -> None:
    storages = {view.storage for view in views.values()}
    if len(storages) != len({storage.key for storage in storages}):  # torch would take the first kind for all of them
        raise BadModelFile(f"it describes one storage as numbers of two kinds, torch writes one: {RESAVE}")
