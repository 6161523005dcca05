"""The index of a model file: where its tensors are, by a safetensors header or by a torch zip's directory and pickle.

An index is a stranger's claim. It is bounded before it is parsed, and every position in it is checked against the
file's true size, so that nothing is allocated that the file does not hold. A zip that torch could read in another way
than we do is refused too: the model that is audited must be the model that is used.
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from io import FileIO
from itertools import accumulate
from math import prod
from typing import Any, TypeAlias, final
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import torch
from safetensors import SafetensorError, safe_open

from remanence.errors import BadModelFile
from remanence.releases._pickle_scan import not_plain, scan, scan_checkpoint
from remanence.releases._refusals import damaged, shown, unsafe, unsupported
from remanence.releases._views import Storage, View, check_shape

Read: TypeAlias = Callable[[str], bytearray]  # the bytes of a storage by its key
Index: TypeAlias = tuple[dict[str, View], Read]  # the tensors
Choose: TypeAlias = Callable[[dict[str, dict[str, View]]], dict[str, View]]  # of dicts by the keys that lead to them

_MAX_INDEX = 2**21  # bytes of a header, directory or pickle: 13,000 tensors, still parsed in about a second


def too_large(
    name: str, size: int, *, hint: str = "save the weights alone, with `safetensors.torch.save_file`"
) -> BadModelFile:
    """The refusal of a part of an index that would take too long to parse."""
    message = f"its {shown(name)} has {size} bytes, at most {_MAX_INDEX} are read: {hint}"
    return BadModelFile(message, code="too-large")


@final
class File(FileIO):
    """An open file of known `size` that reads at most `_MAX_INDEX` bytes at once, whatever an index asks for."""

    size: int

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_INDEX:
            raise too_large("directory", size)
        return super().read(size) or b""

    def exactly(self, start: int, size: int) -> bytearray:
        """The `size` bytes from `start` on, or a refusal where the file has become shorter."""
        buffer = bytearray(size)
        remaining = memoryview(buffer)
        self.seek(start)
        while remaining:  # the system gives at most 2 GiB at once
            got = self.readinto(remaining)
            if not got:
                raise damaged(f"it ends {len(remaining)} bytes before its index says, perhaps it is not complete yet")
            remaining = remaining[got:]
        return buffer


_DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
}


def index_safetensors(file: File, length: int) -> Index:
    """The index of a safetensors file with a header of `length` bytes, parsed and checked by the safetensors library.

    The library guarantees that the tensors follow one another without gap or overlap up to the end of the file; the
    offsets are therefore sums of sizes. The bytes are read here, not from the library's memory map, which would end
    the process if the file became shorter meanwhile.
    """
    if length > file.size:
        raise damaged(f"its header claims {length} bytes of a file of {file.size}")
    if length > _MAX_INDEX:
        raise too_large("header", length, hint="split it into several files with an index")
    try:
        with safe_open(file.name, framework="pt") as header:
            views = {name: _dense_view(name, header.get_slice(name)) for name in header.offset_keys()}
    except (SafetensorError, OSError, UnicodeError) as error:
        raise damaged(f"its safetensors header is not sound ({shown(str(error))})") from None
    json.loads(file.exactly(8, length), object_pairs_hook=_check_once)
    sizes = [view.storage.numel * view.storage.dtype.itemsize for view in views.values()]
    starts = dict(zip(views, accumulate(sizes, initial=8 + length), strict=False))

    def read(key: str) -> bytearray:
        return file.exactly(starts[key], views[key].storage.numel * views[key].storage.dtype.itemsize)

    return views, read


def _check_once(pairs: list[tuple[str, Any]]) -> None:
    """Refuse a JSON object with a name twice, of which the library silently takes the last."""
    if len({name for name, _ in pairs}) != len(pairs):
        raise unsafe("its header has a name twice, expected each name once")


def _dense_view(name: str, claim: Any) -> View:
    dtype, shape = _DTYPES.get(claim.get_dtype()), tuple(claim.get_shape())
    if dtype is None:
        raise unsupported(f"{shown(name)} has dtype {shown(claim.get_dtype())}, expected one of {', '.join(_DTYPES)}")
    check_shape(name, shape)
    stride = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    return View(storage=Storage(key=name, dtype=dtype, numel=prod(shape)), offset=0, shape=shape, stride=stride)


def index_zip(file: File) -> Index:
    """The index of a torch zip that holds a flat dict of tensors."""
    return _index_zip(file, scan)


def index_checkpoint(file: File, choose: Choose) -> Index:
    """The index of the one dict of tensors in a torch zip that is chosen; what else it holds stays unread."""

    def chosen(stream: bytes) -> dict[str, View]:
        found, others = scan_checkpoint(stream)
        try:
            return choose(found)
        except BadModelFile:
            if not others:
                raise
            raise not_plain(others) from None

    return _index_zip(file, chosen)


def _index_zip(file: File, scanned: Callable[[bytes], dict[str, View]]) -> Index:
    archive, members = _members(file)
    pickles = [name for name in members if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise unsupported(f"it has {len(pickles)} data.pkl, expected one, as in a saved state dict")
    root = pickles[0].removesuffix("data.pkl")
    if (order := members.get(f"{root}byteorder")) and _small_member(archive, order) != b"little":
        raise unsupported("its byteorder is not little-endian")
    views = scanned(_small_member(archive, members[pickles[0]]))
    for name, view in views.items():
        _check_claim(name, view, members.get(f"{root}data/{view.storage.key}"))
    _check_kinds(views)
    return views, lambda key: _member(archive, members[f"{root}data/{key}"])


# zipfile has no single error for a broken archive: RuntimeError is for encryption and unknown versions, struct.error
# and EOFError for truncated fields, OverflowError, ValueError and OSError for positions that no file has.
_BROKEN_ZIP = (BadZipFile, RuntimeError, struct.error, EOFError, OverflowError, ValueError, OSError)


def _members(file: File) -> tuple[ZipFile, dict[str, ZipInfo]]:
    try:
        archive = ZipFile(file)
    except BadModelFile:
        raise
    except _BROKEN_ZIP as error:
        raise damaged(f"it is a torch zip, broken or truncated ({shown(str(error))})") from None
    _check_other_formats(archive.namelist())
    _check_end(file, archive.start_dir)
    _check_positions(archive.infolist(), archive.start_dir)
    names: set[str] = set()
    for info in archive.infolist():
        if info.filename.lower() in names:  # torch looks members up without regard to case
            raise unsafe(f"its directory has {shown(info.filename)} twice, expected each name once")
        if info.compress_type != ZIP_STORED or info.compress_size != info.file_size:
            raise unsafe(f"its member {shown(info.filename)} is compressed, torch stores it plainly")
        names.add(info.filename.lower())
    return archive, {info.filename: info for info in archive.infolist()}


def _check_other_formats(names: list[str]) -> None:
    """Refuse archives that other programs write, each with its way out."""
    if any(name.endswith("/constants.pkl") for name in names):
        hint = "`safetensors.torch.save_file(torch.jit.load(path).state_dict(), new_path)`"
        fault = f"it is TorchScript, which holds code; where you trust it, save its weights, with {hint}"
    elif names and all(name.endswith(".npy") for name in names):
        hint = "`safetensors.numpy.save_file(dict(np.load(path)), new_path)`"
        fault = f"it is an .npz of arrays, expected weights: save them with {hint}"
    else:
        return
    raise BadModelFile(fault, code="unsupported-format")


def _check_end(file: File, directory: int) -> None:
    """Refuse a zip in which `zipfile`, which searches the directory backwards from the end, and torch, which follows
    the position stored there, could find different directories."""
    end = bytes(file.exactly(max(file.size - 98, 0), min(file.size, 98))).rjust(98, b"\0")
    wide = end[56:60] == b"PK\x06\x07"  # the 64-bit form: 56 bytes, and 20 that say where they are, before the usual 22
    position = int.from_bytes(end[48:56] if wide else end[92:96], "little")
    wide_position = int.from_bytes(end[64:72], "little") if wide else file.size - 98
    plain_end = end[76:80] == b"PK\x05\x06" and end[96:] == b"\0\0"  # without a comment after it
    if not plain_end or position != directory or wide_position != file.size - 98:
        raise unsafe("its end does not say where its directory is, which zip readers take differently")


def _check_positions(members: Iterable[ZipInfo], directory: int) -> None:
    position = 0
    for info in sorted(members, key=lambda info: info.header_offset):
        end = info.header_offset + 30 + info.compress_size  # 30: the member's header, less its name
        if not position <= info.header_offset <= end <= directory:
            raise damaged(
                f"its directory puts {shown(info.filename)} at bytes {info.header_offset} to {end}, expected them "
                f"within {position} to {directory}"
            )
        position = end


def _small_member(archive: ZipFile, info: ZipInfo) -> bytes:
    if info.file_size > _MAX_INDEX:
        raise too_large(info.filename, info.file_size)
    return bytes(_member(archive, info))


def _member(archive: ZipFile, info: ZipInfo) -> bytearray:
    buffer = bytearray()
    try:
        with archive.open(info) as member:
            while chunk := member.read(_MAX_INDEX):
                buffer += chunk
    except _BROKEN_ZIP as error:  # among them a wrong checksum
        reason = shown(str(error) or type(error).__name__)
        raise damaged(f"its {shown(info.filename)} is broken ({reason})") from None
    return buffer


def _check_claim(name: str, view: View, member: ZipInfo | None) -> None:
    view.check(name)
    claimed, held = view.storage.numel * view.storage.dtype.itemsize, member.file_size if member else 0
    if member is None or claimed != held:
        raise unsafe(f"{shown(name)} claims {shown(claimed)} bytes, {held} are there")


def _check_kinds(views: Mapping[str, View]) -> None:
    storages = {view.storage for view in views.values()}
    if len(storages) != len({storage.key for storage in storages}):  # torch would take the first kind for all of them
        raise unsafe("it describes one storage as numbers of two kinds, torch writes one")
