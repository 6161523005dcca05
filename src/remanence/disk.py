"""Files that are written whole or not at all, folders that one process fills at a time, and files of others, which may
be anything.

A file is filled under a temporary name, which holds the machine and the process that fill it, and then renamed: a kill
at any moment leaves the old file, the new one or none, and a temporary file whose process is dead is removed by the
next one that works in the folder.
"""

import errno
import os
import re
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, BinaryIO

from remanence.errors import BadInput

LOCK = ".lock"
_numbers = count()  # of the temporary files of this process


def check_writable(folder: Path, *, option: str = "--out") -> None:
    """Refuse, before any work, a folder that cannot be made or filled; nothing is left in it or made yet."""
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        if error.errno == errno.ENOSPC:  # the place is right
            raise
        raise BadInput(
            f"cannot write into `{folder}` ({error.strerror}): choose another place with `{option}`",
            code="not-writable",
            argument=option,
        ) from None


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading that must be one: a pipe or device, which may never end, is refused, and not waited for.

    A file that is missing or cannot be read raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        message = f"`{path}` must be a regular file, got a folder, pipe or device: give the path of a file"
        raise BadInput(message, code="wrong-type", argument="path")
    return os.fdopen(descriptor, "rb")


def read_text(path: Path, *, max_bytes: int) -> str:
    """The text of a regular file in UTF-8 of at most `max_bytes`; what is no such text raises `ValueError`."""
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    return content.decode("utf-8")


def check_safetensors(path: Path, *, max_header: int = 2**20) -> None:
    """Refuse what is no regular file, and raise `ValueError` where the header, which may name any number of tensors, is
    longer than `max_header` bytes."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
    if length > max_header:
        raise ValueError(f"its header has {length:,} bytes, more than {max_header:,}")


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then give it its name; on any error `path` is as before."""
    replace_files({path: write})


def replace_files(writes: dict[Path, Callable[[Path], object]]) -> None:
    """Fill files that belong together, each by its function: none gets its name before all are filled, and on any error
    all are as before."""
    temporaries = {path: _temporary(path) for path in writes}
    try:
        for path, write in writes.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write(temporaries[path])
        for path, temporary in temporaries.items():
            temporary.replace(path)
    except BaseException as error:
        for temporary in temporaries.values():
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # the name that the caller knows
        raise


def replace_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically, and durably: it is on the disk when this returns."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    replace_file(path, write)


def write_text(path: Path, text: str) -> None:
    """Write `text` to a file that the user named: atomically, but into a pipe or device, such as `/dev/stdout`, as it
    is; of a link, what it points to is replaced."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
    else:
        replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files in `folder` whose process, of this machine, is dead."""
    for path in folder.glob(".*.tmp"):
        machine, *process = path.name.removesuffix(".tmp").rpartition(".")[2].split("-")
        if machine == _machine() and len(process) == 2 and process[0].isdecimal() and not _alive(int(process[0])):
            with suppress(OSError):
                path.unlink(missing_ok=True)


@contextmanager
def one_process(folder: Path, *, option: str = "--out") -> Iterator[None]:
    """Within it no other process fills `folder`, which is made where it is missing; one that tries is refused.

    The operating system holds the lock, so that of a process that was killed nothing remains but a file that the next
    one takes over. A folder that was made for it and stayed empty is removed again.
    """
    check_writable(folder, option=option)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    file = _locked(folder, option)
    try:
        remove_leftovers(folder)
        yield
    finally:
        with suppress(OSError):
            if _is_at(file, folder / LOCK):
                (folder / LOCK).unlink()
        file.close()
        with suppress(OSError):
            for path in missing:
                path.rmdir()


def _locked(folder: Path, option: str) -> IO[str]:
    """The open lock file of `folder`, which holds the number of this process."""
    while True:
        file = (folder / LOCK).open("a+", encoding="ascii", errors="replace")
        if not _lock(file):
            file.seek(0)
            holder = re.sub(r"\D", "", file.read(20)) or "unknown"
            file.close()
            raise BadInput(
                f"`{folder}` is in use by another run (process {holder}): wait until it ends, or choose another folder "
                f"with `{option}`",
                code="conflict",
                argument=option,
            )
        if _is_at(file, folder / LOCK):
            break
        file.close()  # the one before removed it between our two calls
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def _lock(file: IO[str]) -> bool:
    """Whether the lock is ours; on a system or disk without locks always."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{_machine()}-{os.getpid()}-{next(_numbers)}.tmp")


def _machine() -> str:
    return re.sub(r"[^\w]", "_", socket.gethostname())


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is another user's
        return True
    return True
