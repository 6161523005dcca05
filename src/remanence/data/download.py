"""Downloads of published files: resumed where they were interrupted, verified before they get their final names.

Why no library does it: docs/decisions/0016.
"""

import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Literal, final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from remanence.errors import BadInput

_CHUNK = 1 << 16
_TIMEOUT = 30.0
_RANGE_NOT_SATISFIABLE = 416


@final
class FetchFailed(OSError):
    """The server did not give the file; the message says what to do instead."""


@final
@dataclass(frozen=True, kw_only=True)
class KnownFile:
    """A file by its name and the digest its publisher gives."""

    name: str
    digest: str
    algorithm: Literal["md5", "sha1"] = "md5"

    def digest_of(self, path: Path) -> str:
        """The digest of the file at `path`; it detects damage, not forgery, so MD5 is enough."""
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.new(self.algorithm, usedforsecurity=False)).hexdigest()

    def is_at(self, path: Path) -> bool:
        try:
            return path.is_file() and self.digest_of(path) == self.digest
        except OSError:  # it cannot be read, so it must be made
            return False


@final
@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the files of one data set are published, one by one or packed in a tar archive."""

    address: str
    folder: str  # below the data folder, and inside the archive
    files: tuple[KnownFile, ...]
    archive: KnownFile | None = None


def fetch(source: Source, root: Path, *, address: str | None = None) -> list[Path]:
    """Download the files of `source` below `root` and return their paths; intact files stay as they are."""
    folder = root / source.folder
    base = (address or source.address).rstrip("/") + "/"
    missing = [file for file in source.files if not file.is_at(folder / file.name)]
    if missing:
        _make(folder)
    if missing and source.archive is not None:
        packed = root / source.archive.name
        _download(base, source.archive, packed, f"its files into `$REMANENCE_DATA/{source.folder}/`")
        _unpack(packed, source.folder, missing, root)
    elif missing:
        for file in missing:
            _download(base, file, folder / file.name, f"the file into `$REMANENCE_DATA/{source.folder}/`")
    return [folder / file.name for file in source.files]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"the data folder {folder} must be a folder that can be written, got {error.strerror}: "
            "set `$REMANENCE_DATA` to another one",
            code="missing-file",
            argument="root",
        ) from error


def _download(base: str, file: KnownFile, target: Path, manually: str) -> None:
    if file.is_at(target):
        return
    address, part = base + file.name, target.with_name(target.name + ".part")
    _transfer(address, file, part, f"download {address} another way and put {manually}")
    got = file.digest_of(part)
    if got != file.digest:
        part.unlink()
        raise FetchFailed(
            f"{address} must have the {file.algorithm} {file.digest}, got {got}: the copy was deleted; "
            f"repeat the command to start over, or put {manually} yourself"
        )
    os.replace(part, target)


def _transfer(address: str, file: KnownFile, part: Path, remedy: str) -> None:
    start = part.stat().st_size if part.exists() else 0
    response = _ask(address, start, remedy)
    if response is not None:
        with response:
            _store(response, part, start if response.status == 206 else 0, remedy)
    elif not file.is_at(part):  # the server cannot resume from this part, and the part is not complete either
        part.unlink()
        _transfer(address, file, part, remedy)


def _ask(address: str, start: int, remedy: str) -> HTTPResponse | None:
    """The response from byte `start` on, or from 0 where the server ignores ranges; None where it cannot resume."""
    headers = {"User-Agent": "remanence"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response: HTTPResponse = urlopen(Request(address, headers=headers), timeout=_TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == _RANGE_NOT_SATISFIABLE and start:
            return None
        raise FetchFailed(f"the server answered {error.code} {error.reason} for {address}: {remedy}") from None
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise FetchFailed(f"{address} cannot be reached ({reason}): check the network, or {remedy}") from error
    if response.status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        response.close()
        return None
    return response


def _store(response: HTTPResponse, part: Path, start: int, remedy: str) -> None:
    length = response.headers.get("Content-Length")
    total = None if length is None else start + int(length)
    with part.open("ab" if start else "wb") as out, _progress(part.stem, start, total) as advance:
        for chunk in _chunks(response, start, total, remedy):
            out.write(chunk)
            advance(len(chunk))


def _chunks(response: HTTPResponse, start: int, total: int | None, remedy: str) -> Iterator[bytes]:
    done, reason = start, "the server closed it"
    try:
        while chunk := response.read(_CHUNK):
            done += len(chunk)
            yield chunk
    except (OSError, HTTPException) as error:
        reason, total = str(error), total or done + 1
    if total is not None and done < total:  # http.client ends a truncated body silently
        raise FetchFailed(
            f"the connection was closed after {done} bytes of {response.url} ({reason}): "
            f"the same command resumes there, or {remedy}"
        )


@contextmanager
def _progress(name: str, start: int, total: int | None) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total, completed=start)
        yield lambda size: bar.advance(task, size)


def _unpack(packed: Path, folder: str, files: Sequence[KnownFile], root: Path) -> None:
    """Extract the expected members alone into a temporary folder, verify them, move them to their names, and delete
    the archive."""
    with tempfile.TemporaryDirectory(dir=root, prefix=".unpack-") as temporary:
        try:
            with tarfile.open(packed) as archive:
                for file in files:
                    _extract(archive, f"{folder}/{file.name}", Path(temporary) / file.name)
        except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
            raise FetchFailed(f"{packed} is not the expected archive ({error}): delete it and fetch again") from error
        for file in files:
            if not file.is_at(Path(temporary) / file.name):
                raise FetchFailed(f"{file.name} in {packed} must have the {file.algorithm} {file.digest}: fetch again")
            os.replace(Path(temporary) / file.name, root / folder / file.name)
    packed.unlink()


def _extract(archive: tarfile.TarFile, member: str, target: Path) -> None:
    found = archive.getmember(member)
    content = archive.extractfile(found) if found.isreg() else None  # a link could point anywhere
    if content is None:
        raise KeyError(f"{member} is not a regular file")
    with content, target.open("wb") as out:
        shutil.copyfileobj(content, out)
